"""Estimates of hidden keys: against plain autograd with whole forward passes, and against the exact engine."""

from dataclasses import replace

import pytest
import torch

from interp import InputError, TokenBatch, Transformer, TransformerConfig, run
from interp.patching.gradients import claimed_keys
from interp.patching.gradients.claimed_keys import estimated_knock_out
from interp.patching.knockout import Claim, edits_of, knock_out
from interp.patching.patch_sites import PatchSite
from tests.interp.patching.test_knock_out import CLAIMS, ROWS, read_anywhere
from tests.tiny import STACKS, TWO_STACKS, randomise, token_ids, two_stacks
from tests.tiny import model as tiny_model


def plain(model, texts, claims: list[Claim], output, **where) -> torch.Tensor:
    """One whole backward pass a claim, times the change of z in one whole forward pass a head."""
    site = PatchSite.of(model, "z", **where)
    target = where.pop("target", None)
    found = []
    for claim in claims:
        here = run(model, texts, capture=[*site.names, final_site(model)], grad=True)
        value = claim.read.value(output(here[final_site(model)][claim.prompt, claim.read.positions]))
        gradients = torch.autograd.grad(value, [here[name] for name in site.names])
        heads = model.last.config.n_heads
        own = torch.zeros(len(site.names), heads, dtype=torch.float64)
        for layer, name in enumerate(site.names):
            for head in range(heads):
                edit = edits_of(PatchSite.of(model, "scores"), [(claim.prompt, claim, [(layer, head)])])
                dz = run(model, texts, capture=name, edit=edit)[name] - here[name]
                own[layer, head] = -(dz * gradients[layer]).sum()
        found.append(own)
    assert target is None
    return torch.stack(found).detach()


def estimated(*given, **named) -> torch.Tensor:
    return estimated_knock_out(*given, **named).drops


def final_site(model) -> str:
    return f"{[*model.config.stacks][-1]}.resid_final"


def probed(kind: str, n_layers: int = 2) -> tuple[Transformer, torch.nn.Linear]:
    grouped = replace(STACKS["rotary encoder"], n_kv_heads=2)
    stack = replace(STACKS.get(kind, grouped), n_layers=n_layers)
    model = Transformer(TransformerConfig(**{"decoder" if stack.causal else "encoder": stack}, output="none")).double()
    randomise(model)
    probe = torch.nn.Linear(model.config.d_model, 29).double()
    randomise(probe, 1)
    return model, probe


@pytest.mark.parametrize("budget", [1, claimed_keys.BUDGET])  # one read-out a pass; all
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "post-norm decoder", "grouped encoder"])
def test_estimates_are_the_change_of_z_times_its_gradient(kind, budget, monkeypatch):
    monkeypatch.setattr(claimed_keys, "_WEIGHTS", 300 if budget == 1 else 1 << 20)
    model, probe = probed(kind)
    texts, claims = TokenBatch.from_rows(ROWS), read_anywhere(model, 2)
    claims += [replace(claims[0], how="remove"), replace(claims[1], how="hide", others=None)]  # read as others are
    found = estimated_knock_out(model, texts, claims, probe, budget=budget)
    expected = plain(model, texts, claims, probe)
    assert (expected.abs().amax((1, 2)) > 1e-4).sum() > 4
    torch.testing.assert_close(found.drops, expected, rtol=1e-9, atol=1e-9)
    logits = probe(run(model, texts, capture=final_site(model))[final_site(model)])
    values = torch.stack([claim.read.value(logits[claim.prompt, claim.read.positions]) for claim in claims])
    torch.testing.assert_close(found.values, values)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_small_changes_are_estimated_to_first_order(kind):
    """Where heads write a tenth, effects are about a tenth, and what the estimate misses a hundredth."""
    model, probe = probed(kind)
    texts, claims = TokenBatch.from_rows(ROWS), read_anywhere(model, 2)
    missed, sizes = [], []
    for scale in (1e-3, 1e-4):
        scaled = Transformer(model.config).double()
        scaled.load_state_dict(model.state_dict())
        with torch.no_grad():
            for block in scaled.last.blocks:
                block.attn.out.weight.mul_(scale)
        exact, estimate = (way(scaled, texts, claims, probe) for way in (knock_out, estimated))
        missed.append((exact - estimate).abs().max())
        sizes.append(exact.abs().max())
    assert sizes[0] > 1e-4
    assert 5 < sizes[0] / sizes[1] < 20
    assert 50 < missed[0] / missed[1] < 200


def test_own_next_tokens_are_read_where_a_claim_says_nothing():
    model, texts = tiny_model("llama"), TokenBatch.from_rows(ROWS)
    found = estimated(model, texts, CLAIMS)
    alone = torch.cat([estimated(model, texts, [each]) for each in CLAIMS])
    torch.testing.assert_close(found, alone)
    exact = knock_out(model, texts, CLAIMS)
    assert torch.corrcoef(torch.stack([found.flatten(), exact.flatten()]))[0, 1] > 0.7


def test_the_last_layer_of_attention_alone_is_exact_but_for_the_read_out():
    """What is read is linear in z: nothing is left to approximate."""
    model, texts = tiny_model("attention only"), TokenBatch.from_rows(ROWS)

    def logit(said):
        return said[..., 3].sum(-1)

    claims = [replace(each, read=replace(each.read, value=logit)) for each in read_anywhere(model, 3)]
    exact, estimate = (way(model, texts, claims)[:, -1] for way in (knock_out, estimated))
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(estimate, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("stack", "attention"), [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")])
def test_two_stacks_are_differentiated_as_one(stack, attention):
    """To first order, as exact effects of heads that write next to nothing are."""
    model = two_stacks(next(iter(TWO_STACKS)))
    with torch.no_grad():
        for block in model.stack(stack).blocks:
            (block.attn if attention == "self" else block.cross_attn).out.weight.mul_(1e-4)
    source, target = token_ids(2, 6, d_vocab=19), token_ids(2, 7)
    claims = [
        Claim(
            each.prompt % 2,
            each.queries.clamp(max=5).unique()[:1],
            torch.eye(7 if attention == "self" and stack == "decoder" else 6, dtype=torch.bool)[:1],
            each.read,
        )
        for each in read_anywhere(model, 2)
        if each.how == "hide"
    ]
    where = {"target": target, "stack": stack, "attention": attention}
    exact, estimate = (way(model, source, claims, **where) for way in (knock_out, estimated))
    assert exact.abs().max() > 1e-7
    torch.testing.assert_close(estimate, exact, rtol=0.02, atol=0.001 * float(exact.abs().max()))


def test_bad_claims_are_refused():
    with pytest.raises(InputError, match="expected 0-3, rows that a token follows"):
        estimated_knock_out(
            tiny_model("gpt2"), TokenBatch.from_rows(ROWS), [replace(CLAIMS[1], queries=torch.tensor([4]))]
        )
