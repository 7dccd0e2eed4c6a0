"""Every way to build one or two stacks, where a plain pass per cell is no oracle: identities and axes."""

import pytest
import torch
from tiny import VARIANTS, pairs_of_two, ragged_pairs, rows, two_stacks, variant

from interp import run, set_to
from interp.attribution import attribution_by_source, composition_scores, direct_logit_attribution
from interp.patching import ablate, attribution_patching, logit_difference, sweep, top_cells
from tests.interp.patching.settings import ATTENTIONS, CELLS, CLOSE, HEADS, PLACES

EVERY = pytest.mark.parametrize("name", VARIANTS)


@pytest.mark.parametrize("name", ["buckets", "parallel", "experts"])
def test_estimates_of_what_lies_inside_add_up_to_those_around_it(name):
    model, pairs = variant(name), ragged_pairs()
    site, unit = ("mlp.experts", "expert") if name == "experts" else ("mlp.post", "neuron")
    sites = {"embed": PLACES, "resid_pre": PLACES, "mlp_out": PLACES, site: (*PLACES, unit)}
    result = attribution_patching(model, pairs, logit_difference(), sites)
    parts = result[site].effects().sum(-2)  # over neurons or experts, whose sum is linear
    torch.testing.assert_close(parts, result["mlp_out"].effects(), **CLOSE)
    torch.testing.assert_close(result["embed"].effects(), result["resid_pre"].effects()[:1], **CLOSE)
    assert parts.nan_to_num().abs().max() > 1e-4


@EVERY
def test_direct_attributions_add_up(name):
    model, batch = variant(name), ragged_pairs().clean
    right, wrong, prompt = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]), torch.arange(3)
    capped = run(model, batch).logits[prompt, batch.lengths - 1]
    logits = 2.0 * torch.atanh(capped / 2.0)  # attribution is of logits before their cap
    result = direct_logit_attribution(model, batch, right, wrong)
    torch.testing.assert_close(result.values.sum(0), logits[prompt, right] - logits[prompt, wrong], **CLOSE)
    torch.testing.assert_close(attribution_by_source(result).nansum(2), result.by_head(), **CLOSE)
    assert 0 < composition_scores(model).nan_to_num().max() <= 1 + 1e-9


def test_an_output_bias_is_a_term_of_its_own():
    model, batch = variant("parallel"), ragged_pairs().clean
    with torch.no_grad():
        model.output.bias = torch.nn.Parameter(torch.arange(29, dtype=torch.float64))
        result = direct_logit_attribution(model, batch, 7, 2)
    assert result["output.bias"].tolist() == [5, 5, 5]


@pytest.mark.parametrize("site", ["q", "k"])
@EVERY
def test_the_qk_fix_makes_the_pattern_that_the_patch_makes(name, site):
    model, pairs, (head, position) = variant(name), ragged_pairs(), (1, 2)
    fixed = attribution_patching(model, pairs, logit_difference(), {site: CELLS}, qk_fix=True)[site].effects()[0]
    full_name, pattern = f"decoder.0.attn.{site}", "decoder.0.attn.pattern"
    out = run(model, pairs.corrupt, capture=[full_name, pattern], grad=True)
    value = logit_difference().prepare(model, pairs).from_logits(out.logits)
    (gradient,) = torch.autograd.grad(value.sum(), out[pattern])
    mixed = out[full_name].detach().clone()
    mixed[:, position, head] = run(model, pairs.clean, capture=full_name)[full_name][:, position, head]
    patched = run(model, pairs.corrupt, capture=pattern, edit={full_name: lambda _: mixed})[pattern]
    expected = ((patched - out[pattern].detach()) * gradient).sum((1, 2, 3))
    torch.testing.assert_close(fixed[head, position], expected, rtol=1e-8, atol=1e-10)


def test_positions_count_the_text_that_they_lie_in():
    model, pairs = two_stacks("original"), pairs_of_two("source")  # sources of 4, 4, 3 tokens, targets of 3, 2, 3
    where = {"stack": "decoder", "attention": "cross"}
    for site, missing in (("q", [0, 1, 0]), ("k", [0, 0, 1])):
        effects = sweep(model, pairs, logit_difference(), site, PLACES, **where).effects()
        assert effects[0].isnan().sum(0).tolist() == missing
    entries = sweep(model, pairs, logit_difference(), "pattern", ("layer", "query", "key"), **where).effects()
    assert entries.shape == (2, 3, 4, 3)


def test_estimates_and_the_search_reach_every_attention():
    arguments = two_stacks("modern"), pairs_of_two("source"), logit_difference()
    for stack, attention in ATTENTIONS:
        where = {"stack": stack, "attention": attention}
        fixed = attribution_patching(*arguments, {"k": HEADS}, qk_fix=True, **where)["k"]
        assert fixed.effects().isfinite().all()
        exact, best = sweep(*arguments, **where), top_cells(*arguments, k=1, **where)
        assert best.cells == (exact.top(1)[0][:2],)


def test_other_prompts_resampled_are_those_of_the_same_stack():
    model, source, target = two_stacks("original"), rows((4,), d_vocab=19), rows((3,))
    donors = rows((5,), d_vocab=19, seed=3), rows((4,), seed=4)
    metric = logit_difference(torch.tensor([1]), torch.tensor([2]))
    for stack, length in (("encoder", 4), ("decoder", 3)):
        result = ablate(model, source, metric, kind="resample", donors=donors, target=target, stack=stack)
        full_name = f"{stack}.1.attn.z"
        theirs = run(model, donors[0], target=donors[1], capture=full_name)[full_name][:, :length, 1]
        logits = run(model, source, target=target, edit={full_name: set_to(theirs, head=1)}).logits[0, -1]
        torch.testing.assert_close(result.values["logit_difference"][1, 1, 0], logits[1] - logits[2])
