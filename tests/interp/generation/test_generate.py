"""Generation with the cache equals recomputing everything, and draws only allowed tokens."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from covering import pairwise
from tiny import STACKS, model, randomise, rows, token_ids

from interp import InputError, TokenBatch, Transformer, TransformerConfig, generate, run
from interp.attention import CrossAttention
from interp.config import Writing
from interp.generation.generate import choose, streams
from interp.transformer import Stack

SOURCES = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]]
PROBABILITIES = torch.tensor([[0.05, 0.5, 0.15, 0.3]])


def writes(*arguments, **settings) -> torch.Tensor:
    return generate(*arguments, **settings).ids


def two_stacks(kind: str = "gpt2", target_start: int | None = 2, **writing) -> Transformer:
    """An encoder and a decoder with blocks of `STACKS[kind]`."""
    stack = STACKS[kind]
    encoder, decoder = replace(stack, causal=False, n_layers=3), replace(stack, causal=True, cross_attention=True)
    torch.manual_seed(0)  # `randomise` perturbs weights that are drawn, too
    built = Transformer(
        TransformerConfig(decoder, encoder, target_start=target_start, writing=Writing(**writing))
    ).double()
    randomise(built)
    return built


def by_recomputing(built, prompts: TokenBatch, steps: int, temperature: float = 0.0, target=None) -> torch.Tensor:
    """The continuation (of `target`, if given), with a whole pass per token over the last n_ctx tokens."""
    ids, rngs = prompts.ids if target is None else target, streams(0, prompts)
    for _ in range(steps):
        read = {"tokens": ids[:, -built.config.n_ctx :]} if target is None else {"tokens": prompts, "target": ids}
        new = choose(run(built, **read).logits[:, -1], temperature=temperature, streams=rngs)
        ids = torch.cat([ids, new[:, None]], 1)
    return ids


NAMES = ["gpt2", "llama", "sinusoidal", "no positions", "post-norm decoder"]
SIZES = [(5, 1), (5, 8), (5, 9), (5, 20), (13, 3), (5, 0)]  # the context is 13


@pytest.mark.parametrize(("name", "size", "temperature"), pairwise(NAMES, SIZES, (0.0, 3.0)))
def test_the_cache_gives_what_recomputing_gives_also_beyond_the_context(name, size, temperature):
    (length, steps), built = size, model(name)
    prompts = rows((length, length - 2, length))
    result = generate(built, prompts, steps, temperature=temperature, seed=0)
    assert result.n_prompt.tolist() == prompts.lengths.tolist()
    for ids, prompt in zip(result.tokens.id_lists(), prompts.id_lists(), strict=True):
        alone = by_recomputing(built, TokenBatch.from_rows([prompt]), steps, temperature)
        assert ids == alone[0].tolist()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "sinusoidal", "post-norm decoder"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_sources_of_any_lengths_give_what_recomputing_gives(kind, side):
    built, source = two_stacks(kind), TokenBatch.from_rows(SOURCES, side=side)
    ids = writes(built, source, 8)
    assert torch.equal(ids, by_recomputing(built, source, 8, target=torch.full((3, 1), 2)))
    for row, text in zip(ids, SOURCES, strict=True):
        assert torch.equal(writes(built, torch.tensor([text]), 8)[0], row)


def test_generation_ends_when_every_prompt_has_stopped():
    transformer, prompt = model("gpt2"), token_ids(3, 5)
    settings = {"temperature": 1.0, "seed": 3}
    free = writes(transformer, prompt, 40, **settings)
    stop = int(free[0, 9])
    stopped = writes(transformer, prompt, 40, stop=stop, **settings)
    ends = [first_of(row, {stop}, 5) for row in free]
    assert len({*ends}) == 3
    assert stopped.shape[1] == max(ends) + 1
    for row, whole, end in zip(stopped, free, ends, strict=True):
        assert torch.equal(row[: end + 1], whole[: end + 1])
        assert (row[end:] == stop).all()  # an ended text repeats its end
    stops = {int(free[0, 8]), int(free[0, 11])}  # several stops
    alone = writes(transformer, prompt[:1], 40, stop=stops, **settings)[0]
    assert torch.equal(alone, free[0, : first_of(free[0], stops, 5) + 1])


def first_of(row: torch.Tensor, ids: set[int], start: int) -> int:
    return next(index for index, id in enumerate(row.tolist()) if index >= start and id in ids)


@pytest.mark.parametrize("two", [False, True], ids=["decoder", "encoder and decoder"])
def test_a_prompt_is_sampled_in_any_batch_as_alone_and_its_copies_are_not_alike(two):
    transformer = two_stacks() if two else model("gpt2")
    prompts, how = [[5, 6, 7], [8, 9], [5, 6, 7], [3, 4, 5, 6]], {"temperature": 2.0, "top_k": 20, "seed": 4}
    before = torch.get_rng_state()
    batch = TokenBatch.from_rows(prompts)
    texts, reseeded = (generate(transformer, batch, 6, **how | seed).tokens.id_lists() for seed in ({}, {"seed": 5}))
    for row in (0, 1, 3):
        assert generate(transformer, torch.tensor([prompts[row]]), 6, **how).ids[0].tolist() == texts[row]
    assert texts[2] != texts[0]
    assert reseeded != texts
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("settings", [{"temperature": 1e-320}, {"temperature": 1.0, "top_p": 1e-300}], ids=str)
def test_what_is_next_to_nothing_takes_the_likeliest(settings):
    transformer, prompt = model("gpt2"), token_ids(3, 5)
    assert torch.equal(writes(transformer, prompt, 6, **settings), writes(transformer, prompt, 6))
    single = model("gpt2", dtype=torch.float32)
    for penalty in (1e-300, 1e300):  # earlier tokens come always, or never again
        ids = writes(single, prompt, 6, repetition_penalty=penalty, **settings)
        assert torch.isin(ids[0, 5:], ids[0, :5]).float().mean() == (penalty < 1)


def draws(count: int = 4000, **settings) -> torch.Tensor:
    rngs = streams(0, TokenBatch.from_ids(torch.zeros(count, 1, dtype=torch.long)))
    logits = PROBABILITIES.log().expand(count, 4)
    return torch.bincount(choose(logits, streams=rngs, **settings), minlength=4) / count


SQUARED = (PROBABILITIES[0] ** 2 / (PROBABILITIES**2).sum()).tolist()


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, PROBABILITIES[0].tolist()),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, SQUARED),
        ({"top_k": 2}, [0, 50, 0, 30]),
        ({"top_k": 9, "top_p": 1.0}, [5, 50, 15, 30]),
        ({"top_p": 0.01}, [0, 1, 0, 0]),
        ({"top_p": 0.79}, [0, 50, 0, 30]),
        ({"top_p": 0.81}, [0, 50, 15, 30]),
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # the first of the remaining two has 5/8
    ],
)
def test_draws_follow_the_tempered_softmax_of_exactly_the_likeliest(settings, weights):
    frequency, weights = draws(**{"temperature": 1.0, **settings}), torch.tensor(weights, dtype=torch.float32)
    assert torch.equal(frequency > 0, weights > 0)
    torch.testing.assert_close(frequency, weights / weights.sum(), atol=0.03, rtol=0)


def test_the_source_is_read_once():
    parts = (Stack, "forward"), (CrossAttention, "project_keys_values")
    spies = [mock.patch.object(*part, autospec=True, side_effect=getattr(*part)) for part in parts]
    with spies[0] as forward, spies[1] as project:
        writes(two_stacks(), token_ids(2, 7), 9)
    assert (forward.call_count, project.call_count) == (1, two_stacks().config.n_layers)


def test_a_text_ends_where_its_decoders_context_is_full():
    transformer, source = two_stacks(), token_ids(2, 7)
    assert torch.equal(writes(transformer, source, 100), writes(transformer, source, 12))
    assert writes(transformer, source, 100).shape == (2, 13)
    full, whole = token_ids(2, 13), writes(transformer, source, 8)
    assert torch.equal(writes(transformer, source, target=full), full)
    assert torch.equal(writes(transformer, source, 5, target=whole[:, :4]), whole)  # the given beginning is continued
    end = int(whole[0, 1])
    ended = writes(two_stacks(ends=(end, 28)), source[:1], 8)
    assert torch.equal(ended, whole[:1, : 1 + first_of(whole[0], {end, 28}, 1)])
    assert torch.equal(writes(two_stacks(ends=(end,)), source, 8, stop=()), whole)


def test_what_is_always_first_last_and_never_written():
    source, transformer = token_ids(3, 7), two_stacks()
    ids = writes(two_stacks(first=11, last=12), source, 6)
    assert torch.equal(ids[:, :-1], writes(transformer, source, 4, target=torch.tensor([2, 11])))
    assert (ids[:, -1] == 12).all()
    banned, second = run(transformer, source[:1], target=torch.tensor([[2]])).logits[0, 0].topk(2).indices.tolist()
    never = writes(two_stacks(never=(banned,)), source, 6)
    assert banned not in never[:, 1:]
    assert never[0, 1] == second


OUT_OF_RANGE = [{"temperature": -1.0}, {"top_k": 0}, {"top_k": 1.5}, {"top_p": 0.0}, {"top_p": 1.5}]
OUT_OF_RANGE += [{"max_new_tokens": -1}, {"repetition_penalty": 0.0}]
REFUSED = [
    *((lambda: model("gpt2"), settings, "expected") for settings in OUT_OF_RANGE),
    (lambda: model("bert"), {}, "only a decoder with an output layer"),
    (lambda: model("gpt2", output="none"), {}, "only a decoder with an output layer"),
    (lambda: model("gpt2"), {"target": token_ids(1, 3)}, "one stack, which reads one text"),
    (lambda: two_stacks(target_start=None), {}, "what its decoder's input begins with"),
]


@pytest.mark.parametrize(("make", "settings", "message"), REFUSED)
def test_what_cannot_be_written_is_refused(make, settings, message):
    with pytest.raises(InputError, match=message):
        writes(make(), token_ids(2, 3), **settings)
