"""Every way to build a stack is patched exactly: sweeps, paths, knock-outs, attribution against plain forwards."""

import re

import pytest
import torch
from covering import pairwise
from tiny import VARIANTS, pairs_of_two, ragged_pairs, two_stacks, variant

from interp import InputError, run, sites
from interp.attribution import attribution_by_source, composition_scores, direct_logit_attribution, logit_lens
from interp.patching import (
    Receiver,
    attribution_patching,
    edge_attribution,
    kl_divergence,
    logit_difference,
    path_patch,
    path_patch_by_forward,
    shared_keys,
    sweep,
    sweep_by_forward,
    top_cells,
)
from interp.patching.ablation import ablate, ablate_cells
from interp.patching.knockout import Claim, Read, knock_out, knock_out_by_forward, log_probabilities
from interp.patching.patch_sites import PatchSite

CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
PLACES, HEADS = ("layer", "position"), ("layer", "head")
AXES = {
    **{site: [PLACES] for site in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")},
    **{site: [PLACES] for site in ("embed", "resid_final", "logits")},
    **{site: [HEADS, PLACES] for site in ("z", "q", "v")},
    **{site: [PLACES, ("layer", "neuron")] for site in ("mlp.pre", "mlp.post")},
    **{site: [PLACES, ("layer", "position", "expert")] for site in ("mlp.router", "mlp.experts")},
    "k": [HEADS, (*HEADS, "position")],
    "pattern": [("layer", "query")],
    "scores": [("layer", "key")],
}
ENCODER = pytest.param(False, marks=pytest.mark.slow, id="encoder")
EVERY_KIND = pytest.mark.parametrize("causal", [pytest.param(True, id="decoder"), ENCODER])
EVERY = pytest.mark.parametrize("name", VARIANTS)
SITES = {name: {re.sub(r"^decoder\.(0\.(attn\.)?)?", "", site) for site in sites(variant(name))} for name in VARIANTS}
CASES = pairwise(
    VARIANTS,
    (True, False),
    AXES,
    dict.fromkeys(by for axes in AXES.values() for by in axes),
    ("denoise", "noise"),
    possible=lambda name, _, site, by, __: site in SITES[name] and by in AXES[site],
)


@EVERY
def test_every_cell_of_every_site_equals_one_plain_forward_pass(name):
    pairs = ragged_pairs()
    for causal, site, by, direction in (rest for each, *rest in CASES if each == name):
        model = variant(name, causal=causal)
        arguments = (model, pairs, [logit_difference(), kl_divergence()], site, by, direction)
        fast, plain = sweep(*arguments), sweep_by_forward(*arguments)
        torch.testing.assert_close(fast.values, plain.values, **CLOSE)
        torch.testing.assert_close((fast.clean, fast.corrupt), (plain.clean, plain.corrupt), **CLOSE)
        assert fast.effect().nan_to_num().abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "site"),
    [("parallel", "resid_mid"), ("parallel, attention alone", "mlp_out"), ("parallel, attention alone", "mlp.post")],
)
def test_a_site_that_a_model_lacks_is_refused(name, site):
    with pytest.raises(InputError, match="no patchable site"):
        sweep(variant(name), ragged_pairs(), logit_difference(), site, PLACES)


@pytest.mark.parametrize("site", ["mlp.pre", "mlp.post"])
def test_a_small_budget_changes_no_neurons_cell(site):
    model, pairs, by = variant("after"), ragged_pairs(), ("layer", "neuron", "position")
    whole, tight = (sweep(model, pairs, logit_difference(), site, by, budget=budget) for budget in (2 << 30, 90_000))
    torch.testing.assert_close(tight.values, whole.values, rtol=1e-12, atol=1e-12, equal_nan=True)
    firsts, found = (1, 2, 1), whole.effect()
    assert all((found[:, :, :first, prompt] == 0).all() for prompt, first in enumerate(firsts))


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


def test_what_has_no_estimate_or_search_says_so():
    model, pairs = variant("after"), ragged_pairs()
    with pytest.raises(InputError, match="logits are what metrics read: expected sites before them"):
        attribution_patching(model, pairs, logit_difference(), {"logits": PLACES})
    with pytest.raises(InputError, match=r"'mlp\.pre' only many: use `sweep`"):
        top_cells(model, pairs, logit_difference(), "mlp.pre", by=("layer", "neuron"))


@pytest.mark.parametrize("name", ["after", "parallel", "sandwich"])
def test_a_search_finds_the_strongest_neurons(name):
    model, pairs, by = variant(name), ragged_pairs(), ("layer", "neuron")
    found = top_cells(model, pairs, logit_difference(), "mlp.post", 3, by=by, tie=0.0)
    effect = sweep(model, pairs, logit_difference(), "mlp.post", by).effect().mean(-1)
    strongest = effect.abs().flatten().topk(3).values
    torch.testing.assert_close(torch.stack([effect[cell] for cell in found.cells]).abs(), strongest, **CLOSE)
    torch.testing.assert_close(found.mean, torch.stack([effect[cell] for cell in found.cells]), **CLOSE)


def test_every_site_of_a_model_can_be_swept():
    model, pairs = two_stacks("modern"), pairs_of_two("source")
    for name in sites(model):
        *stack, site = name.split(".", 2) if name.count(".") > 1 else (name.split(".")[0], "", name.split(".")[-1])
        attention = "cross" if site.startswith("cross_attn.") else "self"
        local = site.removeprefix("cross_attn.").removeprefix("attn.")
        where = {"stack": stack[0] if site != "logits" else None, "attention": attention}
        found = PatchSite.of(model, local, ("layer",), **where)
        assert name == found.name(int(stack[1] or 0))
        if stack[1] in {"", "0"}:
            assert sweep(model, pairs, logit_difference(), local, ("layer",), **where).effect().isfinite().all()


@pytest.mark.parametrize("name", ["buckets", "local, capped", "local, biased", "norm over all heads"])
def test_the_kernel_for_long_prompts_gives_the_same_cells(name, monkeypatch):
    monkeypatch.setattr(shared_keys, "_SMALL_ROWS", 0)  # every prompt counts as long
    model, pairs = variant(name), ragged_pairs()
    for site in ("z", "k"):
        fast, plain = (each(model, pairs, logit_difference(), site) for each in (sweep, sweep_by_forward))
        torch.testing.assert_close(fast.values, plain.values, **CLOSE)


ENDS = {
    "q": [Receiver("q", 2, 1)],
    "k": [Receiver("k", 2, 0), Receiver("k", 1, position=-2)],
    "v": [Receiver("v", 1, 0)],
    "mlp": [Receiver("mlp", 1)],
    "first mlp": [Receiver("mlp", 0), Receiver("mlp", 2)],
    "logits": [Receiver("logits")],
    "several": [Receiver("mlp", 0), Receiver("v", 1, 1), Receiver("mlp", 2, position=-1), Receiver("logits")],
}
SENDERS = [("z", HEADS), ("mlp_out", ("layer",)), ("z", PLACES)]


def receivers(name: str, ends: str) -> list[Receiver]:
    """The receivers that a variant has."""
    parts = {"v", "logits"} | ({"mlp"} & {site.removesuffix("_out") for site in SITES[name]})
    parts |= {"q", "k"} if name != "norm over all heads" else set()
    return [end for end in ENDS[ends] if end.part in parts]


PATHS = pairwise(
    VARIANTS,
    (True, False),
    ENDS,
    SENDERS,
    ("nothing", "mlps", "everything"),
    possible=lambda name, _, ends, sender, __: receivers(name, ends) and sender[0] in SITES[name],
)


@EVERY
def test_paths_equal_two_plain_forward_passes(name):
    for causal, ends, sender, through in (rest for each, *rest in PATHS if each == name):
        arguments = (variant(name, causal=causal), ragged_pairs(), logit_difference(), receivers(name, ends))
        fast, plain = (way(*arguments, *sender, through) for way in (path_patch, path_patch_by_forward))
        torch.testing.assert_close(fast.values, plain.values, **CLOSE)


def test_no_head_receives_queries_that_are_normalised_as_one():
    for patching in (path_patch, path_patch_by_forward):
        with pytest.raises(InputError, match="over all heads at once"):
            patching(variant("norm over all heads"), ragged_pairs(), logit_difference(), [Receiver("q", 1, 0)])


def claim(prompt: int, claimed: dict[int, list[int]], reads: list[int]) -> Claim:
    keys = torch.zeros(len(claimed), 4, dtype=torch.bool)
    for row, columns in enumerate(claimed.values()):
        keys[row, columns] = True
    read = Read(torch.tensor(reads), log_probabilities(torch.arange(len(reads))))
    return Claim(prompt, torch.tensor([*claimed]), keys, read)


@EVERY_KIND
@EVERY
def test_knock_outs_equal_one_plain_forward_pass(name, causal):
    model, texts = variant(name, causal=causal), ragged_pairs().clean
    claims = [claim(0, {2: [1], 3: [0, 2]}, [3, 1]), claim(1, {3: [3]}, [3]), claim(2, {1: [0], 2: [1]}, [2])]
    fast, plain = (each(model, texts, claims) for each in (knock_out, knock_out_by_forward))
    torch.testing.assert_close(fast, plain, **CLOSE)
    assert plain.abs().max() > 1e-2


def test_a_claim_leaves_something_within_every_layers_reach():
    model, texts = variant("local, capped"), ragged_pairs().clean
    with pytest.raises(InputError, match="leave each row another one"):
        knock_out(model, texts, [claim(0, {3: [2, 3]}, [3])])


@EVERY
def test_ablated_heads_equal_the_same_heads_listed(name):
    model, batch = variant(name), ragged_pairs().clean
    metric = logit_difference(torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]))
    cells = [(2, 1), (0, 3), (1, 0)]
    grid, listed = ablate(model, batch, metric), ablate_cells(model, batch, metric, cells)
    torch.testing.assert_close(listed.drop(), torch.stack([grid.drop()[cell] for cell in cells]), **CLOSE)
    assert grid.drop().abs().max() > 1e-3


@EVERY_KIND
@EVERY
def test_direct_attributions_add_up(name, causal):
    model, batch = variant(name, causal=causal), ragged_pairs().clean
    direction = torch.randn(22, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = direct_logit_attribution(model, batch, direction=direction)
    torch.testing.assert_close(found.values.sum(0), found.total, **CLOSE)
    by_source = attribution_by_source(found).nansum(2)
    torch.testing.assert_close(by_source, found.by_head(), **CLOSE)
    scores = composition_scores(model).nan_to_num()
    assert 0 < scores.max() <= 1 + 1e-9
    assert torch.isfinite(logit_lens(model, batch).logits).all()


@EVERY
def test_answers_are_attributed_to_logits_before_their_cap(name):
    model, batch = variant(name), ragged_pairs().clean
    right, wrong, prompt = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]), torch.arange(3)
    capped = run(model, batch).logits[prompt, batch.lengths - 1]
    logits = 2.0 * torch.atanh(capped / 2.0)
    found = direct_logit_attribution(model, batch, right, wrong)
    torch.testing.assert_close(found.values.sum(0), logits[prompt, right] - logits[prompt, wrong], **CLOSE)


def test_an_output_bias_is_a_term_of_its_own():
    model, batch = variant("parallel"), ragged_pairs().clean
    with torch.no_grad():
        model.output.bias = torch.nn.Parameter(torch.arange(29, dtype=torch.float64))
        found = direct_logit_attribution(model, batch, 7, 2)
    assert found["output.bias"].tolist() == [5, 5, 5]


def test_answers_behind_a_transform_are_refused():
    with pytest.raises(InputError, match="transforms its final stream before the output layer"):
        direct_logit_attribution(variant("parallel", causal=False), ragged_pairs().clean, 3)


@pytest.mark.parametrize("name", ["parallel", "parallel, one norm", "alibi", "local, capped", "experts"])
def test_the_edges_out_of_a_component_add_up_to_its_own_estimate(name):
    model, pairs = variant(name), ragged_pairs()
    edges = edge_attribution(model, pairs, logit_difference(), steps=1)
    table = dict(zip(edges.senders, edges.scores.nansum(1), strict=True))
    nodes = attribution_patching(model, pairs, logit_difference(), {"z": HEADS, "mlp_out": ("layer",)})
    for layer in range(3):
        torch.testing.assert_close(table[f"mlp.{layer}"], nodes["mlp_out"].effect()[layer], **CLOSE)
        for head in range(4):
            torch.testing.assert_close(table[f"{layer}.{head}"], nodes["z"].effect()[layer, head], **CLOSE)
    beside = edges.scores[edges.senders.index("1.0"), edges.receivers.index("mlp.1")]
    assert bool(beside.isnan().all()) == name.startswith("parallel")  # there they read the same stream


@pytest.mark.parametrize(("name", "reason"), [("after", "norms follow"), ("sandwich", "norms follow")])
def test_edges_are_refused_where_norms_mix_what_is_written(name, reason):
    with pytest.raises(InputError, match=reason):
        edge_attribution(variant(name), ragged_pairs(), logit_difference())


@EVERY
def test_estimates_have_the_slope_of_small_patches(name):
    model, pairs, step = variant(name), ragged_pairs(), 1e-4
    sites = {"q": (*HEADS, "position"), "pattern": (*HEADS, "query"), "attn_out": PLACES}
    found = attribution_patching(model, pairs, logit_difference(), sites)
    readout = logit_difference().prepare(model, pairs)
    for site in sites:
        at = f"decoder.1.{'' if site == 'attn_out' else 'attn.'}{site}"
        clean, corrupt = (run(model, batch, capture=at)[at] for batch in (pairs.clean, pairs.corrupt))
        change = clean - corrupt
        up, down = (
            readout.of_logits(
                run(model, pairs.corrupt, edit={at: lambda value, by=by, change=change: value + by * change}).logits
            )
            for by in (step, -step)
        )
        cells = found[site].effect()[1].nan_to_num().flatten(0, -2).sum(0)
        rounding = 1e-3 if name == "experts" else 1e-7  # routers weigh in float32 at every precision
        torch.testing.assert_close(cells, (up - down) / (2 * step), rtol=1e-5, atol=rounding)


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


def test_two_stacks_are_refused_in_one_line():
    model, pairs = two_stacks("original"), pairs_of_two("source")
    for refused in (
        lambda: edge_attribution(model, pairs, logit_difference()),
        lambda: composition_scores(model),
    ):
        with pytest.raises(InputError, match="is for models of one stack") as error:
            refused()
        assert "\n" not in str(error.value)
