"""Generation on the cache is what recomputing everything would give, and draws only what it may."""

import pytest
import torch
from tiny import model, token_ids

from interp import InputError, TokenBatch, generate, run
from interp.generate import choose

PROBABILITIES = torch.tensor([[0.05, 0.5, 0.15, 0.3]])


def by_recomputing(transformer, ids: torch.Tensor, steps: int, temperature: float = 0.0) -> torch.Tensor:
    """The continuation with a whole pass a token over the last n_ctx tokens."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        logits = run(transformer, ids[:, -transformer.config.n_ctx :]).logits[:, -1]
        new = choose(logits, temperature=temperature, generator=generator)
        ids = torch.cat([ids, new[:, None]], 1)
    return ids


@pytest.mark.parametrize("name", ["gpt2", "llama", "sinusoidal", "no positions", "post-norm decoder"])
@pytest.mark.parametrize("steps", [1, 8, 9, 20])  # 5 + 8 tokens fill the context of 13
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_the_cache_gives_what_recomputing_gives_also_beyond_the_context(name, steps, temperature):
    transformer, prompt = model(name), token_ids(3, 5)
    ids = generate(transformer, prompt, steps, temperature=temperature, seed=0)
    assert ids.shape == (3, 5 + steps)
    assert torch.equal(ids, by_recomputing(transformer, prompt, steps, temperature))


def test_a_prompt_that_fills_the_context():
    transformer, prompt = model("gpt2"), token_ids(2, 13)
    assert torch.equal(generate(transformer, prompt, 3), by_recomputing(transformer, prompt, 3))


def test_nothing_new_gives_the_prompt():
    prompt = token_ids(2, 5)
    assert torch.equal(generate(model("gpt2"), prompt, 0), prompt)


def test_generation_ends_when_every_prompt_has_stopped():
    transformer, prompt = model("gpt2"), token_ids(3, 5)
    free = generate(transformer, prompt, 30)
    stop = int(free[0, 9])
    first = [(row == stop).nonzero()[0].item() if (row == stop).any() else 30 for row in free[:, 5:]]
    stopped = generate(transformer, prompt, 30, stop=stop)
    assert torch.equal(stopped, free[:, : 5 + min(30, max(first) + 1)])
    alone = generate(transformer, prompt[:1], 30, stop=stop)
    assert alone.shape[1] == 5 + first[0] + 1 < 35


def test_a_seed_repeats_its_draws_and_disturbs_no_other():
    transformer, prompt = model("gpt2"), token_ids(2, 5)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one, again, other = (generate(transformer, prompt, 8, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def draws(count: int = 4000, **settings) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = PROBABILITIES.log().expand(count, 4)
    drawn = choose(logits, generator=generator, **settings)
    return torch.bincount(drawn, minlength=4) / count


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
    [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"max_new_tokens": -1}],
)
def test_settings_out_of_range(settings):
    with pytest.raises(InputError, match="expected"):
        generate(model("gpt2"), token_ids(1, 3), **settings)


def test_prompts_of_different_lengths():
    with pytest.raises(InputError, match=r"got lengths \[3, 1\]"):
        generate(model("gpt2"), TokenBatch.from_rows([[1, 2, 3], [4]]))


@pytest.mark.parametrize("transformer", [model("bert"), model("gpt2", output="none")], ids=["encoder", "no output"])
def test_only_a_decoder_with_an_output_layer_writes(transformer):
    with pytest.raises(InputError, match="only a decoder with an output layer"):
        generate(transformer, token_ids(1, 3))
