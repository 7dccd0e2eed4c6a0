"""Estimates beside exact effects: the table holds what the library computes, and the correlations what scipy says."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, spearmanr
from tiny import BERT
from worded import table, worded

from analyses import figures
from analyses import patch as patching
from analyses.patch import cell_estimates as estimates
from analyses.patch.cell_estimates import edge_rows
from analyses.patch.cells import sweeps
from interp import Transformer, TransformerConfig
from interp.patching import (
    Pairs,
    Receiver,
    atp_star,
    attribution_patching,
    edge_attribution,
    logit_difference,
    path_patch,
    sweep,
)

DIRECTIONS = ("denoise", "noise")
AXES = ("layer", "head", "position")


@pytest.fixture(scope="module")
def model() -> Transformer:
    return worded()


@pytest.fixture(scope="module")
def pairs(model) -> Pairs:
    return patching.make_pairs(model, table())


@pytest.fixture(scope="module")
def measured(model, pairs) -> estimates.Estimates:
    """By position, on prompts of unequal length: cells and edges."""
    return estimates.measure(model, pairs, by_position=True)


@pytest.fixture(scope="module")
def found(measured) -> pd.DataFrame:
    return measured.table


@pytest.fixture(scope="module")
def agreement(found) -> pd.DataFrame:
    return patching.correlations(found)


def rows_of(found: pd.DataFrame, method: str, direction: str) -> pd.DataFrame:
    return found.loc[(found["method"] == method) & (found["direction"] == direction)]


def at(rows: pd.DataFrame, axes: tuple[str, ...] = AXES) -> tuple[list[int], ...]:
    return tuple(rows[axis].tolist() for axis in axes)


# Cells.


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_exact_is_the_sweep_s_and_estimates_are_the_library_s(model, pairs, found, direction):
    patched = model, pairs, logit_difference()
    exact = sweep(*patched, "z", AXES, direction).effect()
    estimates = {  # AtP* has no sign: it is held against mean absolute effects
        "attribution patching": (exact, attribution_patching(*patched, {"z": AXES}, direction)["z"].effect()),
        "AtP*": (exact.abs(), atp_star(*patched, {"z": AXES}, direction)["z"].values["logit_difference"]),
    }
    for method, (effects, estimated) in estimates.items():
        rows = rows_of(found, method, direction)
        assert len(rows) == effects[..., 0].numel()
        assert rows.groupby("position")["n"].first().tolist() == [4, 4, 3, 2]  # prompts that reach a cell
        np.testing.assert_allclose(rows["exact"], effects.nanmean(-1)[at(rows)], atol=1e-7)
        np.testing.assert_allclose(rows["estimate"], estimated.nanmean(-1)[at(rows)], atol=1e-7)


@pytest.mark.parametrize("site", ["q", "k"])
def test_queries_and_keys_have_the_qk_fix(model, pairs, site):
    both = estimates.measure(model, pairs, site, directions=["noise"])
    table = both.table
    rows, by = rows_of(table, "QK fix", "noise"), ("layer", "head")
    fixed = attribution_patching(model, pairs, logit_difference(), {site: by}, "noise", qk_fix=True)[site]
    np.testing.assert_allclose(rows["estimate"], fixed.effect().nanmean(-1)[at(rows, by)], atol=1e-7)
    assert "--site z" in both.left_out["EAP, EAP-IG"]
    assert not table["sender"].notna().any()


def test_what_a_model_has_no_estimates_for_is_left_out_with_the_reason(model):
    post = replace(BERT, causal=True, d_vocab=model.config.d_vocab, n_token_types=0)
    edges = {"EAP", "EAP-IG"}
    for other, left_out, why, methods in (
        (worded(n_layers=1), "AtP*", "at least 2 layers", edges),
        (Transformer(TransformerConfig(decoder=post), model.tokenizer), "EAP, EAP-IG", "norms", {"AtP*"}),
    ):
        both = estimates.measure(other, patching.make_pairs(other, table()))
        assert why in both.left_out[left_out]
        assert set(both.table["method"]) == {"attribution patching", *methods}


# Edges.


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_edge_is_its_direct_path_and_its_score(model, pairs, measured, found, direction):
    edges = found.loc[found["sender"].notna()]
    from_embedding = edges["sender"] == "embed"
    assert (edges["exact"].isna() == from_embedding).all()
    assert (measured.edges["edges"], measured.edges["from_embedding"]) == (len(edges) / 4, from_embedding.sum() / 4)
    assert not measured.edges["sampled"]
    for method, steps in (("EAP", 1), ("EAP-IG", 5)):
        rows = rows_of(found, method, direction).set_index(["sender", "receiver"])
        scored = edge_attribution(model, pairs, logit_difference(), direction, steps=steps)
        sign = 1 if direction == "denoise" else -1
        for sender, receiver, score in scored.top(10**6):
            assert rows.loc[(sender, receiver), "estimate"] == pytest.approx(sign * score, abs=1e-6)
        assert len(rows) == int((~scored.effect().isnan().any(-1)).sum())
    heads = path_patch(model, pairs, logit_difference(), [Receiver("q", 1, 2)], direction=direction).effect().mean(-1)
    feeds = path_patch(
        model, pairs, logit_difference(), [Receiver("logits")], "mlp_out", ("layer",), direction=direction
    )
    for head in range(3):
        assert rows.loc[(f"0.{head}", "1.2.q"), "exact"] == pytest.approx(float(heads[0, head]), abs=1e-7)
    for layer in range(2):
        expected = float(feeds.effect().mean(-1)[layer])
        assert rows.loc[(f"mlp.{layer}", "logits"), "exact"] == pytest.approx(expected, abs=1e-7)


def test_of_many_edges_some_are_measured_and_chance_s_alone_are_counted(model, pairs, monkeypatch):
    monkeypatch.setattr(estimates, "_RECEIVERS", 3)
    exact = sweeps(model, pairs, "z", by_position=False, directions=["denoise"], metrics=["logit_difference"])
    rows, said = edge_rows(model, pairs, exact, seed=1, few=10)
    again, _ = edge_rows(model, pairs, exact, seed=1, few=10)
    pd.testing.assert_frame_equal(rows, again)
    measured = rows.loc[rows["exact"].notna()]
    assert said["sampled"]
    assert measured.loc[measured["chosen"] == "chance", "receiver"].nunique() == said["receivers"] == 3
    assert measured["receiver"].nunique() <= 6
    assert set(rows["chosen"]) == {"no", "chance", "strongest"}
    assert (rows["exact"].isna() == (rows["chosen"] == "no")).all()
    drawn = measured.loc[(measured["method"] == "EAP") & (measured["chosen"] == "chance")]
    whole = rows.reindex(columns=estimates.ESTIMATE_COLUMNS)
    counted = patching.correlations(whole).set_index("method")
    assert counted.loc["EAP", "n"] == len(drawn)
    assert counted.loc["EAP", "unmeasured"] == (rows_of(rows, "EAP", "denoise")["exact"].isna()).sum()
    figures.estimate_panels(whole, counted.reset_index(), "logit_difference").draw_without_rendering()


# Correlations.


def test_correlations_are_scipy_s_on_the_columns(found, agreement):
    assert len(agreement) == 8
    for row in agreement.to_dict("records"):
        rows = rows_of(found, row["method"], row["direction"])
        rows = rows.loc[~rows["idle"] & rows["exact"].notna()]
        assert row["n"] == len(rows)
        assert row["spearman"] == pytest.approx(spearmanr(rows["exact"], rows["estimate"]).statistic)
        assert row["pearson"] == pytest.approx(pearsonr(rows["exact"], rows["estimate"]).statistic)


def test_what_moves_nothing_is_no_agreement(found, agreement):
    rows = rows_of(found, "attribution patching", "denoise")
    idle = rows.loc[rows["idle"]]
    assert (idle["exact"].abs() < 1e-6).all()
    last = rows.loc[(rows["layer"] == 1) & (rows["position"] == 0)]
    assert last["idle"].all()  # nothing reads the last layer but at the end of a prompt
    assert agreement.set_index(["method", "direction"]).loc[("AtP*", "denoise"), "idle"] == len(idle)


def test_a_gradient_of_nothing_has_no_correlation(model, pairs):
    table = estimates.measure(model, pairs, metrics=["kl_divergence"], directions=["noise"]).table
    found = patching.correlations(table)
    by_method = found.set_index("method")["spearman"]
    assert by_method[["attribution patching", "AtP*", "EAP"]].isna().all()
    assert np.isfinite(by_method["EAP-IG"])
    assert any("rank correlation –" in line for line in patching.agreement_lines(found))


# The figure.


def test_panels_are_titled_with_their_correlations_have_one_scale_and_name_the_worst_missed(found, agreement):
    row = rows_of(found, "attribution patching", "denoise").index[-1]
    missed = found.assign(estimate=found["estimate"] + (found.index == row), idle=found["idle"] & (found.index != row))
    figure = figures.estimate_panels(missed, agreement, "logit_difference")
    assert len(figure.axes) == len(agreement)
    assert {ax.get_xlim() == ax.get_ylim() for ax in figure.axes} == {True}
    first = agreement.to_dict("records")[0]
    title = " ".join(figure.axes[0].get_title().split())
    assert title.startswith(f"{first['method']}, {first['direction']}")
    assert f"ρ {first['spearman']:.2f}".replace("-", "−") in title
    assert f"n {first['n']}" in title
    assert [text.get_text() for text in figure.axes[0].texts] == [figures.cell_name(missed.loc[row].to_dict())]
    assert figures.cell_name({"sender": "mlp.0", "receiver": "1.2.q"}) == "L0.MLP → L1.H2.q"
