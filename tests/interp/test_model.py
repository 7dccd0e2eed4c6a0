"""Whatever keeps `interp.Model` is run, changed and continued as a `Transformer`; a pass may end early."""

import pytest
import torch
from covering import pairwise
from tiny import STACKS, TWO_STACKS, Whole, model, ragged_pairs, token_ids, two_stacks
from torch import nn

from interp import InputError, Model, logit_difference, patch, run, sites, sweep, zero
from interp.attribution import composition_scores, direct_logit_attribution, head_results, logit_lens
from interp.patching import Receiver, attribution_patching, path_patch, top_cells
from interp.patching.ablation import ablate
from interp.patching.claimed_texts import Claim, Read
from interp.patching.knockout import knock_out, knock_out_by_forward
from models.initialisation import untrained


@pytest.fixture
def whole() -> Whole:
    return Whole(model("gpt2"))


def test_it_runs_as_what_it_is(whole):
    ids, z = token_ids(2, 5), "decoder.0.attn.z"
    assert isinstance(whole, Model)
    assert not isinstance(nn.Linear(2, 3), Model)
    assert untrained(whole, 1).dtype == torch.float64
    assert [*sites(whole)] == [*sites(whole.inner)]
    for settings in ({"capture": "*"}, {"edit": {z: zero(head=1, position=2)}}, {"until": "decoder.*.attn.pattern"}):
        found, expected = (run(each, ids, **settings) for each in (whole, whole.inner))
        assert found.activations.keys() == expected.activations.keys()
        assert all(torch.equal(found[site], expected[site]) for site in found.activations)
    other = run(whole, token_ids(2, 5, seed=1), z)[z]
    assert torch.equal(
        run(whole, ids, edit={z: patch(other)}).logits, run(whole.inner, ids, edit={z: patch(other)}).logits
    )
    with pytest.raises(InputError, match=r"no site 'decoder.7.mlp_out'"):
        run(whole, ids, capture="decoder.7.mlp_out")


@pytest.mark.parametrize("by", [("layer", "head"), ("layer", "head", "position")])
def test_a_sweep_goes_one_forward_a_cell(whole, by):
    found, engine = (sweep(each, ragged_pairs(), logit_difference(), "z", by) for each in (whole, whole.inner))
    torch.testing.assert_close(found.effects(), engine.effects(), equal_nan=True)


def test_knock_outs_go_one_forward_a_claim(whole):
    read = Read(torch.tensor([3]), lambda logits: logits[..., 0].sum(-1))
    claims, ids = [Claim(0, torch.tensor([3]), torch.arange(5) == torch.tensor([[1]]), read)], token_ids(1, 5)
    found = knock_out(whole, ids, claims)
    assert torch.equal(found, knock_out_by_forward(whole.inner, ids, claims))
    torch.testing.assert_close(found, knock_out(whole.inner, ids, claims))


def test_what_needs_parts_says_so_in_one_line(whole):
    pairs, metric, ids = ragged_pairs(), logit_difference(), token_ids(1, 5)
    for refused in (
        lambda: ablate(whole, pairs, metric),
        lambda: attribution_patching(whole, pairs, metric, {"z": ("layer", "head")}),
        lambda: composition_scores(whole),
        lambda: direct_logit_attribution(whole, ids, 3),
        lambda: head_results(whole, ids, 0),
        lambda: logit_lens(whole, ids),
        lambda: path_patch(whole, pairs, metric, [Receiver("logits")]),
        lambda: top_cells(whole, pairs, metric),
    ):
        with pytest.raises(InputError, match=r"another library runs this model as a whole.*sweep_by_forward"):
            refused()


EARLY, LATE = "decoder.0.attn_out", "decoder.1.attn.z"
SITES = ["resid_pre", "attn.z", "attn.pattern", "resid_post"]


@pytest.mark.parametrize(("name", "site", "grad"), pairwise(STACKS, SITES, (False, True)))
def test_it_has_what_a_whole_pass_has(name, site, grad):
    built, ids = model(name), token_ids(2, 5)
    pattern = f"{next(iter(built.config.stacks))}.*.{site}"
    out, whole = run(built, ids, until=pattern, grad=grad), run(built, ids, capture=pattern, grad=grad)
    assert [*out.activations] == [*whole.activations]
    for each in out.activations:
        assert torch.equal(out[each], whole[each])
        assert out[each].requires_grad == grad
    with pytest.raises(InputError, match=r"this pass ended with '.*\.\*\..*'"):
        _ = out.logits


@pytest.mark.parametrize("name", TWO_STACKS)
def test_an_encoders_site_ends_it_before_the_decoder(name):
    built = two_stacks(name)
    given = {"tokens": token_ids(2, 5, d_vocab=19), "target": token_ids(2, 4)}
    names: list[str] = []
    for part, module in built.named_modules():
        module.register_forward_hook(lambda *_, part=part: names.append(part))
    for wanted in ("encoder.*.attn.pattern", "decoder.*.cross_attn.pattern", "*.pattern"):
        names.clear()
        out = run(built, until=wanted, **given)
        assert any(each.startswith("stacks.decoder") for each in names) == (not wanted.startswith("encoder"))
        assert "output" not in names
        whole = run(built, capture=wanted, **given)
        assert out.activations.keys() == whole.activations.keys()
        assert all(torch.equal(out[site], whole[site]) for site in out.activations)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edit": {LATE: zero()}, "until": EARLY}, f"never fired before the pass ended with '{EARLY}': {LATE}"),
        ({"capture": LATE, "until": EARLY}, f"not passed before the pass ended with '{EARLY}': {LATE}"),
        ({"until": "decoder.7.attn.z"}, r"no site 'decoder\.7\.attn\.z'"),
    ],
)
def test_what_comes_after_it_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        run(model("gpt2"), token_ids(2, 5), **settings)


def test_an_edit_may_run_the_model_until_somewhere_itself():
    built, ids, z, last = model("gpt2"), token_ids(2, 5), "decoder.0.attn.z", "decoder.1.attn.pattern"
    out = run(built, ids, edit={z: lambda _: run(built, ids, until=z)[z]}, until=last)
    assert torch.equal(out[last], run(built, ids, until=last)[last])
