"""Gradient estimates: against finite differences, against exact sweeps of linear paths, and where they fail."""

from itertools import product

import einops
import pytest
import torch
from covering import pairwise
from tiny import ragged_pairs

from interp import InputError, StackConfig, Transformer, TransformerConfig, run
from interp.config import NoMLP, NoNorm, Plain, Rotary
from interp.patching import Pairs, atp_star, attribution_patching, log_probability, logit_difference, sweep
from interp.patching.by_forward import run_inputs
from interp.patching.patch_sites import PatchSite, site_name
from models import planted
from models.planted import Planted
from tests.interp.patching.settings import ATTENTIONS, CELLS, DIFFERING, LAYERS, NAMES, PLACES, build, exists, setting
from tests.interp.patching.test_against_plain import site_there
from tests.interp.patching.test_identities import FINEST

SETTINGS = [case for case in product(NAMES, ATTENTIONS, DIFFERING) if exists(*case)]
BY_HEAD = [LAYERS, PLACES, ("layer", "head"), CELLS]
ROWS = ("pattern", "scores")


def derivative(model, inputs, readout, name: str, change: torch.Tensor, step=1e-4) -> torch.Tensor:
    """The metric's slope, one per prompt, as a site moves by `change`."""
    edits = ({name: lambda value, by=by: value + by * change} for by in (step, -step))
    up, down = (readout.from_logits(run_inputs(model, inputs, edit=edit).logits) for edit in edits)
    return (up - down) / (2 * step)


def only(change: torch.Tensor, site: str, where: dict[str, int]) -> torch.Tensor:
    """`change` at one cell, 0 elsewhere."""
    axes = ("prompt", "head", "query", "key") if site in ROWS else ("prompt", "position", "head")
    region = tuple(slice(where[axis], where[axis] + 1) if axis in where else slice(None) for axis in axes)
    result = torch.zeros_like(change)
    result[region[: change.ndim]] = change[region[: change.ndim]]
    return result


@pytest.mark.parametrize(("name", "attention", "differing"), SETTINGS, ids=str)
def test_every_site_has_the_slope_of_small_patches(name, attention, differing, exact_norms):
    (model, pairs, where), metric = setting(name, attention, differing), log_probability()
    sites = {site: by for site, by in FINEST.items() if site_there(name, attention, differing, site, by)}
    estimates, readout = attribution_patching(model, pairs, metric, sites, **where), metric.prepare(model, pairs)
    others, inputs = pairs.inputs
    rounding = 1e-3 if name == "experts" else 1e-7  # routers compute weights in float32 at any precision
    for site, by in sites.items():
        top = PatchSite.from_name(model, site, by, **where).names[-1]
        theirs, ours = (run_inputs(model, each, capture=top)[top] for each in (others, inputs))
        change, cells = (theirs - ours).nan_to_num(), estimates[site].effects()[-1].nan_to_num()
        whole = derivative(model, inputs, readout, top, change)
        torch.testing.assert_close(cells.flatten(0, -2).sum(0), whole, rtol=1e-5, atol=rounding)
        cell = torch.unravel_index(cells.abs().sum(-1).argmax(), cells.shape[:-1])
        part = only(change, site, {axis: int(index) for axis, index in zip(by[1:], cell, strict=True)})
        torch.testing.assert_close(cells[cell], derivative(model, inputs, readout, top, part), rtol=1e-5, atol=rounding)


def linear_tail(kind: str) -> Transformer:
    """A model of attention alone, without norms: what follows the last layer's pattern is linear in it."""
    sizes = {"n_layers": 2, "d_model": 22, "n_heads": 6, "d_head": 10, "d_mlp": 1, "n_ctx": 13, "d_vocab": 37}
    parts = {"norm": NoNorm(), "mlp": NoMLP()}
    parts |= {"n_kv_heads": 3, "positions": Rotary()} if kind == "rotary, grouped" else {}
    stack = StackConfig(**sizes, **parts, causal=kind != "encoder")
    model = Transformer(TransformerConfig(**{"decoder" if stack.causal else "encoder": stack})).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.7 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.mark.parametrize(
    ("kind", "site", "by"), pairwise(("plain", "rotary, grouped", "encoder"), ("q", "k"), BY_HEAD), ids=str
)
def test_the_qk_fix_makes_the_last_layers_queries_and_keys_exact(kind, site, by):
    model, pairs = linear_tail(kind), ragged_pairs()
    exact = sweep(model, pairs, logit_difference(), site, by).effects()[-1]
    arguments = model, pairs, logit_difference(), {site: by}
    plain, fixed = (attribution_patching(*arguments, qk_fix=fix)[site].effects()[-1] for fix in (False, True))
    torch.testing.assert_close(fixed, exact, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert (plain - exact).nan_to_num().abs().max() > 0.1  # the softmax is far from linear here


def reference() -> tuple[Transformer, Pairs]:
    """A head that surely looks from `X` to `a` and from `Y` to `b`, and predicts what it sees."""
    head = planted.antecedent({"X": ["a"], "Y": ["b"]}, {"a": ["a"], "b": ["b"]}, strength=3.0)
    model = Planted(["a", "b", "c", "X", "Y"], [[head, planted.uniform]], n_ctx=16).build()
    return model, Pairs.from_texts(model, ["a b c X", "b c a X"], ["a b c Y", "b c a Y"], ["a", "a"], ["b", "b"])


def induction() -> tuple[Transformer, Pairs]:
    """An induction model: after `u` it predicts what followed `u` before, by the keys of the second layer."""
    layers = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]
    model = Planted(["u", "w", "a", "b", "c"], layers, n_ctx=16).build()
    return model, Pairs.from_texts(model, ["u a w b c u"] * 2, ["w a u b c u"] * 2, ["a"] * 2, ["b"] * 2)


@pytest.mark.parametrize(("site", "circuit", "layer"), [("q", reference, 0), ("k", induction, 1)])
def test_the_estimate_is_nothing_where_the_truth_is_one_and_the_fix_finds_it(site, circuit, layer):  # planted truth 7
    arguments = *circuit(), logit_difference()
    exact = sweep(*arguments, site)
    estimates = (attribution_patching(*arguments, {site: ("layer", "head")}, qk_fix=fix)[site] for fix in (False, True))
    plain, fixed = (estimate.share()[layer, 0] for estimate in estimates)
    assert [float(each) for each in (exact.share()[layer, 0], fixed, plain)] == pytest.approx([1, 1, 0], abs=1e-3)
    if layer:  # a single layer cannot be dropped
        magnitude = atp_star(*arguments, {site: ("layer", "head")})[site].mean()[layer, 0]
        assert magnitude == pytest.approx(float(exact.mean()[layer, 0]), abs=1e-2)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_keys_patched_one_at_a_time_keep_what_rounding_would_lose(direction):
    model, pairs = induction()  # other keys have e^-40 of the attention, so 1 - p is 0 in float32
    by = ("layer", "head", "position")
    exact = sweep(model, pairs, logit_difference(), "k", by, direction).effects()
    fixed = attribution_patching(model, pairs, logit_difference(), {"k": by}, direction, qk_fix=True)["k"].effects()
    assert exact[1, 0].abs().max() > 4
    torch.testing.assert_close(fixed[1], exact[1], atol=1e-4, rtol=0)


START, TURNED = 1.0, -2.0


def cancelling() -> tuple[Transformer, Pairs]:
    """Layer 0 copies the token's number to slot 1, which the output reads; layer 1 subtracts its relu."""
    parts = {"norm": NoNorm(), "mlp": Plain("relu", bias=False), "attention_bias": False}
    stack = StackConfig(2, 2, 1, 1, 1, 4, 3, causal=True, **parts)
    model = Transformer(TransformerConfig(decoder=stack)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        blocks = model.last.blocks
        model.last.embed.token.weight[:, 0] = torch.tensor([START, TURNED, 5.0], dtype=torch.float64)
        blocks[0].attn.W_V[0, 0, 0] = blocks[0].attn.W_O[0, 0, 1] = 1
        mlp = blocks[1].mlp
        assert mlp is not None
        mlp.up.weight[0, 1], mlp.down.weight[1, 0] = 1, -1
        assert model.output is not None
        model.output.weight[0, 1] = 1
    return model, Pairs.from_ids(model, torch.tensor([[1]]), torch.tensor([[0]]), torch.tensor([0]), torch.tensor([1]))


def test_a_head_whose_paths_cancel_is_missed_without_dropping_gradients_and_found_with_it():
    arguments, sites = (*cancelling(), logit_difference()), {"z": ("layer", "head"), "resid_pre": ("layer",)}
    # the output is x - relu(x), with x from 1 to -2
    assert sweep(*arguments, "z").effects()[0, 0, 0] == TURNED
    assert attribution_patching(*arguments, sites)["z"].effects()[0, 0, 0] == 0
    magnitudes = atp_star(*arguments, sites)
    # dropping layer 1 leaves the direct path, dropping layer 0 nothing; one pass of two counts
    assert magnitudes["z"].mean()[:, 0].tolist() == [START - TURNED, 0]
    # the stream into layer 0 (the token's number, slot 1 still empty) acts only through layer 0
    assert magnitudes["resid_pre"].mean()[0] == (START - TURNED) / 2


HEAD = "prompt position head d"
AXES = {"z": HEAD, "v": HEAD, "pattern": "prompt head query key"}


@pytest.mark.parametrize("kind", ["pre", "gated", "post encoder", "attention only"])
def test_magnitudes_are_means_over_runs_with_one_layer_cut_off(kind):
    model, pairs = build(kind), ragged_pairs()
    sites = {"z": CELLS, "v": CELLS, "attn_out": LAYERS, "resid_mid": PLACES, "pattern": ("layer", "head")}
    magnitudes, readout = atp_star(model, pairs, logit_difference(), sites), logit_difference().prepare(model, pairs)
    (stack,) = model.config.stacks
    outs = ["attn_out"] if kind == "attention only" else ["attn_out", "mlp_out"]
    for site, by in sites.items():
        names = [site_name(stack, layer, site) for layer in range(3)]
        clean, total = run(model, pairs.clean, capture=names), 0
        for dropped in range(3):
            cut = {f"{stack}.{dropped}.{out}": torch.Tensor.detach for out in outs}
            result = run(model, pairs.corrupt, capture=names, edit=cut, grad=True)
            joined = [name for name in names if result[name].requires_grad]
            value = readout.from_logits(result.logits).sum()
            slopes = torch.autograd.grad(value, [result[name] for name in joined], materialize_grads=True)
            slope = dict(zip(joined, slopes, strict=True))
            parts = [(clean[name] - result[name].detach()) * slope.get(name, 0) for name in names]
            pattern = f"{AXES.get(site, 'prompt position d')} -> {' '.join(by[1:])} prompt"
            total = total + torch.stack([einops.reduce(part, pattern, "sum") for part in parts]).abs()
        value = magnitudes[site].values["logit_difference"].nan_to_num()
        torch.testing.assert_close(value, total / (3 if site == "resid_mid" else 2), rtol=1e-9, atol=1e-10)
        assert value.max() > 1e-3


@pytest.mark.parametrize("kind", ["pre", "gated"])
def test_a_pass_keeps_no_more_than_its_budget(kind):
    model, pairs = build(kind, torch.float32), ragged_pairs()
    with pytest.raises(InputError) as refused:
        attribution_patching(model, pairs, logit_difference(), FINEST, budget=1)
    least = int(str(refused.value).split()[-1])
    sizes: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        attribution_patching(model, pairs, logit_difference(), FINEST)
    total = sum(sizes[name] for name in {*sizes} - {each.untyped_storage().data_ptr() for each in model.parameters()})
    assert 0.2 * least * len(pairs) < total < least * len(pairs)


def test_no_weight_is_given_a_gradient_and_nothing_found_carries_a_graph():
    model, pairs = build("pre", torch.float32), ragged_pairs()
    with torch.no_grad():  # like a notebook with gradients switched off
        cells = attribution_patching(model, pairs, logit_difference(), {"z": ("layer", "head")}, qk_fix=True)["z"]
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(table["logit_difference"].requires_grad for table in (cells.values, cells.clean, cells.corrupt))
