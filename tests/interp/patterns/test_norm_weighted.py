"""Attention weighted by the norm of what is written: against the vectors themselves, one by one."""

from itertools import product

import pytest
import torch

from interp import TokenBatch, run
from interp.patterns.norm_weighted import NormWeighted
from tests.tiny import TWO_STACKS, two_stacks, variant
from tests.tiny import model as tiny_model

ROWS = [[5, 7, 5, 2, 9, 11], [3, 1, 4]]


def by_hand(model, stack: str, name: str, layer: int, seen) -> torch.Tensor:
    """A_ij ||v_j W_O|| over the row's sum, a vector at a time."""
    block = model.stack(stack).blocks[layer]
    attn = (block.attention if name == "attn" else block.cross).layer
    pattern, values = (seen[f"{stack}.{layer}.{name}.{site}"] for site in ("pattern", "v"))
    found = pattern.clone()
    for prompt, head, key in product(*map(range, (*pattern.shape[:2], pattern.shape[3]))):
        value = values[prompt, key, head * values.shape[2] // pattern.shape[1]]
        found[prompt, head, :, key] *= (value @ attn.W_O[head]).norm()
    return found / found.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "sandwich"])
def test_shares_are_those_of_the_written_vectors(kind):
    model, texts = (variant if kind == "sandwich" else tiny_model)(kind), TokenBatch.from_rows(ROWS)
    (stack,) = model.config.stacks
    sites = [f"{stack}.*.attn.{site}" for site in ("pattern", "v")]
    seen = run(model, texts, capture=sites)
    found = run(NormWeighted(model), texts, capture=f"{stack}.*.attn.pattern").activations
    assert len(found) == model.config.n_layers
    for layer, weighted in enumerate(found.values()):
        torch.testing.assert_close(weighted, by_hand(model, stack, "attn", layer, seen))
        assert (weighted - seen[f"{stack}.{layer}.attn.pattern"]).abs().max() > 0.01


@pytest.mark.parametrize(("stack", "name"), [("encoder", "attn"), ("decoder", "attn"), ("decoder", "cross_attn")])
def test_each_attention_of_two_stacks(stack, name):
    model = two_stacks(next(iter(TWO_STACKS)))
    source, target = TokenBatch.from_rows(ROWS), TokenBatch.from_rows([[1, 2, 3], [4, 5]])
    sites = [f"{stack}.*.{name}.{site}" for site in ("pattern", "v")]
    seen = run(model, source, capture=sites, target=target)
    one = NormWeighted(model, stack, "cross" if name == "cross_attn" else "self")
    found = run(one, source, capture=sites[0], target=target)
    torch.testing.assert_close(found[f"{stack}.1.{name}.pattern"], by_hand(model, stack, name, 1, seen))


def test_a_key_that_says_nothing_gets_nothing():
    """However much a head attends to it."""
    model, texts = tiny_model("gpt2"), TokenBatch.from_rows(ROWS[:1])
    with torch.no_grad():
        model.last.blocks[0].attn.W_O[0].zero_()
    found = run(NormWeighted(model), texts, capture="decoder.0.attn.pattern")["decoder.0.attn.pattern"]
    assert found[0, 0].abs().max() == 0
    torch.testing.assert_close(found[0, 1].sum(-1), torch.ones(6, dtype=found.dtype))
