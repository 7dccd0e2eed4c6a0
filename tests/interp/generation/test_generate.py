"""Generation on the cache is what recomputing everything would give, and draws only what it may."""

from dataclasses import replace

import pytest
import torch
from tiny import STACKS, model, randomise, token_ids

from interp import InputError, TokenBatch, Transformer, TransformerConfig, generate, run
from interp.attention import CrossAttention
from interp.config import Writing
from interp.generation.sampling import choose, streams
from interp.transformer import Stack

PROBABILITIES = torch.tensor([[0.05, 0.5, 0.15, 0.3]])


def writes(*given, **settings) -> torch.Tensor:
    return generate(*given, **settings).ids


def by_recomputing(transformer, ids: torch.Tensor, steps: int, temperature: float = 0.0) -> torch.Tensor:
    """The continuation with a whole pass a token over the last n_ctx tokens."""
    drawn = streams(0, TokenBatch.from_ids(ids))
    for _ in range(steps):
        logits = run(transformer, ids[:, -transformer.config.n_ctx :]).logits[:, -1]
        new = choose(logits, temperature=temperature, streams=drawn)
        ids = torch.cat([ids, new[:, None]], 1)
    return ids


@pytest.mark.parametrize("name", ["gpt2", "llama", "sinusoidal", "no positions", "post-norm decoder"])
@pytest.mark.parametrize("steps", [1, 8, 9, 20])  # 5 + 8 tokens fill the context of 13
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_the_cache_gives_what_recomputing_gives_also_beyond_the_context(name, steps, temperature):
    transformer, prompt = model(name), token_ids(3, 5)
    ids = writes(transformer, prompt, steps, temperature=temperature, seed=0)
    assert ids.shape == (3, 5 + steps)
    assert torch.equal(ids, by_recomputing(transformer, prompt, steps, temperature))


def test_a_prompt_that_fills_the_context():
    transformer, prompt = model("gpt2"), token_ids(2, 13)
    assert torch.equal(writes(transformer, prompt, 3), by_recomputing(transformer, prompt, 3))


def test_nothing_new_gives_the_prompt():
    prompt = token_ids(2, 5)
    assert torch.equal(writes(model("gpt2"), prompt, 0), prompt)


def test_generation_ends_when_every_prompt_has_stopped():
    transformer, prompt = model("gpt2"), token_ids(3, 5)
    drawn = {"temperature": 1.0, "seed": 3}
    free = writes(transformer, prompt, 300, **drawn)
    stop = int(free[0, 9])
    stopped = writes(transformer, prompt, 300, stop=stop, **drawn)
    ends = [5 + first_of(row, {stop}) for row in free[:, 5:]]
    assert len({*ends}) == 3
    assert stopped.shape[1] == max(ends) + 1
    for row, whole, end in zip(stopped, free, ends, strict=True):
        assert torch.equal(row[: end + 1], whole[: end + 1])
        assert (row[end:] == stop).all()  # a text that has ended repeats its end


def test_any_of_several_ids_ends_a_text():
    transformer, prompt = model("gpt2"), token_ids(1, 5)
    free = writes(transformer, prompt, 30)[0]
    stops = {int(free[8]), int(free[11])}
    assert torch.equal(writes(transformer, prompt, 30, stop=stops)[0], free[: 5 + first_of(free[5:], stops) + 1])


def first_of(row: torch.Tensor, ids: set[int]) -> int:
    return next(at for at, id in enumerate(row.tolist()) if id in ids)


def test_a_seed_repeats_its_draws_and_disturbs_no_other():
    transformer, prompt = model("gpt2"), token_ids(2, 5)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one, again, other = (writes(transformer, prompt, 8, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("two", [False, True], ids=["decoder", "encoder and decoder"])
def test_a_prompt_is_sampled_in_any_batch_as_alone_and_its_copies_are_not_alike(two):
    transformer = two_stacks("gpt2") if two else model("gpt2")
    rows, how = [[5, 6, 7], [8, 9], [5, 6, 7], [3, 4, 5, 6]], {"temperature": 2.0, "top_k": 20, "seed": 4}
    together = generate(transformer, TokenBatch.from_rows(rows), 6, **how).tokens
    texts = [ids[real].tolist() for ids, real in zip(together.ids, together.mask, strict=True)]
    for at in (0, 1, 3):
        assert generate(transformer, torch.tensor([rows[at]]), 6, **how).ids[0].tolist() == texts[at]
    assert texts[2] != texts[0]


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": each} for each in (1e-45, 1e-320, 1e-30)),
        *({"temperature": 1.0, "top_p": each} for each in (1e-300, 1e-12)),
    ],
    ids=str,
)
def test_what_is_next_to_nothing_takes_the_likeliest(settings):
    transformer, prompt = model("gpt2"), token_ids(3, 5)
    assert torch.equal(writes(transformer, prompt, 6, **settings), writes(transformer, prompt, 6))


@pytest.mark.parametrize("penalty", [1e-40, 1e-300, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e300])
def test_a_penalty_at_the_end_of_numbers_still_writes(penalty, temperature):
    transformer = model("gpt2", dtype=torch.float32)
    ids = writes(transformer, token_ids(3, 5), 6, repetition_penalty=penalty, temperature=temperature)
    said = torch.isin(ids[0, 5:], ids[0, :5]).float().mean()
    assert ids.shape == (3, 11)
    assert temperature > 1 or said == (penalty < 1)  # what was said is said again, or never


def draws(count: int = 4000, **settings) -> torch.Tensor:
    drawn = streams(0, TokenBatch.from_ids(torch.zeros(count, 1, dtype=torch.long)))
    logits = PROBABILITIES.log().expand(count, 4)
    return torch.bincount(choose(logits, streams=drawn, **settings), minlength=4) / count


def test_draws_follow_the_softmax():
    torch.testing.assert_close(draws(temperature=1.0), PROBABILITIES[0], atol=0.03, rtol=0)


def test_temperature_sharpens_and_flattens():
    squared = PROBABILITIES[0] ** 2 / (PROBABILITIES**2).sum()
    torch.testing.assert_close(draws(temperature=0.5), squared, atol=0.03, rtol=0)
    torch.testing.assert_close(draws(temperature=1e4), torch.full((4,), 0.25), atol=0.03, rtol=0)
    assert draws(temperature=0.0).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("settings", "support"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.01}, {1}),
        ({"top_p": 0.49}, {1}),
        ({"top_p": 0.51}, {1, 3}),
        ({"top_p": 0.79}, {1, 3}),
        ({"top_p": 0.81}, {1, 2, 3}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.9}, {1, 2, 3}),
        ({"top_k": 2, "top_p": 0.6}, {1}),  # of the two that are left, the first has 5/8
    ],
)
def test_cuts_leave_exactly_the_likeliest(settings, support):
    frequency = draws(temperature=1.0, **settings)
    assert set(frequency.nonzero()[:, 0].tolist()) == support
    kept = torch.tensor([index in support for index in range(4)])
    expected = PROBABILITIES[0] * kept / PROBABILITIES[0][kept].sum()
    torch.testing.assert_close(frequency, expected, atol=0.03, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"max_new_tokens": -1}, {"top_k": 1.5}],
)
def test_settings_out_of_range(settings):
    with pytest.raises(InputError, match="expected"):
        writes(model("gpt2"), token_ids(1, 3), **settings)


@pytest.mark.parametrize("transformer", [model("bert"), model("gpt2", output="none")], ids=["encoder", "no output"])
def test_only_a_decoder_with_an_output_layer_writes(transformer):
    with pytest.raises(InputError, match="only a decoder with an output layer"):
        writes(transformer, token_ids(1, 3))


# --- a decoder beside an encoder


SOURCES = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]]


def two_stacks(kind: str, writing: Writing | None = None) -> Transformer:
    """An encoder and a decoder whose blocks are those of `STACKS[kind]`."""
    stack = STACKS[kind]
    config = TransformerConfig(
        encoder=replace(stack, causal=False, n_layers=3),
        decoder=replace(stack, causal=True, cross_attention=True),
        target_start=2,
        writing=writing or Writing(),
    )
    torch.manual_seed(0)  # what `randomise` perturbs is drawn too
    built = Transformer(config).double()
    randomise(built)
    return built


def decoded_by_recomputing(transformer: Transformer, source: TokenBatch, steps: int) -> torch.Tensor:
    """The likeliest text with a whole pass of both stacks a token."""
    ids = torch.full((len(source.ids), 1), 2)
    for _ in range(steps):
        ids = torch.cat([ids, run(transformer, source, target=ids).logits[:, -1].argmax(-1)[:, None]], 1)
    return ids


@pytest.mark.parametrize("kind", ["gpt2", "llama", "sinusoidal", "post-norm decoder"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_sources_of_any_lengths_give_what_recomputing_gives(kind, side):
    transformer, source = two_stacks(kind), TokenBatch.from_rows(SOURCES, side=side)
    ids = writes(transformer, source, 8)
    assert torch.equal(ids, decoded_by_recomputing(transformer, source, 8))
    for row, text in zip(ids, SOURCES, strict=True):
        assert torch.equal(writes(transformer, torch.tensor([text]), 8)[0], row)


def test_the_source_is_read_once(monkeypatch):
    transformer, source = two_stacks("gpt2"), token_ids(2, 7)
    calls = {"encoder": 0, "keys": 0}
    encode = Stack.forward
    keys = CrossAttention.project_keys_values

    def counted(self, *given, **named):
        calls["encoder"] += 1
        return encode(self, *given, **named)

    def counted_keys(self, x):
        calls["keys"] += 1
        return keys(self, x)

    monkeypatch.setattr(Stack, "forward", counted)
    monkeypatch.setattr(CrossAttention, "project_keys_values", counted_keys)
    writes(transformer, source, 9)
    assert calls == {"encoder": 1, "keys": transformer.config.n_layers}


def test_a_text_ends_where_its_decoders_context_is_full():
    transformer, source = two_stacks("gpt2"), token_ids(2, 7)
    assert torch.equal(writes(transformer, source, 100), writes(transformer, source, 12))
    assert writes(transformer, source, 100).shape == (2, 13)
    full = token_ids(2, 13)
    assert torch.equal(writes(transformer, source, target=full), full)


def test_what_is_written_already_is_continued():
    transformer, source = two_stacks("gpt2"), token_ids(2, 7)
    whole = writes(transformer, source, 8)
    assert torch.equal(writes(transformer, source, 5, target=whole[:, :4]), whole)
    assert torch.equal(writes(transformer, source[:1], 5, target=whole[0, :4])[0], whole[0])


def test_ends_of_the_model_end_a_text_unless_others_are_asked_for():
    source = token_ids(3, 7)
    free = writes(two_stacks("gpt2"), source, 10)
    end = int(free[0, 1])
    transformer = two_stacks("gpt2", Writing(ends=(end, 28)))
    ended = writes(transformer, source[:1], 10)
    assert torch.equal(ended, free[:1, : 1 + first_of(free[0, 1:], {end, 28}) + 1])
    assert torch.equal(writes(transformer, source, 10, stop=()), free)


def test_what_is_always_first_last_and_never_written():
    source, free = token_ids(3, 7), writes(two_stacks("gpt2"), token_ids(3, 7), 6)
    written = writes(two_stacks("gpt2", Writing(first=11, last=12)), source, 6)
    assert (written[:, :2] == torch.tensor([2, 11])).all()
    assert (written[:, -1] == 12).all()
    assert torch.equal(written[:, 1:-1], writes(two_stacks("gpt2"), source, 4, target=torch.tensor([2, 11]))[:, 1:])
    banned = int(free[0, 1])
    never = writes(two_stacks("gpt2", Writing(never=(banned,))), source, 6)
    assert banned not in never[:, 1:]
    second = run(two_stacks("gpt2"), source[:1], target=torch.tensor([[2]])).logits[0, 0].topk(2).indices[1]
    assert never[0, 1] == second


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": token_ids(3, 2)}, "one target for each of 2 texts"),
        ({"target": "text"}, "no tokenizer for its decoder"),
        ({"target": token_ids(1, 14)}, "longer than the model's context of 13"),
    ],
)
def test_targets_that_cannot_be_continued(settings, message):
    with pytest.raises(InputError, match=message):
        writes(two_stacks("gpt2"), token_ids(2, 3), **settings)


def test_a_decoder_whose_start_nobody_knows():
    config = replace(two_stacks("gpt2").config, target_start=None)
    transformer = Transformer(config)
    with pytest.raises(InputError, match="what its decoder's input begins with"):
        writes(transformer, token_ids(1, 3))
    assert writes(transformer, token_ids(1, 3), 2, target=torch.tensor([4])).shape == (1, 3)


def test_a_single_stack_has_no_target_to_continue():
    with pytest.raises(InputError, match="one stack, which continues its prompt"):
        writes(model("gpt2"), token_ids(1, 3), target=token_ids(1, 3))
