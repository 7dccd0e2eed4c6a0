"""Estimates of hidden keys: against plain autograd with whole forward passes, and against the exact engine."""

from dataclasses import replace

import pytest
import torch

from interp import TokenBatch, Transformer, TransformerConfig, run
from interp.patching import Claim, knock_out
from interp.patching.claimed_texts import edits_of
from interp.patching.gradients import claimed_keys
from interp.patching.gradients.claimed_keys import estimated_knock_out
from interp.patching.patch_sites import PatchSite
from tests.interp.patching.test_knock_out import CLAIMS, ROWS, read_anywhere
from tests.tiny import STACKS, TWO_STACKS, randomise, token_ids, two_stacks
from tests.tiny import model as tiny_model


def plain(model, texts, claims: list[Claim], output, target=None, **where) -> torch.Tensor:
    """One whole backward pass per claim, times the change of z in one whole forward pass per head."""
    site, scores = (PatchSite.from_name(model, name, **where) for name in ("z", "scores"))
    final, result = f"{[*model.config.stacks][-1]}.resid_final", []
    for claim in claims:
        out = run(model, texts, capture=[*site.names, final], target=target, grad=True)
        value = claim.read.value(output(out[final][claim.prompt, claim.read.positions]))
        gradients = torch.autograd.grad(value, [out[name] for name in site.names])
        drops = torch.zeros(len(site.names), site.size("head"), dtype=torch.float64)
        for layer, name in enumerate(site.names):
            for head in range(drops.shape[1]):
                edit = edits_of(scores, [(claim.prompt, claim, [(layer, head)])])
                dz = run(model, texts, capture=name, edit=edit, target=target)[name] - out[name]
                drops[layer, head] = -(dz * gradients[layer]).sum()
        result.append(drops)
    return torch.stack(result).detach()


ALL = [(kind, claimed_keys.BUDGET) for kind in ("llama", "bert", "post-norm decoder")]


@pytest.mark.parametrize(("kind", "budget"), [("gpt2", 1), ("grouped encoder", 1), *ALL])  # one read-out a pass, or all
def test_estimates_are_the_change_of_z_times_its_gradient(kind, budget, monkeypatch):
    monkeypatch.setattr(claimed_keys, "_WEIGHTS", 300 if budget == 1 else 1 << 20)
    stack = STACKS.get(kind, replace(STACKS["rotary encoder"], n_kv_heads=2))
    model = Transformer(TransformerConfig(**{"decoder" if stack.causal else "encoder": stack}, output="none")).double()
    probe = torch.nn.Linear(model.config.d_model, 29).double()
    randomise(model)
    randomise(probe, 1)
    texts, claims = TokenBatch.from_rows(ROWS), read_anywhere(model, 2)
    claims += [replace(claims[0], how="remove"), replace(claims[3], how="hide", others=None)]  # read as others are
    result = estimated_knock_out(model, texts, claims, probe, budget=budget)
    expected = plain(model, texts, claims, probe)
    assert (expected.abs().amax((1, 2)) > 1e-4).sum() > 4
    torch.testing.assert_close(result.drops, expected, rtol=1e-9, atol=1e-9)
    final = run(model, texts, capture="*.resid_final").activations
    logits = probe(next(iter(final.values())))
    values = torch.stack([claim.read.value(logits[claim.prompt, claim.read.positions]) for claim in claims])
    torch.testing.assert_close(result.values, values)


@pytest.mark.parametrize(("stack", "attention"), [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")])
def test_two_stacks_are_differentiated_as_one(stack, attention):
    model = two_stacks(next(iter(TWO_STACKS)))
    source, target = token_ids(2, 6, d_vocab=19), token_ids(2, 7)
    keys = torch.eye(7 if (stack, attention) == ("decoder", "self") else 6, dtype=torch.bool)[:1]
    hidden = [each for each in read_anywhere(model, 2) if each.how == "hide"]
    claims = [Claim(each.prompt % 2, each.queries.clamp(max=5)[:1], keys, each.read) for each in hidden]
    where = {"target": target, "stack": stack, "attention": attention}
    expected = plain(model, source, claims, model.output, **where)
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(estimated_knock_out(model, source, claims, **where).drops, expected)


def test_own_next_tokens_are_read_where_a_claim_says_nothing():
    model, texts = tiny_model("llama"), TokenBatch.from_rows(ROWS)
    estimate = estimated_knock_out(model, texts, CLAIMS).drops
    exact = knock_out(model, texts, CLAIMS)
    assert torch.corrcoef(torch.stack([estimate.flatten(), exact.flatten()]))[0, 1] > 0.7
