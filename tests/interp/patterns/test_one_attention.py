"""Attention weighted by norms, against single vectors; and single rows, against whole patterns."""

from itertools import product

import pytest
import torch
from tiny import TWO_STACKS, VARIANTS, rows, two_stacks, variant
from tiny import model as tiny_model

from interp import TokenBatch, run
from interp.patterns.one_attention import FewRows, NormWeighted, read_patterns
from interp.patterns.rows import rows_at

ROWS = [[5, 7, 5, 2, 9, 11], [3, 1, 4]]


def by_hand(model, stack: str, name: str, layer: int, out) -> torch.Tensor:
    """A_ij ||v_j W_O|| divided by the row's sum, one vector at a time."""
    block = model.stack(stack).blocks[layer]
    attn = (block.attention if name == "attn" else block.cross).layer
    pattern, values = (out[f"{stack}.{layer}.{name}.{site}"] for site in ("pattern", "v"))
    result = pattern.clone()
    for prompt, head, key in product(*map(range, (*pattern.shape[:2], pattern.shape[3]))):
        value = values[prompt, key, head * values.shape[2] // pattern.shape[1]]
        result[prompt, head, :, key] *= (value @ attn.W_O[head]).norm()
    return result / result.sum(-1, keepdim=True)


TWO = ("encoder.attn", "decoder.attn", "decoder.cross_attn")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "sandwich", *TWO])
def test_shares_are_those_of_the_written_vectors(kind):
    source, target = TokenBatch.from_rows(ROWS), TokenBatch.from_rows([[1, 2, 3], [4, 5]]) if kind in TWO else None
    if kind in TWO:
        model, (stack, name) = two_stacks(next(iter(TWO_STACKS))), kind.split(".")
    else:
        model, name = (variant if kind == "sandwich" else tiny_model)(kind), "attn"
        (stack,) = model.config.stacks
    sites = [f"{stack}.*.{name}.{site}" for site in ("pattern", "v")]
    out = run(model, source, capture=sites, target=target)
    weighted_model = NormWeighted(model, stack, "cross" if name == "cross_attn" else "self")
    patterns = run(weighted_model, source, capture=sites[0], target=target).activations
    assert len(patterns) == model.config.n_layers
    for layer, weighted in enumerate(patterns.values()):
        torch.testing.assert_close(weighted, by_hand(model, stack, name, layer, out))
        assert (weighted - out[f"{stack}.{layer}.{name}.pattern"]).abs().max() > 0.01


def test_a_key_that_says_nothing_gets_nothing():
    """However much a head attends to it."""
    model, texts = tiny_model("gpt2"), TokenBatch.from_rows(ROWS[:1])
    with torch.no_grad():
        model.last.blocks[0].attn.W_O[0].zero_()
    pattern = run(NormWeighted(model), texts, capture="decoder.0.attn.pattern")["decoder.0.attn.pattern"]
    assert pattern[0, 0].abs().max() == 0
    torch.testing.assert_close(pattern[0, 1].sum(-1), torch.ones(6, dtype=pattern.dtype))


LENGTHS = (6, 3, 5)
PROMPT = torch.tensor([0, 0, 0, 1, 2, 2, 2])
QUERY = torch.tensor([0, 5, 3, 2, 4, 4, 1])  # unordered, with one row twice


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_rows_are_those_of_whole_patterns(name, causal):
    model, tokens = variant(name, causal=causal), rows(LENGTHS)
    (stack,) = model.config.stacks
    picked = FewRows.from_tokens(model, tokens, stack, norms=True)
    whole = read_patterns(model, tokens, f"{stack}.*.attn.pattern")
    _, weighted = NormWeighted(model).with_plain(tokens)
    for pattern, result in ((whole, picked.rows(PROMPT, QUERY)), (weighted, picked.rows(PROMPT, QUERY, by_norm=True))):
        torch.testing.assert_close(result, rows_at(pattern, PROMPT, QUERY), rtol=0, atol=1e-6)
    assert (whole - weighted).abs().max() > 0.01


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_rows_of_either_of_two_stacks(stack):
    model = two_stacks(next(iter(TWO_STACKS)))
    source, target = (rows(LENGTHS, d_vocab=19, seed=seed) for seed in (0, 1))
    result = FewRows.from_tokens(model, source, stack, target).rows(PROMPT, QUERY)
    whole = read_patterns(model, source, f"{stack}.*.attn.pattern", target)
    torch.testing.assert_close(result, rows_at(whole, PROMPT, QUERY), rtol=0, atol=1e-6)
    none = torch.zeros(0, dtype=torch.long)
    assert len(FewRows.from_tokens(model, source, stack, target).rows(none, none)) == 0
