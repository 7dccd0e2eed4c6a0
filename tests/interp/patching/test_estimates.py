"""Gradient estimates: against finite differences, against exact sweeps where the way is linear, and where they fail."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from covering import pairwise
from tiny import ragged_pairs

from interp import InputError, StackConfig, Transformer, TransformerConfig, run
from interp.config import NoMLP, NoNorm, Plain, Rotary
from interp.parts import RootMeanSquare
from interp.patching import Pairs, log_probability, logit_difference, sweep
from interp.patching.by_forward import run_inputs
from interp.patching.gradients.estimates import atp_star, attribution_patching
from interp.patching.patch_sites import PatchSite, site_name
from models import planted
from models.planted import Planted
from tests.interp.patching.settings import ATTENTIONS, CELLS, DIFFERING, LAYERS, NAMES, PLACES, build, exists, setting
from tests.interp.patching.test_against_plain import site_there
from tests.interp.patching.test_identities import FINEST

SETTINGS = [case for case in product(NAMES, ATTENTIONS, DIFFERING) if exists(*case)]
BY_HEAD = [LAYERS, PLACES, ("layer", "head"), CELLS]
HEADS = dict.fromkeys(("z", "q", "k", "v"), CELLS)
ROWS = ("pattern", "scores")


@pytest.fixture
def exact_norms(monkeypatch):
    """RMSNorm rounds to float32, as models are trained with it; small differences want double precision throughout."""
    monkeypatch.setattr(
        RootMeanSquare, "forward", lambda self, x: self.weight * F.rms_norm(x, self.normalized_shape, eps=self.eps)
    )


def derivative(model, inputs, readout, name: str, change: torch.Tensor, step=1e-4) -> torch.Tensor:
    """The metric's slope, one a prompt, as a run moves by `change` at a site."""
    up, down = (
        readout.of_logits(run_inputs(model, inputs, edit={name: lambda value, by=by: value + by * change}).logits)
        for by in (step, -step)
    )
    return (up - down) / (2 * step)


def only(change: torch.Tensor, site: str, where: dict[str, int]) -> torch.Tensor:
    """`change` at one cell, 0 elsewhere."""
    axes = ("prompt", "head", "query", "key") if site in ROWS else ("prompt", "position", "head")
    region = tuple(slice(where[axis], where[axis] + 1) if axis in where else slice(None) for axis in axes)
    kept = torch.zeros_like(change)
    region = region[: change.ndim]
    kept[region] = change[region]
    return kept


@pytest.mark.parametrize(("name", "attention", "differing"), SETTINGS, ids=str)
def test_every_site_has_the_slope_of_small_patches(name, attention, differing, exact_norms):
    (model, pairs, where), metric = setting(name, attention, differing), log_probability()
    sites = {site: by for site, by in FINEST.items() if site_there(name, attention, differing, site, by)}
    found, readout = attribution_patching(model, pairs, metric, sites, **where), metric.prepare(model, pairs)
    others, inputs = pairs.inputs
    rounding = 1e-3 if name == "experts" else 1e-7  # routers weigh in float32 at every precision
    for site, by in sites.items():
        at = PatchSite.of(model, site, by, **where).names[-1]
        theirs, own = (run_inputs(model, each, capture=at)[at] for each in (others, inputs))
        change, cells = (theirs - own).nan_to_num(), found[site].effect()[-1].nan_to_num()
        whole = derivative(model, inputs, readout, at, change)
        torch.testing.assert_close(cells.flatten(0, -2).sum(0), whole, rtol=1e-5, atol=rounding)
        cell = torch.unravel_index(cells.abs().sum(-1).argmax(), cells.shape[:-1])
        part = only(change, site, {axis: int(index) for axis, index in zip(by[1:], cell, strict=True)})
        torch.testing.assert_close(cells[cell], derivative(model, inputs, readout, at, part), rtol=1e-5, atol=rounding)


@pytest.mark.parametrize("kind", ["gated", "post encoder"])
def test_coarser_cells_are_sums_of_finer_ones_in_the_order_of_the_axes(kind):
    model, pairs = build(kind), ragged_pairs()
    fine = attribution_patching(model, pairs, logit_difference(), FINEST)
    for site, by in [
        ("k", ("layer", "position", "head")),
        ("z", ("layer", "head")),
        ("q", ("layer", "position")),
        ("pattern", ("layer", "key")),
        ("scores", ("layer", "key", "head")),
        ("resid_mid", ("layer",)),
    ]:
        coarse = attribution_patching(model, pairs, logit_difference(), {site: by})[site].effect()
        names = " ".join(FINEST[site])
        summed = fine[site].effect().nan_to_num()
        for axis in reversed([axis for axis in FINEST[site] if axis not in by]):
            summed = summed.sum(names.split().index(axis))
            names = names.replace(axis, "").strip()
        kept = [axis for axis in FINEST[site] if axis in by]
        summed = summed.permute(*(kept.index(axis) for axis in by), -1)
        torch.testing.assert_close(coarse.nan_to_num(), summed, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("site", "by", "direction"), pairwise(("z", "q", "k"), BY_HEAD[2:], ("denoise", "noise")), ids=str
)
def test_a_table_is_laid_out_as_that_of_the_sweep(site, by, direction):
    model, pairs = build("norm over all heads"), ragged_pairs()
    metrics = [logit_difference(), log_probability()]
    exact = sweep(model, pairs, metrics, site, by, direction)
    found = attribution_patching(model, pairs, metrics, {site: by}, direction, qk_fix=True)[site]
    assert (found.site, found.direction, found.axes) == (site, direction, by)
    for name in ("logit_difference", "log_probability"):
        torch.testing.assert_close(found.clean[name], exact.clean[name], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.corrupt[name], exact.corrupt[name], rtol=1e-6, atol=1e-6)
        assert torch.equal(found.values[name].isnan(), exact.values[name].isnan())
        here, there = found.effect(name).nan_to_num(), exact.effect(name).nan_to_num()
        assert torch.corrcoef(torch.stack([here.flatten(), there.flatten()]))[0, 1] > 0.7  # the same sign and order


def linear_tail(kind: str) -> Transformer:
    """Attention alone without norms: what follows the last layer's pattern is linear in it."""
    sizes = {"n_layers": 2, "d_model": 22, "n_heads": 6, "d_head": 10, "d_mlp": 1, "n_ctx": 13, "d_vocab": 37}
    stack = StackConfig(
        **sizes,
        causal=kind != "encoder",
        n_kv_heads=3 if kind == "rotary, grouped" else None,
        positions=Rotary() if kind == "rotary, grouped" else StackConfig.positions,
        norm=NoNorm(),
        mlp=NoMLP(),
    )
    model = Transformer(TransformerConfig(**{"decoder" if stack.causal else "encoder": stack})).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.7 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return model


class TestWhereTheWayIsLinear:
    """There an estimate is the effect."""

    @pytest.mark.parametrize("kind", ["plain", "rotary, grouped", "encoder"])
    @pytest.mark.parametrize("site", ["z", "v", "pattern", "attn_out", "resid_post"])
    def test_the_last_layers_outputs_are_exact(self, kind, site):
        model, pairs, by = linear_tail(kind), ragged_pairs(), FINEST[site][:3]
        exact = sweep(model, pairs, logit_difference(), site, by).effect()[-1]
        found = attribution_patching(model, pairs, logit_difference(), {site: by})[site].effect()[-1]
        assert exact.nan_to_num().abs().max() > 0.1
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9, equal_nan=True)

    @pytest.mark.parametrize(
        ("kind", "site", "by"), pairwise(("plain", "rotary, grouped", "encoder"), ("q", "k"), BY_HEAD), ids=str
    )
    def test_the_qk_fix_makes_the_last_layers_queries_and_keys_exact(self, kind, site, by):
        model, pairs = linear_tail(kind), ragged_pairs()
        exact = sweep(model, pairs, logit_difference(), site, by).effect()[-1]
        plain, fixed = (
            attribution_patching(model, pairs, logit_difference(), {site: by}, qk_fix=fix)[site].effect()[-1]
            for fix in (False, True)
        )
        torch.testing.assert_close(fixed, exact, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert (plain - exact).nan_to_num().abs().max() > 0.1  # the softmax is far from linear here

    def test_a_planted_head_has_its_whole_effect(self):
        model, pairs = reference()
        by = ("layer", "head")
        found = attribution_patching(model, pairs, logit_difference(), {"z": by, "v": by})
        for site in ("z", "v"):
            exact = sweep(model, pairs, logit_difference(), site, by)
            torch.testing.assert_close(found[site].effect(), exact.effect(), atol=1e-5, rtol=0)
        torch.testing.assert_close(found["z"].recovered(), torch.tensor([[1.0, 0.0]]), atol=1e-5, rtol=0)


def reference() -> tuple[Transformer, Pairs]:
    """A head that looks from `X` to `a` and from `Y` to `b`, with certainty, and predicts what it sees."""
    head = planted.antecedent({"X": ["a"], "Y": ["b"]}, {"a": ["a"], "b": ["b"]}, strength=3.0)
    model = Planted(["a", "b", "c", "X", "Y"], [[head, planted.uniform]], n_ctx=16).build()
    return model, Pairs.from_texts(model, ["a b c X", "b c a X"], ["a b c Y", "b c a Y"], ["a", "a"], ["b", "b"])


def induction() -> tuple[Transformer, Pairs]:
    """What followed `u` before is predicted after it: the second layer's keys say so."""
    layers = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]
    model = Planted(["u", "w", "a", "b", "c"], layers, n_ctx=16).build()
    return model, Pairs.from_texts(model, ["u a w b c u"] * 2, ["w a u b c u"] * 2, ["a"] * 2, ["b"] * 2)


class TestSaturatedAttention:
    """Planted truth 7: a certain head has no slope in its queries and keys; the QK fix sees what they do."""

    @pytest.mark.parametrize(("site", "circuit", "layer"), [("q", reference, 0), ("k", induction, 1)])
    def test_the_estimate_is_nothing_where_the_truth_is_one_and_the_fix_finds_it(self, site, circuit, layer):
        model, pairs = circuit()
        by = ("layer", "head")
        exact = sweep(model, pairs, logit_difference(), site, by).recovered()
        plain, fixed = (
            attribution_patching(model, pairs, logit_difference(), {site: by}, qk_fix=fix)[site].recovered()
            for fix in (False, True)
        )
        assert exact[layer, 0] == pytest.approx(1, abs=1e-5)
        assert plain[layer, 0] == pytest.approx(0, abs=1e-3)
        assert fixed[layer, 0] == pytest.approx(1, abs=1e-3)
        torch.testing.assert_close(fixed[layer], exact[layer], atol=1e-4, rtol=0)

    @pytest.mark.parametrize("direction", ["denoise", "noise"])
    def test_keys_patched_one_at_a_time_keep_what_rounding_would_lose(self, direction):
        model, pairs = induction()  # the certain key's rivals have e^-40 of the attention: 1 - p is 0 in float32
        by = ("layer", "head", "position")
        exact = sweep(model, pairs, logit_difference(), "k", by, direction).effect()
        found = attribution_patching(model, pairs, logit_difference(), {"k": by}, direction, qk_fix=True)["k"].effect()
        assert exact[1, 0].abs().max() > 4
        torch.testing.assert_close(found[1], exact[1], atol=1e-4, rtol=0)

    def test_magnitudes_use_the_fix(self):
        model, pairs = induction()
        exact = sweep(model, pairs, logit_difference(), "k").effect().mean(-1)
        found = atp_star(model, pairs, logit_difference(), {"k": ("layer", "head")})["k"].mean()
        assert exact[1, 0] > 10
        assert found[1, 0] == pytest.approx(float(exact[1, 0]), abs=1e-2)


START, TURNED = 1.0, -2.0


def cancelling() -> tuple[Transformer, Pairs]:
    """Layer 0 copies the token's number to slot 1, which the output reads; layer 1 takes relu of it away again."""
    stack = StackConfig(
        n_layers=2,
        d_model=2,
        n_heads=1,
        d_head=1,
        d_mlp=1,
        n_ctx=4,
        d_vocab=3,
        causal=True,
        norm=NoNorm(),
        mlp=Plain("relu", bias=False),
        attention_bias=False,
    )
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


class TestGradDrop:
    """Paths that cancel to first order."""

    def test_a_head_whose_paths_cancel_is_missed_without_it_and_found_with_it(self):
        model, pairs = cancelling()
        sites = {"z": ("layer", "head"), "resid_pre": ("layer",)}
        # the output is x - relu(x), with x from 1 to -2
        exact = sweep(model, pairs, logit_difference(), "z").effect()
        assert exact[0, 0, 0] == TURNED
        plain = attribution_patching(model, pairs, logit_difference(), sites)["z"].effect()
        assert plain[0, 0, 0] == 0
        found = atp_star(model, pairs, logit_difference(), sites)
        # with layer 1 dropped the straight path is left, with layer 0 dropped nothing; one pass of two counts
        assert found["z"].values["logit_difference"][0, 0, 0] == START - TURNED
        assert found["z"].mean()[1, 0] == 0
        # the stream into layer 0 (token's number, nothing yet in slot 1) acts through layer 0 alone
        assert found["resid_pre"].mean()[0] == (START - TURNED) / 2

    @pytest.mark.parametrize("kind", ["pre", "gated", "post encoder", "attention only"])
    def test_magnitudes_are_means_over_runs_with_one_layer_cut_off(self, kind):
        model, pairs = build(kind), ragged_pairs()
        sites = {**HEADS, "attn_out": ("layer",), "resid_mid": ("layer", "position"), "pattern": ("layer", "head")}
        del sites["q"], sites["k"]  # the QK fix is tested by itself
        found = atp_star(model, pairs, logit_difference(), sites)
        (stack,) = model.config.stacks
        readout = logit_difference().prepare(model, pairs)
        outs = ["attn_out"] if kind == "attention only" else ["attn_out", "mlp_out"]
        for site, by in sites.items():
            names = [site_name(stack, layer, site) for layer in range(3)]
            clean = run(model, pairs.clean, capture=names)
            total = 0
            for dropped in range(3):
                cut = {f"{stack}.{dropped}.{out}": torch.Tensor.detach for out in outs}
                own = run(model, pairs.corrupt, capture=names, edit=cut, grad=True)
                held = [own[name] if own[name].requires_grad else None for name in names]
                value = readout.of_logits(own.logits).sum()
                grads = torch.autograd.grad(value, [each for each in held if each is not None], allow_unused=True)
                given = iter(grads)
                slopes = [None if each is None else next(given) for each in held]
                total = (
                    total
                    + torch.stack(
                        [
                            reduced(site, by, (clean[name] - own[name].detach()) * (0 if slope is None else slope))
                            for name, slope in zip(names, slopes, strict=True)
                        ]
                    ).abs()
                )
            expected = total / (3 if site == "resid_mid" else 2)
            value = found[site].values["logit_difference"].nan_to_num()
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)
            assert value.max() > 1e-3


def reduced(site: str, by: tuple[str, ...], products: torch.Tensor) -> torch.Tensor:
    """`prompt ...` to `*cells prompt`, for the axes used above."""
    if site == "pattern":
        return products.sum((-1, -2)).T
    products = products.sum(-1)
    if by == ("layer", "head", "position"):
        return products.permute(2, 1, 0)
    return products.T if by == ("layer", "position") else products.sum(-1)


class TestIdentities:
    """What holds for any model."""

    @pytest.mark.parametrize("kind", ["pre", "gated"])
    def test_a_pass_keeps_no_more_than_its_budget(self, kind):
        model, pairs = build(kind, torch.float32), ragged_pairs()
        with pytest.raises(InputError) as refused:
            attribution_patching(model, pairs, logit_difference(), FINEST, budget=1)
        least = int(str(refused.value).split()[-1])
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        kept: dict[int, int] = {}

        def keep(value: torch.Tensor) -> torch.Tensor:
            if value.untyped_storage().data_ptr() not in weights:
                kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            attribution_patching(model, pairs, logit_difference(), FINEST)
        assert 0.2 * least * len(pairs) < sum(kept.values()) < least * len(pairs)

    def test_no_weight_is_given_a_gradient_and_nothing_found_carries_a_graph(self):
        model, pairs = build("pre", torch.float32), ragged_pairs()
        with torch.no_grad():  # as in a notebook that switched gradients off
            found = attribution_patching(model, pairs, logit_difference(), {"z": ("layer", "head")}, qk_fix=True)["z"]
        assert all(weight.grad is None for weight in model.parameters())
        for table in (found.values, found.clean, found.corrupt):
            assert not table["logit_difference"].requires_grad
