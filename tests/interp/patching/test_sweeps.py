"""The fast sweep against one plain forward a cell: every site, both directions, ragged prompts, four architectures."""

import pytest
import torch
from covering import pairwise

from interp import InputError, StackConfig, TokenBatch, Transformer, TransformerConfig
from interp.config import Gated, NoMLP, NoNorm, RMSNorm, Rotary
from interp.patching import (
    Metric,
    Pairs,
    function,
    kl_divergence,
    log_probability,
    logit_difference,
    probability,
    rank,
    shared_keys,
    sweep,
    sweep_by_forward,
    unpatched,
)
from interp.patching.metrics import prepared
from interp.patching.plain_sweep import unpatched_by_forward

LENGTHS, FIRSTS = (7, 7, 5, 7, 5), (2, 2, 1, 4, 1)
KINDS = ("pre", "post", "grouped queries", "post-norm encoder", "attention only")
BY_ROW = [("layer",), ("layer", "position")]
BY_HEAD = [*BY_ROW, ("layer", "head"), ("layer", "head", "position")]
BY_ENTRY = [("layer", "head"), ("layer", "head", "query"), ("layer", "key")]
AXES = {
    **dict.fromkeys(("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"), BY_ROW),
    **dict.fromkeys(("z", "q", "k", "v"), BY_HEAD),
    **dict.fromkeys(("pattern", "scores"), BY_ENTRY),
}
CASES = pairwise(
    KINDS,
    AXES,
    [*BY_HEAD, *BY_ENTRY[1:]],
    ("denoise", "noise"),
    possible=lambda kind, site, by, _: by in AXES[site] and (kind, site) != ("attention only", "mlp_out"),
)


def build(kind: str, dtype: torch.dtype = torch.float64) -> Transformer:
    sizes = {"n_layers": 3, "d_model": 30, "n_heads": 4, "d_head": 10, "d_mlp": 44, "n_ctx": 13, "d_vocab": 37}
    match kind:
        case "post-norm encoder":
            config = TransformerConfig(encoder=StackConfig(**sizes, causal=False, wiring="post", embedding_norm=True))
        case "grouped queries":
            stack = StackConfig(
                **sizes, causal=True, n_kv_heads=2, positions=Rotary(), norm=RMSNorm(), mlp=Gated("silu")
            )
            config = TransformerConfig(decoder=stack, output="tied")
        case "attention only":
            config = TransformerConfig(decoder=StackConfig(**sizes, causal=True, mlp=NoMLP()))
        case "plain sums":
            stack = StackConfig(**sizes, causal=True, mlp=NoMLP(), norm=NoNorm(), attention_bias=False)
            config = TransformerConfig(decoder=stack)
        case _:
            config = TransformerConfig(decoder=StackConfig(**sizes, causal=True, wiring=kind))
    torch.manual_seed(0)
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn_like(weight))
    return model.to(dtype)


def ragged_pairs(lengths=LENGTHS, firsts=FIRSTS) -> Pairs:
    generator = torch.Generator().manual_seed(1)
    clean = [torch.randint(37, (length,), generator=generator).tolist() for length in lengths]
    corrupt = [list(row) for row in clean]
    for row, first in zip(corrupt, firsts, strict=True):
        row[first], row[first + 1] = (row[first] + 1) % 37, (row[first + 1] + 5) % 37
    batches = TokenBatch.from_rows(clean), TokenBatch.from_rows(corrupt)
    answers = torch.arange(1, 2 * len(lengths) + 1)
    return Pairs(*batches, answers[: len(lengths)], answers[len(lengths) :])


@pytest.mark.parametrize(("kind", "site", "by", "direction"), CASES, ids=str)
def test_every_cell_equals_one_plain_forward_pass(kind, site, by, direction):
    model, pairs = build(kind, torch.float64), ragged_pairs()
    metrics = [logit_difference(), kl_divergence()]
    fast = sweep(model, pairs, metrics, site, by, direction)
    plain = sweep_by_forward(model, pairs, metrics, site, by, direction)
    for name in ("logit_difference", "kl_divergence"):
        torch.testing.assert_close(fast.values[name], plain.values[name], rtol=1e-10, atol=1e-10, equal_nan=True)
        torch.testing.assert_close(fast.clean[name], plain.clean[name], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(fast.corrupt[name], plain.corrupt[name], rtol=1e-10, atol=1e-10)
    for of_each in (
        unpatched(model, pairs, metrics),
        unpatched_by_forward(model, pairs, prepared(model, pairs, metrics)),
    ):
        torch.testing.assert_close(of_each, (plain.clean, plain.corrupt), rtol=1e-10, atol=1e-10)
    effect = fast.effect("logit_difference").nan_to_num()
    assert effect.abs().max() > 1e-3  # a sweep that found nothing would prove nothing


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "site"), [("grouped queries", "pattern"), ("post-norm encoder", "scores")])
def test_every_entry_of_every_head_equals_one_plain_forward_pass(kind, site):
    model, pairs, by = build(kind, torch.float64), ragged_pairs(), ("layer", "head", "query", "key")
    fast, plain = (each(model, pairs, logit_difference(), site, by) for each in (sweep, sweep_by_forward))
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "site"),
    [("pre", "z"), ("grouped queries", "resid_pre"), ("grouped queries", "k"), ("post-norm encoder", "pattern")],
)
def test_in_float32_cells_agree_to_rounding(kind, site):
    model, pairs = build(kind, torch.float32), ragged_pairs()
    fast, plain = (each(model, pairs, logit_difference(), site, ("layer",)) for each in (sweep, sweep_by_forward))
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("site", "by"), [("z", ("layer", "head", "position")), ("resid_pre", ("layer",)), ("k", ("layer",))]
)
@pytest.mark.parametrize("kind", ["pre", "grouped queries", "post-norm encoder"])
def test_the_fused_kernel_for_long_prompts_gives_the_same_cells(kind, site, by, monkeypatch):
    monkeypatch.setattr(shared_keys, "_SMALL_ROWS", 0)  # every prompt counts as long
    model, pairs = build(kind, torch.float64), ragged_pairs()
    fast, plain = (each(model, pairs, logit_difference(), site, by) for each in (sweep, sweep_by_forward))
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-10, atol=1e-10, equal_nan=True)


def test_the_order_of_the_axes_is_that_of_the_table():
    model, pairs = build("pre", torch.float64), ragged_pairs()
    one, other = (
        sweep(model, pairs, logit_difference(), "z", ("layer", *by))
        for by in [("head", "position"), ("position", "head")]
    )
    values = one.values["logit_difference"].transpose(1, 2)
    torch.testing.assert_close(other.values["logit_difference"], values, equal_nan=True)


def test_all_metrics_in_one_sweep_equal_each_alone():
    model, pairs = build("pre", torch.float64), ragged_pairs()
    twice = function(
        lambda logits: logits[..., 0, 3] + logits[..., 1, 4], "sum", (pairs.last - torch.tensor([[1], [0]])).T
    )
    metrics = [logit_difference(), log_probability(), probability(), rank(), kl_divergence(), twice]
    together = sweep(model, pairs, metrics, "z", ("layer", "head", "position"))
    for metric in metrics:
        alone = sweep(model, pairs, metric, "z", ("layer", "head", "position"))
        torch.testing.assert_close(together.values[metric.name], alone.values[metric.name], equal_nan=True)
    plain = sweep_by_forward(model, pairs, metrics, "z", ("layer", "head", "position"))
    torch.testing.assert_close(together.values, plain.values, equal_nan=True)


@pytest.mark.parametrize("budget", [250_000, 1_000_000, 2 << 30])
def test_the_budget_changes_no_number(budget):
    model, pairs = build("pre", torch.float64), ragged_pairs()
    whole = sweep(model, pairs, logit_difference(), "z", ("layer", "head", "position"))
    tight = sweep(model, pairs, logit_difference(), "z", ("layer", "head", "position"), budget=budget)
    torch.testing.assert_close(tight.values, whole.values, rtol=1e-12, atol=1e-12, equal_nan=True)


class TestIdentities:
    """What holds for any model."""

    def test_positions_before_the_change_have_no_effect_and_beyond_the_text_are_missing(self):
        pairs = ragged_pairs()
        found = sweep(
            build("pre", torch.float64), pairs, logit_difference(), "resid_pre", ("layer", "position")
        ).effect()
        for prompt, (length, first) in enumerate(zip(LENGTHS, FIRSTS, strict=True)):
            assert (found[:, :first, prompt] == 0).all()
            assert found[:, length:, prompt].isnan().all()
            assert not found[:, :length, prompt].isnan().any()

    @pytest.mark.parametrize("direction", ["denoise", "noise"])
    def test_the_whole_stream_carries_the_whole_effect(self, direction):
        model, pairs = build("pre", torch.float64), ragged_pairs()
        found = sweep(model, pairs, logit_difference(), "resid_pre", ("layer",), direction)
        torch.testing.assert_close(found.effect(), found.difference().expand(3, -1), rtol=1e-9, atol=1e-9)

    def test_swapping_clean_and_corrupt_exchanges_the_directions(self):
        model, pairs = build("pre", torch.float64), ragged_pairs()
        denoise = sweep(model, pairs, logit_difference(), "z")
        noise = sweep(model, pairs.swapped(), logit_difference(), "z", direction="noise")
        torch.testing.assert_close(denoise.effect(), noise.effect(), rtol=1e-9, atol=1e-9)


class TestBadInput:
    """One clear error each."""

    def test_site_and_axes(self):
        model, pairs = build("pre", torch.float32), ragged_pairs()
        for site, by, message in [
            ("zz", ("layer",), "no patchable site 'zz'"),
            ("z", ("head",), "layer first"),
            ("resid_pre", ("layer", "head"), "resid_pre can be swept by layer first"),
            ("pattern", ("layer", "position"), "query"),
        ]:
            with pytest.raises(InputError, match=message):
                sweep(model, pairs, logit_difference(), site, by)
        with pytest.raises(InputError, match="no patchable site"):
            sweep(build("attention only", torch.float32), pairs, logit_difference(), "mlp_out", ("layer",))

    @pytest.mark.parametrize(
        ("metric", "message"),
        [
            (function(lambda logits: logits[..., 0, :], "whole"), "must give one number"),
            (function(lambda logits: logits[..., 0, 0] * torch.nan, "broken"), "broken is nan for prompt 0"),
        ],
    )
    def test_metrics_that_give_no_number(self, metric: Metric, message):
        with pytest.raises(InputError, match=message):
            sweep(build("pre", torch.float32), ragged_pairs(), metric)

    def test_a_budget_too_small_for_one_cell(self):
        with pytest.raises(InputError, match="too small for one cell"):
            sweep(build("pre", torch.float32), ragged_pairs(), logit_difference(), budget=1_000)

    def test_pairs(self):
        model = build("pre", torch.float32)
        ids = torch.arange(12).reshape(2, 6)
        other = ids + 1
        with pytest.raises(InputError, match="identical"):
            Pairs.from_ids(model, ids, ids)
        with pytest.raises(InputError, match="align"):
            Pairs.from_ids(model, ids, other[:, :5])
        with pytest.raises(InputError, match="no right answer"):
            sweep(model, Pairs.from_ids(model, ids, other), logit_difference())
