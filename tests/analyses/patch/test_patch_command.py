"""`interp patch`: the same numbers as a sweep, refusals in one line, and figures that say where."""

import json
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import QuadMesh
from pages import outside_addresses, page_of, unlisted
from worded import ROWS, table, worded

from analyses import figures
from analyses import patch as patching
from analyses.cli import app as cli
from analyses.cli import command_frame as frame
from analyses.cli.options import Metric
from analyses.patch.cells import cells_of, sweeps
from interp import InputError, Transformer, TransformerConfig
from interp.errors import InputWarning
from interp.patching import Pairs, logit_difference, sweep
from interp.patching.cell_tables import estimates
from interp.patching.pair_files import with_space


@pytest.fixture(scope="module")
def model() -> Transformer:
    return worded()


@pytest.fixture
def pairs(model) -> Pairs:
    return patching.make_pairs(model, table())


@pytest.fixture
def here(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frame, "opened", lambda *_: model)
    return tmp_path


def command(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["patch", *arguments])
    return ended.value.code


def refusal(capsys, *arguments: str) -> str:
    assert command(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("interp: ")
    return line


ONE = ["--clean", "Tim saw", "--corrupt", "Sue saw", "--answer", "He", "--wrong", "She"]


# The table.


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_effects_are_the_means_of_the_sweep(model, pairs, direction):
    cells = patching.measure(model, pairs, by_position=True, directions=[direction])
    found = sweep(model, pairs, logit_difference(), "z", ("layer", "head", "position"), direction)
    expected = found.effect().nanmean(-1)
    assert len(cells) == expected.numel()
    for row in cells.to_dict("records"):
        assert row["effect"] == pytest.approx(float(expected[row["layer"], row["head"], row["position"]]), abs=1e-6)
    assert cells.groupby("position")["n"].first().tolist() == [4, 4, 3, 2]  # prompts that reach it


def test_shares_keep_prompts_that_differ_the_other_way():
    found = estimates(np.array([[1.0], [-1.0], [6.0]]), np.zeros(3), np.array([2.0, -2.0, 12.0]), 0)
    assert found["share"] == pytest.approx([0.5])
    assert found["effect"] == pytest.approx([2.0])


def test_a_whole_difference_below_zero_gives_the_same_share():
    values, whole = np.array([[1.0], [1.5], [2.0]]), np.array([2.0, 2.5, 4.0])
    up, down = (estimates(way * values, np.zeros(3), way * whole, 0) for way in (1, -1))
    for name in ("share", "share_low", "share_high"):
        assert down[name] == pytest.approx(up[name])


def test_the_whole_stream_carries_everything(model, pairs):
    cells = patching.measure(model, pairs, "resid_pre", metrics=["logit_difference", "kl_divergence"])
    np.testing.assert_allclose(cells["share"].dropna(), 1, atol=1e-4)
    assert cells["head"].isna().all()
    assert cells["position"].isna().all()


def test_a_single_pair_has_no_interval(model):
    cells = patching.measure(model, patching.make_pairs(model, table(ROWS[:1])), by_position=True)
    assert cells[["ci_low", "ci_high", "p", "q", "share_low"]].isna().all(axis=None)
    assert set(cells["n"]) == {1}
    assert cells.groupby("position")["token"].first().tolist() == ["Tim", "saw"]
    assert cells.groupby("position")["corrupt_token"].first().tolist() == ["Sue", "saw"]


def test_two_prompts_have_no_interval_whose_bounds_meet(model, pairs):
    cells = patching.measure(model, pairs, by_position=True)
    assert cells.loc[cells["n"] == 2, ["ci_low", "ci_high", "share_low", "share_high"]].isna().all(axis=None)
    assert cells.loc[(cells["n"] == 3) & (cells["effect"] != 0), "ci_low"].notna().any()


def test_cells_that_change_nothing_are_not_tested(model):
    pairs = patching.make_pairs(model, table([("the dog saw Tim", "the dog saw Sue", "He", "She")] * 3))
    cells = patching.measure(model, pairs, by_position=True)
    before = cells[cells["position"] < 3]
    assert (before["effect"] == 0).all()
    assert before["p"].isna().all()


def test_labels_are_missing_where_prompts_differ(model, pairs):
    cells = patching.measure(model, pairs, "v", by_position=True)
    assert cells["token"].isna().all()


def test_a_share_of_noise_is_refused_and_said(model):
    both = patching.make_pairs(model, table([*ROWS, *[(b, a, r, w) for a, b, r, w in ROWS]]))
    found = sweeps(model, both, "z", by_position=False, directions=["noise"], metrics=["logit_difference"])
    cells = cells_of(model, found)
    assert cells.table["share"].isna().all()
    assert "too little" in cells.share_refused["logit_difference"]


def test_python_gives_no_share_that_the_command_refuses(model):
    failing = patching.make_pairs(model, table([(a, b, wrong, right) for a, b, right, wrong in ROWS]))
    (found,) = sweeps(model, failing, "z", directions=["noise"], metrics=["probability", "log_probability"])
    refused = cells_of(model, [found])
    assert [*refused.share_refused] == ["probability", "log_probability"]
    with pytest.warns(InputWarning, match="no shares"):
        pd.testing.assert_series_equal(found.table()["share"], refused.table["share"])


def test_a_bare_word_gets_its_space():
    assert with_space("Lily was sad because", "she") == " she"
    assert with_space("Lily was sad because ", "she") == "she"
    assert with_space("Lily was sad because", " she") == " she"
    assert with_space("Lily was sad", ", she") == ", she"


# Figures.


@pytest.mark.parametrize(
    ("site", "by_position", "kinds"),
    [
        ("z", False, {"cells", "top"}),
        ("z", True, {"cells", "top"}),
        ("resid_pre", True, {"cells", "top"}),
        ("attn_out", False, {"top"}),
        ("pattern", True, {"cells", "top"}),
    ],
)
@pytest.mark.parametrize("count", [1, 4])
def test_every_sweep_has_its_figures(model, site, by_position, kinds, count):
    cells = patching.measure(model, patching.make_pairs(model, table(ROWS[:count])), site, by_position=by_position)
    drawn = figures.sweep_figures(cells, "logit_difference")
    assert set(drawn) == kinds
    for figure in drawn.values():
        assert figure.get_suptitle().endswith("?")
        figure.draw_without_rendering()
        texts = figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
        assert min(text.get_fontsize() for text in texts if text.get_text()) >= 8


def test_both_directions_have_one_scale_and_the_table_s_values(model, pairs):
    cells = patching.measure(model, pairs, "resid_pre", by_position=True)
    figure = figures.cell_map(cells, "logit_difference")
    meshes = [each for ax in figure.axes[:2] for each in ax.collections if isinstance(each, QuadMesh)]
    assert meshes[0].norm is meshes[1].norm
    quantity = "share" if cells["share"].notna().any() else "effect"
    shown = np.asarray(meshes[0].get_array(), dtype=float).ravel()
    np.testing.assert_allclose(shown, cells.loc[cells["direction"] == "denoise", quantity])


def test_the_corrupted_token_stands_below_the_clean_one(model):
    cells = patching.measure(model, patching.make_pairs(model, table(ROWS[:1])), "resid_pre", by_position=True)
    labels = [each.get_text() for each in figures.cell_map(cells, "logit_difference").axes[0].get_xticklabels()]
    assert labels == ["Tim\nSue", "saw"]


def test_a_wild_interval_leaves_the_dots_apart(model, pairs):
    cells = patching.measure(model, pairs)
    cells.loc[0, "ci_high"] = cells.loc[0, "share_high"] = 1e6
    ax = figures.top_cells(cells, "logit_difference").axes[0]
    assert ax.get_xlim()[1] < 100
    assert "beyond the edge" in ax.get_xlabel()


def test_a_dollar_sign_in_a_token_is_one():
    dollars = worded("$a", "$b")
    pairs = patching.make_pairs(dollars, table([("$a saw", "$b saw", "He", "She")]))
    cells = patching.measure(dollars, pairs, by_position=True)
    assert figures.cell_name(cells.to_dict("records")[0]).endswith("($a/$b)")
    for figure in figures.sweep_figures(cells, "logit_difference").values():
        figure.draw_without_rendering()


# The command.


def test_it_writes_tables_figures_and_what_they_were_made_from(here, capsys):
    assert not command(*ONE, "--metric", "rank", "--metric", "kl_divergence", "--by-position")
    assert "wrote" in capsys.readouterr().out
    cells = pd.read_parquet(here / "patch/tables/cells.parquet")
    assert set(cells["metric"]) == {"rank", "kl_divergence"}
    assert set(cells["direction"]) == {"denoise", "noise"}
    facts = json.loads((here / "patch/run.json").read_text())
    assert facts["prompts"]["pairs"] == 1
    assert all((here / "patch" / name).is_file() for name in facts["files"])
    assert (here / "patch/figures/cells-kl_divergence.png").is_file()


def test_the_page_has_every_section_and_needs_nothing_from_outside(here, capsys):
    table().to_csv("pairs.csv", index=False)
    assert not command("--pairs", "pairs.csv", "--estimates", "--direction", "denoise")
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"wrote {os.path.join('patch', 'report.html')}; beside it run.json, tables/ and figures/"
    assert sum("rank correlation" in line for line in printed) == 4
    page = page_of(here / "patch")
    ids = [attrs.get("id") for tag, attrs in page.tags if tag == "h2"]
    assert ids[1:] == ["prompts", "logit_difference", "estimates", "reading", "made", "cite"]
    assert not outside_addresses(page)
    assert not any(tag in {"link", "iframe", "object"} for tag, _ in page.tags)
    assert not unlisted(page)
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 3
    assert all(len(attrs["alt"] or "") > 40 for attrs in images)
    shown = " ".join(page.text.split())
    assert "4 pairs from pairs.csv" in shown
    assert "Left out: none." in shown
    assert "Fewer than 20 pairs" in shown
    assert "In short" in shown
    assert "This model has two layers" in shown
    assert "nan" not in shown.lower().split()
    best = pd.read_parquet(here / "patch/tables/cells.parquet")
    best = best.loc[best["effect"].abs().idxmax()].to_dict()
    assert f"denoise: alone, {figures.cell_name(best)}" in shown
    facts = json.loads((here / "patch/run.json").read_text())
    assert {"tables/estimates.csv", "tables/correlations.parquet", "report.html"} <= set(facts["files"])
    assert {"figures/estimates-logit_difference.svg", "figures/estimates-logit_difference.png"} <= set(facts["files"])
    assert facts["estimates"]["edges"]["steps"] == 5


def test_estimates_are_made_when_asked_for(here):
    assert not command(*ONE)
    assert not any("estimates" in name for name in os.listdir(here / "patch/tables"))
    page = page_of(here / "patch")
    assert "estimates" not in [attrs.get("id") for tag, attrs in page.tags if tag == "h2"]
    assert "One pair tells nothing of other prompts" in " ".join(page.text.split())


def test_a_page_says_what_was_left_out_and_refused(here):
    swapped = [(b, a, r, w) for a, b, r, w in ROWS]
    table([*ROWS, *swapped, ("Tim saw", "Sue saw the", "He", "She")]).to_csv("pairs.csv", index=False)
    assert not command("--pairs", "pairs.csv", "--drop", "--site", "mlp_out")
    shown = " ".join(page_of(here / "patch").text.split())
    assert "Left out: 1 pair, because the prompts do not align." in shown
    assert "Shares are refused: the whole effect is" in shown
    assert "denoise: alone, L" in shown
    assert "moves it by" in shown


def test_a_page_escapes_what_a_prompt_says(here, monkeypatch):
    hostile = "<script>alert(1)</script>"
    monkeypatch.setattr(frame, "opened", lambda *_: worded(hostile, "<img/src=x>"))
    monkeypatch.setattr(frame, "title", lambda _: f"a {hostile}")
    prompts = ["--clean", f"{hostile} saw", "--corrupt", "<img/src=x> saw", "--answer", "She", "--wrong", "He"]
    assert not command(*prompts, "--by-position")
    page = page_of(here / "patch")
    assert not unlisted(page)
    assert not outside_addresses(page)
    assert page.text.count(hostile) >= 3
    assert "<img/src=x>" in page.text


@pytest.mark.parametrize("metric", ["rank", "logit_difference"])
def test_a_metric_without_gradient_ends_the_command_in_one_line(here, capsys, metric):
    assert "rank has no gradient" in refusal(capsys, *ONE, "--estimates", "--metric", metric, "--metric", "rank")
    assert not os.listdir(here)


def test_a_file_whose_rows_do_not_align_names_the_row_and_drop_counts_it(here, capsys):
    table([*ROWS, ("Tim saw", "Sue saw the", "He", "She")]).to_csv("pairs.csv", index=False)
    assert "row 5 of pairs.csv" in refusal(capsys, "--pairs", "pairs.csv")
    assert os.listdir(here) == ["pairs.csv"]
    assert not command("--pairs", "pairs.csv", "--drop")
    assert json.loads((here / "patch/run.json").read_text())["prompts"]["left_out"] == {"the prompts do not align": 1}
    assert pd.read_csv(here / "patch/tables/pairs.csv")["row"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("clean,corrupt,answer,wrong\n", "no rows"),
        ("clean,corrupted,answer,wrong\na,b,c,d\n", "it has clean, corrupted"),
        ("clean,corrupt,answer,wrong\na,b,b,c,d\n", "quotes"),
        ("clean,corrupt,answer,wrong\na,b,c,d\na,b,b,c,d\n", "CSV"),
        (b"\xff\xfe\x00", "CSV"),
    ],
)
def test_a_file_that_is_no_table_of_pairs_is_one_line(here, capsys, content, says):
    (here / "pairs.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in refusal(capsys, "--pairs", "pairs.csv")
    assert os.listdir(here) == ["pairs.csv"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*ONE[:6]], "--wrong is not given"),
        ([*ONE, "--pairs", "pairs.csv"], "got --pairs"),
        (["--pairs", "nowhere.csv"], "nowhere.csv"),
        ([*ONE, "--corrupt", "Sue saw the"], "named positions align one pair with another"),
        ([*ONE, "--corrupt", "Tim saw"], "identical"),
        ([*ONE, "--wrong", "He"], "no differing piece"),
        ([*ONE, "--site", "zz"], "expected one of resid_pre"),
        ([*ONE, "--metric", "losses"], "losses"),
        ([*ONE, "--direction", "up"], "up"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(here, capsys, arguments, says):
    assert says in refusal(capsys, *arguments)
    assert not os.listdir(here)


def test_a_model_without_output_layer_is_one_line(here, capsys, monkeypatch, minilm):
    from models import load

    encoder = load(str(minilm))
    monkeypatch.setattr(frame, "opened", lambda *_: encoder)
    assert "no output layer" in refusal(capsys, *ONE)
    assert not os.listdir(here)


def test_an_unknown_metric_names_the_known(model, pairs):
    with pytest.raises(InputError, match="kl_divergence"):
        patching.measure(model, pairs, metrics=["losses"])


def test_the_command_s_metrics_are_the_table_s():
    assert [each.value for each in Metric] == list(patching.METRICS)


def test_real_pronouns_follow_the_name(tmp_path, stories):
    code = command(
        *("--clean", "Lily was sad because", "--corrupt", "Tim was sad because", "--answer", "she", "--wrong", "he"),
        *("--model", str(stories), "--out", str(tmp_path / "out"), "--site", "resid_pre", "--by-position"),
    )
    assert not code
    cells = pd.read_parquet(tmp_path / "out/tables/cells.parquet")
    first = cells[(cells["layer"] == 0) & (cells["direction"] == "denoise")].set_index("token")["share"]
    first.index = first.index.str.strip()
    assert first["Lily"] == pytest.approx(1, abs=1e-4)
    assert first.drop("Lily").abs().max() < 1e-4


# An encoder and a decoder.


@pytest.fixture
def two(here, monkeypatch, model) -> Transformer:
    """Reads and writes the same words; the decoder begins with "the"."""
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
def test_an_encoder_decoder_is_patched_where_it_is_asked_to(two, here, arguments, stack, attention):
    assert not command(*ONE, *arguments)
    cells = pd.read_csv(here / "patch" / "tables" / "cells.csv")
    assert set(zip(cells["stack"], cells["attention"], strict=True)) == {(stack, attention)}
    found = (here / "patch" / "report.html").read_text("utf-8")
    assert "in the encoder" in found or "in the decoder" in found
    assert "target of both" in found
    if "pattern" in arguments:
        assert set(cells["token"].dropna()) == {"the"}  # queries are the target's
        assert "saw" in set(cells["key_token"].dropna())  # keys the source's


def test_pairs_of_an_encoder_decoder_come_from_a_file_with_targets(two, here):
    rows = pd.DataFrame(
        [(*ROWS[0], "He saw"), (*ROWS[1], "He")], columns=["clean", "corrupt", "answer", "wrong", "target"]
    )
    rows.to_csv("pairs.csv", index=False)
    assert not command("--pairs", "pairs.csv", "--stack", "encoder")
    expected = patching.measure(two, patching.make_pairs(two, rows), stack="encoder")["effect"]
    cells = pd.read_csv(here / "patch" / "tables" / "cells.csv")
    np.testing.assert_allclose(cells["effect"], expected, atol=1e-6)


def test_what_does_not_fit_the_stacks_is_refused(two, here, capsys):
    assert "made of the source, which these pairs share" in refusal(
        capsys, *ONE, "--source", "the dog", "--stack", "encoder"
    )
    assert "no attention 'cross' in this model's encoder" in refusal(
        capsys, *ONE, "--stack", "encoder", "--attention", "cross"
    )


def test_a_target_for_a_model_of_one_stack_is_refused(here, capsys):
    assert "reads one text" in refusal(capsys, *ONE, "--target", "He")
    assert "no stack 'encoder'" in refusal(capsys, *ONE, "--stack", "encoder")


def test_a_task_that_the_model_fails_is_said_first_and_has_no_shares(here, capsys, model, pairs):
    clean = sweep(model, pairs, logit_difference()).difference("logit_difference")
    good = int(clean.argmax() if clean.max() > -clean.min() else clean.argmin())
    (a, b, right, wrong) = ROWS[good]
    failing = (right, wrong) if clean[good] < 0 else (wrong, right)
    typed = ["--clean", a, "--corrupt", b, "--answer", failing[0], "--wrong", failing[1]]
    assert not command(*typed)
    lines = capsys.readouterr().out.splitlines()
    answered, refused, *_ = (at for at, line in enumerate(lines) if line.startswith(("The model", "So there are")))
    assert "of the wrong sign" in " ".join(lines[answered:refused])
    assert lines[refused] == "So there are no shares."
    assert " ".join(lines).count("sign") == 1
    facts = json.loads((here / "patch/run.json").read_text())
    assert facts["answers"]["sign"] == "wrong"
    assert pd.read_parquet(here / "patch/tables/cells.parquet")["share"].isna().all()
    shown = " ".join(page_of(here / "patch").text.split())
    assert shown.index("of the wrong sign") < shown.index("no shares are given.") < shown.index("Patched was")


def test_names_in_a_file_are_patched_alone_and_stand_in_the_table(here):
    rows = [("{S:Tim} saw", "Sue saw", "He", "She"), ("the dog saw {S:Tim}", "the dog saw Sue", "He", "She")]
    table(rows).to_csv("pairs.csv", index=False)
    assert not command("--pairs", "pairs.csv", "--position", "END=-1")
    cells = pd.read_parquet(here / "patch/tables/cells.parquet")
    assert set(cells["position"]) == {"S", "END"}
    named = json.loads((here / "patch/run.json").read_text())["positions"]
    assert [*named.items()] == [("S", [0, 3]), ("END", [1, 3])]  # in the prompts' order
    assert cells.loc[cells["position"] == "S", "token"].unique().tolist() == ["Tim"]
    assert not command("--pairs", "pairs.csv", "--whole-prompts", "--out", "whole")
    assert pd.read_parquet(here / "whole/tables/cells.parquet")["position"].isna().all()
