"""Any `interp.Model` can be run, edited and continued like a `Transformer`; a pass may end early."""

import pytest
import torch
from covering import pairwise
from refusals import refusal
from tiny import STACKS, TWO_STACKS, Whole, model, ragged_pairs, token_ids, two_stacks
from torch import nn

from interp import InputError, Model, Run, logit_difference, patch, run, sites, sweep, zero
from interp.attribution import composition_scores, direct_logit_attribution, head_results, logit_lens
from interp.patching import Receiver, attribution_patching, path_patch, top_cells
from interp.patching.ablation import ablate
from interp.patching.claimed_texts import Claim, Read
from interp.patching.knockout import knock_out, knock_out_by_forward
from models.initialisation import untrained


@pytest.fixture
def whole() -> Whole:
    return Whole(model("gpt2"))


def assert_same(first: Run, second: Run) -> None:
    assert [*first.activations] == [*second.activations]
    assert all(torch.equal(first[site], second[site]) for site in first.activations)


def test_it_runs_as_what_it_is(whole):
    ids, z = token_ids(2, 5), "decoder.0.attn.z"
    assert isinstance(whole, Model)
    assert not isinstance(nn.Linear(2, 3), Model)
    assert untrained(whole, 1).dtype == torch.float64
    assert [*sites(whole)] == [*sites(whole.inner)]
    value = run(whole, token_ids(2, 5, seed=1), z)[z]
    for settings in (
        {"capture": "*"},
        {"capture": "logits", "edit": {z: zero(head=1, position=2)}},
        {"capture": "logits", "edit": {z: patch(value)}},
        {"until": "decoder.*.attn.pattern"},
    ):
        assert_same(*(run(each, ids, **settings) for each in (whole, whole.inner)))
    assert "no site 'decoder.7.mlp_out'" in refusal(run, whole, ids, capture="decoder.7.mlp_out")


@pytest.mark.parametrize("by", [("layer", "head"), ("layer", "head", "position")])
def test_a_sweep_goes_one_forward_a_cell(whole, by):
    result, engine = (sweep(each, ragged_pairs(), logit_difference(), "z", by) for each in (whole, whole.inner))
    torch.testing.assert_close(result.effects(), engine.effects(), equal_nan=True)


def test_knock_outs_go_one_forward_a_claim(whole):
    read = Read(torch.tensor([3]), lambda logits: logits[..., 0].sum(-1))
    claims, ids = [Claim(0, torch.tensor([3]), torch.arange(5) == torch.tensor([[1]]), read)], token_ids(1, 5)
    result = knock_out(whole, ids, claims)
    assert torch.equal(result, knock_out_by_forward(whole.inner, ids, claims))
    torch.testing.assert_close(result, knock_out(whole.inner, ids, claims))


def test_what_needs_parts_says_so_in_one_line(whole):
    pairs, metric, ids = ragged_pairs(), logit_difference(), token_ids(1, 5)
    for call, *inputs in (
        (ablate, pairs, metric),
        (attribution_patching, pairs, metric, {"z": ("layer", "head")}),
        (composition_scores,),
        (direct_logit_attribution, ids, 3),
        (head_results, ids, 0),
        (logit_lens, ids),
        (path_patch, pairs, metric, [Receiver("logits")]),
        (top_cells, pairs, metric),
    ):
        message = refusal(call, whole, *inputs)
        assert "another library runs this model as a whole" in message
        assert "sweep_by_forward" in message


EARLY, LATE = "decoder.0.attn_out", "decoder.1.attn.z"
SITES = ["resid_pre", "attn.z", "attn.pattern", "resid_post"]


@pytest.mark.parametrize(("name", "site", "grad"), pairwise(STACKS, SITES, (False, True)))
def test_it_has_what_a_whole_pass_has(name, site, grad):
    built, ids = model(name), token_ids(2, 5)
    pattern = f"{next(iter(built.config.stacks))}.*.{site}"
    out, whole = run(built, ids, until=pattern, grad=grad), run(built, ids, capture=pattern, grad=grad)
    assert_same(out, whole)
    assert all(value.requires_grad == grad for value in out.activations.values())
    with pytest.raises(InputError, match=r"this pass ended with '.*\.\*\..*'"):
        _ = out.logits


@pytest.mark.parametrize("name", TWO_STACKS)
def test_an_encoders_site_ends_it_before_the_decoder(name):
    built = two_stacks(name)
    texts = {"tokens": token_ids(2, 5, d_vocab=19), "target": token_ids(2, 4)}
    names: list[str] = []
    for part, module in built.named_modules():
        module.register_forward_hook(lambda *_, part=part: names.append(part))
    for pattern in ("encoder.*.attn.pattern", "decoder.*.cross_attn.pattern", "*.pattern"):
        names.clear()
        out = run(built, until=pattern, **texts)
        assert any(each.startswith("stacks.decoder") for each in names) == (not pattern.startswith("encoder"))
        assert "output" not in names
        assert_same(out, run(built, capture=pattern, **texts))


def test_what_comes_after_it_is_refused():
    inputs, ended = (model("gpt2"), token_ids(2, 5)), f"before the pass ended with '{EARLY}': {LATE}"
    assert f"never fired {ended}" in refusal(run, *inputs, edit={LATE: zero()}, until=EARLY)
    assert f"not passed {ended}" in refusal(run, *inputs, capture=LATE, until=EARLY)
    assert "no site 'decoder.7.attn.z'" in refusal(run, *inputs, until="decoder.7.attn.z")


def test_an_edit_may_run_the_model_until_somewhere_itself():
    built, ids, z, last = model("gpt2"), token_ids(2, 5), "decoder.0.attn.z", "decoder.1.attn.pattern"
    out = run(built, ids, edit={z: lambda _: run(built, ids, until=z)[z]}, until=last)
    assert torch.equal(out[last], run(built, ids, until=last)[last])
