"""`interp patch`: same numbers as a sweep, estimates, refusals in one line, figures that say where."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import command, refusal
from matplotlib.collections import QuadMesh
from pages import outside_addresses, page_of, unlisted
from scipy.stats import pearsonr, spearmanr
from tiny import BERT
from worded import ROWS, table, worded

import interp
from analyses import figures
from analyses import patch as patching
from analyses.cli import command_frame as frame
from analyses.cli.command_frame import Metric
from analyses.patch import cell_estimates
from analyses.patch.cell_estimates import edge_rows
from analyses.patch.cells import cells_of, sweeps
from interp import Transformer, TransformerConfig
from interp.errors import InputWarning
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
from interp.patching.pair_files import with_space
from interp.patching.results import cell_rows

ONE = "--clean", "Tim saw", "--corrupt", "Sue saw", "--answer", "He", "--wrong", "She"
HOSTILE, IMAGE = "<script>alert(1)</script>", "<img/src=x>"


@pytest.fixture(scope="module")
def model() -> Transformer:
    return worded()


@pytest.fixture(scope="module")
def pairs(model) -> Pairs:
    return patching.make_pairs(model, table())


@pytest.fixture(scope="module")
def by_position(model, pairs) -> pd.DataFrame:
    return patching.measure(model, pairs, by_position=True)


@pytest.fixture
def folder(tmp_path, monkeypatch, model) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frame, "opened", lambda *_: model)
    return tmp_path


@pytest.fixture
def patched(folder, capsys):
    """Run the command; return its cells, run.json and page text."""

    def run(*arguments: str) -> tuple[pd.DataFrame, dict, str]:
        ended = command(capsys, "patch", *arguments)
        assert (ended.code, "interp:" in ended.err) == (0, False)
        facts = json.loads((folder / "patch/run.json").read_text())
        assert all((folder / "patch" / name).is_file() for name in facts["files"])
        cells = pd.read_parquet(folder / "patch/tables/cells.parquet")
        return cells, facts | {"printed": ended.out}, " ".join(page_of(folder / "patch").text.split())

    return run


def on_rows(model: Transformer, rows, site: str = "z") -> pd.DataFrame:
    return patching.measure(model, patching.make_pairs(model, table(rows)), site, by_position=True)


def test_what_is_too_little_to_tell_has_no_interval(model, by_position):
    cells = on_rows(model, ROWS[:1])  # a single pair
    assert cells[["ci_low", "ci_high", "p", "q", "share_low"]].isna().all(axis=None)
    assert set(cells["n"]) == {1}
    assert cells.groupby("position")["token"].first().tolist() == ["Tim", "saw"]
    assert cells.groupby("position")["corrupt_token"].first().tolist() == ["Sue", "saw"]
    bounds = ["ci_low", "ci_high", "share_low", "share_high"]
    assert by_position.loc[by_position["n"] == 2, bounds].isna().all(axis=None)  # bounds would coincide
    assert by_position.loc[(by_position["n"] == 3) & (by_position["effect"] != 0), "ci_low"].notna().any()
    assert by_position["token"].isna().all()  # prompts differ there
    table = on_rows(model, [("the dog saw Tim", "the dog saw Sue", "He", "She")] * 3)
    before = table[table["position"] < 3]  # cells that change nothing are not tested
    assert (before["effect"] == 0).all()
    assert before["p"].isna().all()


def test_shares_are_the_same_where_the_whole_difference_is_below_zero():
    values, whole = torch.tensor([[1.0, 1.5, 2.0]]), torch.tensor([2.0, 2.5, 4.0])
    up, down = (cell_rows(("cell",), way * values, torch.zeros(3), way * whole) for way in (1, -1))
    for name in ("share", "share_low", "share_high"):
        assert down[name].tolist() == pytest.approx(up[name].tolist())


def test_a_bare_word_gets_its_space_and_the_command_has_the_table_s_metrics():
    cases = [("was sad", "she"), ("was sad ", "she"), ("was sad", " she"), ("was sad", ", she")]
    assert [with_space(*each) for each in cases] == [" she", "she", " she", ", she"]
    assert [each.value for each in Metric] == list(patching.METRICS)


def test_python_gives_no_share_that_the_command_refuses(model):
    failing = patching.make_pairs(model, table([(a, b, wrong, right) for a, b, right, wrong in ROWS]))
    (exact,) = sweeps(model, failing, "z", directions=["noise"], metrics=["probability", "log_probability"])
    refused = cells_of(model, [exact])
    assert [*refused.share_refused] == ["probability", "log_probability"]
    with pytest.warns(InputWarning, match="no shares"):
        pd.testing.assert_series_equal(exact.table()["share"], refused.table["share"])


def test_both_directions_have_one_scale_and_the_table_s_values(model, pairs):
    whole = patching.measure(model, pairs, "resid_pre", metrics=["logit_difference", "kl_divergence"])
    np.testing.assert_allclose(whole["share"].dropna(), 1, atol=1e-4)  # the whole stream carries everything
    assert whole[["head", "position"]].isna().all(axis=None)
    cells = patching.measure(model, pairs, "resid_pre", by_position=True)
    figure = figures.cell_map(cells, "logit_difference")
    meshes = [each for ax in figure.axes[:2] for each in ax.collections if isinstance(each, QuadMesh)]
    assert meshes[0].norm is meshes[1].norm
    quantity = "share" if cells["share"].notna().any() else "effect"
    values = np.asarray(meshes[0].get_array(), dtype=float).ravel()
    np.testing.assert_allclose(values, cells.loc[cells["direction"] == "denoise", quantity])
    dollars = on_rows(worded("$a", "$b"), [("$a saw", "$b saw", "He", "She")], "resid_pre")
    alone = figures.cell_map(dollars, "logit_difference")
    alone.draw_without_rendering()  # a dollar sign starts no formula
    labels = [each.get_text().replace("\\", "") for each in alone.axes[0].get_xticklabels()]
    assert labels == ["$a/$b", "saw"]  # the clean token and the corrupted one


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (b"", "empty"),
        (b"clean,corrupt,answer,wrong\n", "no rows"),
        (b"clean,corrupted,answer,wrong\na,b,c,d\n", "it has clean, corrupted"),
        (b"clean,corrupt,answer,wrong\na,b,b,c,d\n", "quotes"),
        (b"clean\tcorrupt\tanswer\twrong\na\tb\tc\td\n", "answer wrong; put commas between columns"),
        (b"\xff\xfe\x00", "CSV"),
        ([*ONE[:6]], "--wrong is not given"),
        ([*ONE, "--pairs", "pairs.csv"], "got --pairs"),
        (["--pairs", "nowhere.csv"], "nowhere.csv"),
        ([*ONE, "--corrupt", "Sue saw the"], "named positions align one pair with another"),
        ([*ONE, "--corrupt", "Tim saw"], "identical"),
        ([*ONE, "--wrong", "He"], "answers are the same"),
        ([*ONE, "--wrong", "Shee"], "lacks an answer: check the spelling of ' He' and ' Shee'"),
        ([*ONE, "--site", "zz"], "expected one of resid_pre"),
        ([*ONE, "--metric", "losses"], "losses"),
        ([*ONE, "--target", "He"], "reads one text"),
        ([*ONE, "--stack", "encoder"], "no stack 'encoder'"),
        ([*ONE, "--estimates", "--metric", "logit_difference", "--metric", "rank"], "rank has no gradient"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(folder, capsys, arguments, says):
    """Bad arguments, or bad content of a file of pairs."""
    if isinstance(arguments, bytes):
        Path("pairs.csv").write_bytes(arguments)
    before = os.listdir(folder)
    options = ["--pairs", "pairs.csv"] if isinstance(arguments, bytes) else arguments
    assert says in refusal(capsys, "patch", *options)
    assert os.listdir(folder) == before


def test_the_page_has_every_section_and_needs_nothing_from_outside(folder, patched, monkeypatch):
    table().to_csv("pairs.csv", index=False)
    options = "--pairs", "pairs.csv", "--estimates", "--direction", "denoise"
    monkeypatch.setattr(sys, "argv", ["interp", "patch", *options, "--out", "patch"])
    cells, facts, text = patched(*options)
    strongest = figures.cell_name(cells.loc[cells["effect"].abs().idxmax()].to_dict())
    printed = facts["printed"].replace(" \\\n        ", " ").splitlines()
    assert printed[-4] == f"wrote {os.path.join('patch', 'report.html')}; beside it run.json and tables/"
    assert printed[-3].startswith("open file:///")
    assert printed[-2] == f"next: interp view 'Tim saw' --head {strongest}"  # the prompt that was run, not one of ours
    assert printed[-1] == f"      interp patch {' '.join(options)} --by-position"
    assert sum("rank correlation" in line for line in printed) == 4
    page = page_of(folder / "patch")
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "h2" and "id" in attrs]
    assert ids[:1] + ids[2:] == ["attention", "estimates", "reading", "made", "cite"]
    assert (outside_addresses(page), unlisted(page)) == ([], [])
    assert not any(tag in {"link", "iframe", "object"} for tag, _ in page.tags)
    phrases = "4 pairs of prompts from pairs.csv.", "Fewer than 20 pairs", "In short", "This model has two layers"
    assert [each for each in phrases if each not in text] == []
    assert "nan" not in text.lower().split()
    assert f"Put back alone: {strongest}" in text
    assert {"tables/estimates.csv", "tables/correlations.parquet", "report.html"} <= set(facts["files"])
    assert facts["estimates"]["edges"]["steps"] == 5


def test_bars_are_the_answers_probabilities_and_cells_lead_to_attention(folder, patched, model, pairs):
    table().to_csv("pairs.csv", index=False)
    cells, _, _ = patched("--pairs", "pairs.csv", "--direction", "noise")
    shares = pd.read_csv(folder / "patch/tables/pairs.csv")
    ends = torch.arange(len(pairs)), pairs.last
    for side, text in (("clean", pairs.clean), ("corrupt", pairs.corrupt)):
        exact = interp.run(model, text).logits[ends].softmax(-1)
        for kind, ids in (("right", pairs.right), ("wrong", pairs.wrong)):
            np.testing.assert_allclose(shares[f"{side}_{kind}_probability"], exact[ends[0], ids], rtol=1e-5)
    layer, head = cells.loc[cells["effect"].abs().idxmax(), ["layer", "head"]]
    site = f"decoder.{layer}.attn.z"
    corrupted = interp.run(model, pairs.corrupt, capture=site)[site]
    patched_run = interp.run(model, pairs.clean, edit={site: interp.patch(corrupted, head=int(head))})
    exact = patched_run.logits[ends].softmax(-1)[ends[0]]
    page = (folder / "patch/report.html").read_text("utf-8")
    bar = rf"Taken out: the clean prompt with .*L{layer}\.H{head}<.* from the corrupted one</dt>\s*<dd>(.*?)</dd>"
    percents = [int(each) for each in re.findall(r"(\d+)%", re.findall(bar, page)[0])]
    assert percents == [round(100 * float(exact[ends[0], ids].mean())) for ids in (pairs.right, pairs.wrong)]
    assert f'href="#L{layer}.H{head}/1"' in page  # from the last token of the first pair


def test_a_page_says_what_was_left_out_and_refused(folder, patched, capsys):
    swapped = [(b, a, r, w) for a, b, r, w in ROWS]
    table([*ROWS, *swapped, ("Tim saw", "Sue saw the", "He", "She")]).to_csv("pairs.csv", index=False)
    assert "row 9 of pairs.csv" in refusal(capsys, "patch", "--pairs", "pairs.csv")
    assert os.listdir(folder) == ["pairs.csv"]
    _, facts, text = patched("--pairs", "pairs.csv", "--drop", "--site", "mlp_out")
    assert facts["prompts"]["left_out"] == {"the prompts do not align": 1}
    assert pd.read_csv(folder / "patch/tables/pairs.csv")["row"].tolist() == [*range(1, 9)]
    phrases = ["Left out: 1 pair, because the prompts do not align.", "no shares are given: the whole effect is"]
    phrases += ["Put back alone: L", "Each cell patched alone: its effect"]
    assert [each for each in phrases if each not in text] == []


def test_one_pair_has_its_metrics_and_no_estimates_and_its_page_escapes_what_it_says(folder, patched, monkeypatch):
    monkeypatch.setattr(frame, "opened", lambda *_: worded(HOSTILE, IMAGE))
    monkeypatch.setattr(frame, "title", lambda _: f"a {HOSTILE}")
    prompts = ["--clean", f"{HOSTILE} saw", "--corrupt", f"{IMAGE} saw", "--answer", "She", "--wrong", "He"]
    cells, facts, text = patched(*prompts, "--by-position", "--metric", "rank", "--metric", "kl_divergence")
    assert (set(cells["metric"]), set(cells["direction"])) == ({"rank", "kl_divergence"}, {"denoise", "noise"})
    assert facts["prompts"]["pairs"] == 1
    assert not any("estimates" in name for name in facts["files"])
    assert "One pair says nothing about other prompts" in text
    page = page_of(folder / "patch")
    assert (outside_addresses(page), unlisted(page)) == ([], [])
    assert text.count(HOSTILE) >= 3
    assert IMAGE in text


# An encoder and a decoder.


@pytest.fixture
def two(folder, monkeypatch, model) -> Transformer:
    """An encoder-decoder of one vocabulary; its decoder starts with "the"."""
    stack = model.config.last
    stacks = {"encoder": replace(stack, causal=False, n_heads=2), "decoder": replace(stack, cross_attention=True)}
    torch.manual_seed(0)
    built = Transformer(TransformerConfig(**stacks, target_start=4), model.tokenizer)
    monkeypatch.setattr(frame, "opened", lambda *_: built)
    return built


@pytest.mark.parametrize(
    ("arguments", "stack", "attention"),
    [
        (["--attention", "cross"], "decoder", "cross"),
        (["--stack", "encoder", "--site", "resid_pre", "--by-position", "--target", "He saw"], "encoder", "self"),
        (["--site", "cross_attn_out", "--target", "He"], "decoder", "cross"),
        (["--attention", "cross", "--site", "pattern", "--by-position"], "decoder", "cross"),
    ],
    ids=str,
)
def test_an_encoder_decoder_is_patched_where_it_is_asked_to(two, patched, arguments, stack, attention):
    cells, _, text = patched(*ONE, *arguments)
    assert set(zip(cells["stack"], cells["attention"], strict=True)) == {(stack, attention)}
    assert "in the encoder" in text or "in the decoder" in text
    assert "target of both" in text
    if "pattern" in arguments:
        assert set(cells["token"].dropna()) == {"the"}  # queries are in the target
        assert "saw" in set(cells["key_token"].dropna())  # keys are in the source


def test_a_task_that_the_model_fails_is_said_first_and_has_no_shares(patched, model, pairs):
    clean = sweep(model, pairs, logit_difference()).difference("logit_difference")
    good = int(clean.argmax() if clean.max() > -clean.min() else clean.argmin())
    (a, b, right, wrong) = ROWS[good]
    answer, rival = (right, wrong) if clean[good] < 0 else (wrong, right)
    cells, facts, text = patched("--clean", a, "--corrupt", b, "--answer", answer, "--wrong", rival)
    lines = facts["printed"].splitlines()
    answered, refused, *_ = (number for number, line in enumerate(lines) if line.startswith(("The model", "no shares")))
    assert "The logit difference rises" in " ".join(lines[answered:refused])
    assert lines[refused].startswith("no shares: the sign is wrong")
    assert " ".join(lines).count("sign") == 1
    assert facts["answers"]["difference"] < 0
    assert cells["share"].isna().all()
    assert text.index("difference rises") < text.index("no shares are given") < text.index("We patched")


def test_names_in_a_file_are_patched_alone_and_stand_in_the_table(folder, patched, capsys):
    rows = [("{S:Tim} saw", "Sue saw", "He", "She"), ("the dog saw {S:Tim}", "the dog saw Sue", "He", "She")]
    table(rows).to_csv("pairs.csv", index=False)
    cells, facts, _ = patched("--pairs", "pairs.csv", "--position", "END=-1")
    assert set(cells["position"]) == {"S", "END"}
    assert [*facts["positions"].items()] == [("S", [0, 3]), ("END", [1, 3])]  # in the prompts' order
    assert cells.loc[cells["position"] == "S", "token"].unique().tolist() == ["Tim"]
    assert not command(capsys, "patch", "--pairs", "pairs.csv", "--whole-prompts", "--out", "whole").code
    assert pd.read_parquet(folder / "whole/tables/cells.parquet")["position"].isna().all()


AXES = ("layer", "head", "position")


def estimated(model: Transformer, pairs: Pairs, site: str = "z", **options) -> cell_estimates.Estimates:
    return cell_estimates.estimates_of(model, pairs, sweeps(model, pairs, site, **options))


@pytest.fixture(scope="module")
def measured(model, pairs) -> cell_estimates.Estimates:
    """Estimates by position, on prompts of unequal length: cells and edges."""
    return estimated(model, pairs, by_position=True)


@pytest.fixture(scope="module")
def all_rows(measured) -> pd.DataFrame:
    return measured.table


@pytest.fixture(scope="module")
def agreement(all_rows) -> pd.DataFrame:
    return patching.correlations(all_rows)


def rows_of(all_rows: pd.DataFrame, method: str, direction: str) -> pd.DataFrame:
    return all_rows.loc[(all_rows["method"] == method) & (all_rows["direction"] == direction)]


def cells_at(rows: pd.DataFrame, axes: tuple[str, ...] = AXES) -> tuple[list[int], ...]:
    return tuple(rows[axis].tolist() for axis in axes)


# Cells.


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_effects_are_the_sweep_s_means_and_estimates_the_library_s(model, pairs, by_position, all_rows, direction):
    patched = model, pairs, logit_difference()
    exact = sweep(*patched, "z", AXES, direction).effects()
    cells = by_position.loc[by_position["direction"] == direction]
    np.testing.assert_allclose(cells["effect"], exact.nanmean(-1)[cells_at(cells)], atol=1e-6)
    assert len(cells) == exact[..., 0].numel()
    assert cells.groupby("position")["n"].first().tolist() == [4, 4, 3, 2]  # prompts that reach it
    estimates = {  # AtP* has no sign, so it is compared with mean absolute effects
        "attribution patching": (exact, attribution_patching(*patched, {"z": AXES}, direction)["z"].effects()),
        "AtP*": (exact.abs(), atp_star(*patched, {"z": AXES}, direction)["z"].values["logit_difference"]),
    }
    for method, (effects, estimated) in estimates.items():
        rows = rows_of(all_rows, method, direction)
        assert len(rows) == effects[..., 0].numel()
        assert rows.groupby("position")["n"].first().tolist() == [4, 4, 3, 2]  # prompts that reach a cell
        np.testing.assert_allclose(rows["exact"], effects.nanmean(-1)[cells_at(rows)], atol=1e-7)
        np.testing.assert_allclose(rows["estimate"], estimated.nanmean(-1)[cells_at(rows)], atol=1e-7)


@pytest.mark.parametrize("site", ["q", "k"])
def test_queries_and_keys_have_the_qk_fix(model, pairs, site):
    result = estimated(model, pairs, site, directions=["noise"])
    rows, by = rows_of(result.table, "QK fix", "noise"), ("layer", "head")
    fixed = attribution_patching(model, pairs, logit_difference(), {site: by}, "noise", qk_fix=True)[site]
    np.testing.assert_allclose(rows["estimate"], fixed.effects().nanmean(-1)[cells_at(rows, by)], atol=1e-7)
    assert "--site z" in result.left_out["EAP, EAP-IG"]
    assert result.table["sender"].isna().all()


def test_what_a_model_has_no_estimates_for_is_left_out_with_the_reason(model):
    post = replace(BERT, causal=True, d_vocab=model.config.d_vocab, n_token_types=0)
    edges = {"EAP", "EAP-IG"}
    posted = Transformer(TransformerConfig(decoder=post), model.tokenizer)
    cases = (worded(n_layers=1), "AtP*", "at least 2 layers", edges), (posted, "EAP, EAP-IG", "norms", {"AtP*"})
    for variant, left_out, why, methods in cases:
        result = estimated(variant, patching.make_pairs(variant, table()))
        assert why in result.left_out[left_out]
        assert set(result.table["method"]) == {"attribution patching", *methods}


# Edges.


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_an_edge_is_its_direct_path_and_its_score(model, pairs, measured, all_rows, direction):
    edges = all_rows.loc[all_rows["sender"].notna()]
    from_embedding = edges["sender"] == "embed"
    assert (edges["exact"].isna() == from_embedding).all()
    assert (measured.edges["edges"], measured.edges["from_embedding"]) == (len(edges) / 4, from_embedding.sum() / 4)
    assert not measured.edges["sampled"]
    for method, steps in (("EAP", 1), ("EAP-IG", 5)):
        rows = rows_of(all_rows, method, direction).set_index(["sender", "receiver"])
        scored = edge_attribution(model, pairs, logit_difference(), direction, steps=steps)
        sign = 1 if direction == "denoise" else -1
        for sender, receiver, score in scored.top(10**6):
            assert rows.loc[(sender, receiver), "estimate"] == pytest.approx(sign * score, abs=1e-6)
        assert len(rows) == int((~scored.effects().isnan().any(-1)).sum())
    inputs = model, pairs, logit_difference()
    heads = path_patch(*inputs, [Receiver("q", 1, 2)], direction=direction).effects().mean(-1)
    feeds = path_patch(*inputs, [Receiver("logits")], "mlp_out", ("layer",), direction=direction).effects().mean(-1)
    effects = {(f"0.{head}", "1.2.q"): heads[0, head] for head in range(3)}
    effects |= {(f"mlp.{layer}", "logits"): effect for layer, effect in enumerate(feeds)}
    for edge, effect in effects.items():
        assert rows.loc[edge, "exact"] == pytest.approx(float(effect), abs=1e-7)


def test_of_many_edges_some_are_measured_and_chance_s_alone_are_counted(model, pairs, monkeypatch):
    monkeypatch.setattr(cell_estimates, "_RECEIVERS", 3)
    exact = sweeps(model, pairs, "z", by_position=False, directions=["denoise"], metrics=["logit_difference"])
    rows, facts = edge_rows(model, pairs, exact[0], seed=1, few=10)
    again, _ = edge_rows(model, pairs, exact[0], seed=1, few=10)
    pd.testing.assert_frame_equal(rows, again)
    measured = rows.loc[rows["exact"].notna()]
    assert facts["sampled"]
    assert measured.loc[measured["chosen"] == "chance", "receiver"].nunique() == facts["receivers"] == 3
    assert measured["receiver"].nunique() <= 6
    assert set(rows["chosen"]) == {"no", "chance", "strongest"}
    assert (rows["exact"].isna() == (rows["chosen"] == "no")).all()
    sample = measured.loc[(measured["method"] == "EAP") & (measured["chosen"] == "chance")]
    whole = rows.reindex(columns=cell_estimates.ESTIMATE_COLUMNS)
    correlations = patching.correlations(whole).set_index("method")
    assert correlations.loc["EAP", "n"] == len(sample)
    assert correlations.loc["EAP", "unmeasured"] == (rows_of(rows, "EAP", "denoise")["exact"].isna()).sum()


# Correlations.


def test_correlations_are_scipy_s_on_the_columns_and_what_moves_nothing_is_no_agreement(all_rows, agreement):
    assert len(agreement) == 8
    for row in agreement.to_dict("records"):
        rows = rows_of(all_rows, row["method"], row["direction"])
        rows = rows.loc[~rows["idle"] & rows["exact"].notna()]
        assert row["n"] == len(rows)
        assert row["spearman"] == pytest.approx(spearmanr(rows["exact"], rows["estimate"]).statistic)
        assert row["pearson"] == pytest.approx(pearsonr(rows["exact"], rows["estimate"]).statistic)
    rows = rows_of(all_rows, "attribution patching", "denoise")
    idle = rows.loc[rows["idle"]]
    assert (idle["exact"].abs() < 1e-6).all()
    last = rows.loc[(rows["layer"] == 1) & (rows["position"] == 0)]
    assert last["idle"].all()  # the last layer is only read at a prompt's end
    assert agreement.set_index(["method", "direction"]).loc[("AtP*", "denoise"), "idle"] == len(idle)


def test_a_gradient_of_nothing_has_no_correlation(model, pairs):
    result = estimated(model, pairs, metrics=["kl_divergence"], directions=["noise"])
    correlations = patching.correlations(result.table)
    by_method = correlations.set_index("method")["spearman"]
    assert by_method[["attribution patching", "AtP*", "EAP"]].isna().all()
    assert np.isfinite(by_method["EAP-IG"])
    assert any("rank correlation –" in line for line in patching.agreement_lines(correlations))
