"""Every way to build a stack is patched exactly: sweeps, paths, knock-outs, attribution against plain forwards."""

import pytest
import torch
from tiny import VARIANTS, ragged_pairs, variant

from interp import InputError, run
from interp.attribution import composition_scores, direct_logit_attribution
from interp.patching import attribution_patching, logit_difference

CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
PLACES, HEADS = ("layer", "position"), ("layer", "head")
EVERY = pytest.mark.parametrize("name", VARIANTS)


@pytest.mark.parametrize("name", ["buckets", "parallel", "experts"])
def test_estimates_of_what_lies_inside_add_up_to_those_around_it(name):
    model, pairs = variant(name), ragged_pairs()
    inside = (
        {"mlp.experts": ("layer", "position", "expert")} if name == "experts" else {"mlp.post": (*PLACES, "neuron")}
    )
    asked = {"embed": PLACES, "resid_pre": PLACES, "mlp_out": PLACES, **inside}
    found = {
        site: each.effect() for site, each in attribution_patching(model, pairs, logit_difference(), asked).items()
    }
    (parts,) = (found[site].sum(-2) for site in inside)  # over neurons or experts: what they add is linear in them
    torch.testing.assert_close(parts, found["mlp_out"], **CLOSE)
    torch.testing.assert_close(found["embed"], found["resid_pre"][:1], **CLOSE)
    assert parts.nan_to_num().abs().max() > 1e-4


@EVERY
def test_direct_attributions_add_up(name):
    model, batch = variant(name), ragged_pairs().clean
    right, wrong, prompt = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]), torch.arange(3)
    capped = run(model, batch).logits[prompt, batch.lengths - 1]
    logits = 2.0 * torch.atanh(capped / 2.0)  # attributed are logits before their cap
    found = direct_logit_attribution(model, batch, right, wrong)
    torch.testing.assert_close(found.values.sum(0), logits[prompt, right] - logits[prompt, wrong], **CLOSE)
    scores = composition_scores(model).nan_to_num()
    assert 0 < scores.max() <= 1 + 1e-9


def test_an_output_bias_is_a_term_of_its_own():
    model, batch = variant("parallel"), ragged_pairs().clean
    with torch.no_grad():
        model.output.bias = torch.nn.Parameter(torch.arange(29, dtype=torch.float64))
        found = direct_logit_attribution(model, batch, 7, 2)
    assert found["output.bias"].tolist() == [5, 5, 5]


def test_answers_behind_a_transform_are_refused():
    with pytest.raises(InputError, match="transforms its final stream before the output layer"):
        direct_logit_attribution(variant("parallel", causal=False), ragged_pairs().clean, 3)


@pytest.mark.parametrize("site", ["q", "k"])
@EVERY
def test_the_qk_fix_makes_the_pattern_that_the_patch_makes(name, site):
    # metric = a weighted sum over the last layer's z is linear in its pattern: the fix is then exact there
    model, pairs = variant(name), ragged_pairs()
    by = (*HEADS, "position")
    fixed = attribution_patching(model, pairs, logit_difference(), {site: by}, qk_fix=True)[site].effect()[0]
    at, pattern = f"decoder.0.attn.{site}", "decoder.0.attn.pattern"
    slopes = attribution_patching(model, pairs, logit_difference(), {"pattern": (*HEADS, "query", "key")})["pattern"]
    clean, corrupt = (run(model, batch, capture=[at, pattern]) for batch in (pairs.clean, pairs.corrupt))
    # attribution patching of the pattern is (clean - corrupt) x gradient: divide to have the gradient
    difference = (clean[pattern] - corrupt[pattern]).permute(1, 2, 3, 0)
    gradient = torch.where(difference.abs() > 1e-9, slopes.effect()[0].nan_to_num() / difference, 0)
    head, position = 1, 2
    mixed = corrupt[at].clone()
    mixed[:, position, head] = clean[at][:, position, head]
    made = run(model, pairs.corrupt, capture=pattern, edit={at: lambda _: mixed})[pattern]
    moved = (made - corrupt[pattern]).permute(1, 2, 3, 0)
    reached = (moved.abs() <= 1e-12) | (difference.abs() > 1e-9)
    expected = (moved * gradient).sum((0, 1, 2))
    whole = reached.flatten(0, 2).all(0)  # prompts in which the gradient is known wherever the pattern moved
    assert bool(whole.any())
    torch.testing.assert_close(fixed[head, position][whole], expected[whole], rtol=1e-8, atol=1e-10)
