"""`interp figures` redraws a finished run from its tables alone, and says in one line what it cannot draw."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import command, refusal

from analyses import runs
from analyses.figures.style import Drawn
from analyses.measures.head_tables import Heads
from analyses.report import paper_figures
from analyses.viewer import Attention, Called, Passage, Viewer
from analyses.viewer.passages import KEPT
from interp import InputError
from tests.analyses.headlines.hand_made_tables import head_at, heads_row, write_run


@pytest.fixture
def position(position_report) -> Path:
    return position_report


def contents(out: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(out.iterdir())}


def test_every_figure_that_tables_are_enough_for_comes_back_under_its_own_name(position, tmp_path, capsys):
    code, out, _ = command(capsys, "figures", str(position), "--out", str(tmp_path / "paper"))
    assert code == 0
    names = {Path(name).stem for name in json.loads((position / "run.json").read_text())["files"] if "figures/" in name}
    again = {Path(name).stem for name in contents(tmp_path / "paper")}
    assert again == names | {"position-gains"}  # the page has it as a table
    assert f"wrote {len(again)} figures to {tmp_path / 'paper'}" in out


def test_a_file_is_as_wide_as_asked_with_true_type_no_title_and_its_caption_beside_it(position, tmp_path, capsys):
    arguments = "figures", str(position), "position-gains"
    assert command(capsys, *arguments, "--width", "2.5", "--out", str(tmp_path)).code == 0
    files = contents(tmp_path)
    assert files.keys() == {"position-gains.pdf", "position-gains.txt"}
    pdf, caption = files["position-gains.pdf"], files["position-gains.txt"].decode()
    assert b"CreationDate" not in pdf  # the same run gives the same file
    phrases = "lines are 95% intervals", "Model: tiny.", "Seed: 0. Made by: interp position"
    assert [each for each in phrases if each not in caption] == []
    paper_figures.write(runs.read(position), tmp_path / "again", ["position-gains"], width=2.5)
    assert contents(tmp_path / "again") == files
    drawings = paper_figures.drawings(runs.read(position))
    page = {"width": 2.5, "font_size": 8, "title": None}
    assert not drawings["position-gains"](**page).get_suptitle()
    assert drawings["position-gains"]().get_suptitle()  # as the report shows it


def mixed_run(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame] = pd.DataFrame) -> runs.RunFolder:
    """A run with tables of training and of a comparison, one head each; `change` is applied to every table."""
    where = head_at(1, 2)
    measured = {**where, "model": "small", "measure": "induction", "gain": 0.1}
    bounds = dict.fromkeys(("ci_low", "ci_high", "difference", "difference_low", "difference_high"), 0.0)
    curve = [{**where, "run": "small", "step": step, "measure": "induction", "value": 0.1 * step} for step in range(5)]
    tables = {
        "forming": [{**row, "baseline": 0.1} for row in curve],
        "formed": [{"run": "small", "measure": "induction", "rise_from": 1, "rise_to": 2}],
        "compare": [{**measured, "reference": "small", **bounds}],
        "heads": [{**measured, "sink": "kept", "depth": 1, "shows": True}],
    }
    frames = {name: change(pd.DataFrame(rows)) for name, rows in tables.items()}
    return runs.read(write_run(folder, {"runs": [{"name": "small", "phases_end": [3]}]}, **frames))


def test_tables_of_training_and_a_comparison_are_drawn_and_what_needs_more_room_says_how_much(tmp_path):
    run = mixed_run(tmp_path / "run")
    files, left_out = paper_figures.write(run, tmp_path / "paper", width=3.3, format="svg")
    assert {each.stem for each in files} == {"forming"}
    assert left_out == {"compare-gains": "the panels of this figure need 5.0 inches side by side: got width=3.3"}
    with pytest.raises(InputError, match=r"no figure .* could be drawn: .* need 5\.0 inches"):
        paper_figures.write(run, tmp_path / "none", ["compare-gains"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:0], "it has no table that a figure is drawn from"),
        (lambda rows: pd.concat([rows, rows]), "expected one row of .*, got 2, all the same: choose one"),
    ],
    ids=["empty", "doubled"],
)
def test_tables_that_are_empty_or_have_rows_twice_draw_nothing_and_one_line_says_why(tmp_path, change, message):
    with pytest.raises(InputError, match=rf"no figure of .*run could be drawn: {message}"):
        paper_figures.write(mixed_run(tmp_path / "run", change), tmp_path / "paper")
    assert not (tmp_path / "paper").exists()


def test_what_cannot_be_drawn_is_one_line(position, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    why = "interp: nowhere: no such directory; expected the output directory (--out) of an earlier interp command"
    assert refusal(capsys, "figures", "nowhere") == why
    why = refusal(capsys, "figures", str(position), "labels")
    assert "no figure labels can be drawn from the tables" in why
    assert "expected some of position-heads" in why
    (tmp_path / "taken").write_text("mine")
    for message, *wrong in (
        ("width: expected 2 to 20 inches; 3.3 is a column of a paper, 6.9 its page; got 0.5", "--width", "0.5"),
        ("got nan", "--width", "nan"),
        ("font_size: expected 5 to 30 points; got -1", "--font-size", "-1"),
        ("taken is a file, not a directory: choose another --out", "--out", "taken"),
        ("taken is a file", "--out", "taken/paper"),
        (
            f"{position / 'figures'} holds the run's own figures",
            "--format",
            "svg",
            "--out",
            str(position / "figures"),
        ),
    ):
        assert message in refusal(capsys, "figures", str(position), *wrong)
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_where_a_figure_cannot_be_drawn_or_written_none_is_and_what_was_there_stays(position, tmp_path, monkeypatch):
    run, paper = runs.read(position), tmp_path / "paper"
    paper.mkdir()
    (paper / "position-heads.pdf").write_text("of yesterday")
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(InputError, match=r"cannot write to .*paper: No space left on device; choose another --out"):
            paper_figures.write(run, paper, force=True)
    (paper / "position-gains.pdf").mkdir()
    with pytest.raises(InputError, match=r"position-gains\.pdf is a directory"):
        paper_figures.write(run, paper, force=True)
    assert sorted(each.name for each in paper.iterdir()) == ["position-gains.pdf", "position-heads.pdf"]
    assert (paper / "position-heads.pdf").read_text() == "of yesterday"
    with pytest.raises(InputError, match=r"position-heads\.pdf exists, but interp did not write it"):
        paper_figures.write(run, paper, ["position-heads"])
    for force in (True, False):  # the second time, the file is ours
        paper_figures.write(run, paper, ["position-heads"], force=force)
    assert (paper / "position-heads.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_that_no_page_holds_is_left_out(position, tmp_path, monkeypatch):
    def too_high(**page: object) -> Drawn:
        return Drawn(figsize=(3.3, 9.5))

    def crowded(**page: object) -> Drawn:
        figure = Drawn(figsize=(3.3, 3), layout="constrained")
        figure.subplots().set_ylabel("long\n" * 40)
        return figure

    run = runs.read(position)
    drawings = {**paper_figures.drawings(run), "tall": too_high, "crowded": crowded}
    monkeypatch.setattr(paper_figures, "drawings", lambda run, heads: drawings)
    _, left_out = paper_figures.write(run, tmp_path / "paper", ["tall", "crowded", "position-gains"])
    assert left_out["tall"] == "it would be 9.5 inches high, and a page holds 9: give it more width"
    assert left_out["crowded"].startswith("its text leaves no room for its panels")


def passage(n_heads: int, n_tokens: int = 6) -> Passage:
    """Random patterns of one causal layer, and of as many cross-attention heads over three keys."""
    tokens, random = tuple(f" t{each}" for each in range(n_tokens)), np.random.default_rng(0)
    weights = random.integers(0, 255, (1, n_heads, n_tokens, n_tokens), dtype=np.uint8)
    crossed = Attention(Heads("decoder", 1, n_heads, "cross", causal=False), tokens, tuple("abc"), weights[..., :3])
    return Passage((Attention(Heads("decoder", 1, n_heads), tokens, tokens, np.tril(weights)), crossed))


def test_a_run_keeps_patterns_from_which_one_head_its_lines_and_all_heads_are_drawn_without_a_model(tmp_path, capsys):
    looked = passage(2)
    rows = Viewer((looked,), {("decoder", "self", 0, 1): Called("induction", "position")}).kept
    assert (rows[0][3:6], len(rows)) == ((0, 1, "position"), 4)
    for row in rows:  # every share
        attention = looked.attentions[row.attention == "cross"]
        np.testing.assert_array_equal(row.pattern * 255, attention.weights[row.layer, row.head])
        assert row.tokens == ([*attention.queries], [*attention.keys])
    crossed = next(row for row in rows if row.attention == "cross")
    for shares, size in ((crossed.shares, 18), ("no shares", 0)):
        with pytest.raises(InputError, match=f"damaged: expected 21 shares of attention, got {size}"):
            _ = rows[0]._replace(shares=shares).pattern
    run = write_run(tmp_path / "run", patterns=[row._asdict() for row in rows])
    drawings = paper_figures.drawings(runs.read(run), ["decoder.L0.H0"])
    assert [*drawings] == ["patterns", "lines", "atlas"]
    lines = drawings["lines"]()
    assert len(lines.axes[0].collections[0].get_paths()) == (looked.attentions[0].weights[0, 0] >= 0.05 * 255).sum()
    assert "L0.H0" in getattr(lines, "caption", "")
    assert drawings["atlas"](horizontal=True).axes[0].get_xlabel() == "layer"
    for heads, message in (("L0.H0", "no stored pattern of L0.H0"), ("cross.L0.H1", "reads other tokens than")):
        assert message in refusal(capsys, "figures", str(run), "lines", "--head", "decoder.L0.H1", "--head", heads)
    many = Viewer((passage(400, 40),), {}).kept
    assert 0.9 * KEPT < sum(len(str(part)) for row in many for part in row) <= KEPT


def test_heads_of_several_runs_are_drawn_on_one_scale_with_layers_from_left_to_right(tmp_path, capsys):
    folders = [tmp_path / "mine", tmp_path / "yours"]
    for folder, gain in zip(folders, (0.2, 0.8), strict=True):
        measured = {"induction": 0.1 + gain, "distance": 0.1}  # nothing beats the baseline of one
        cells = [heads_row(layer, 0, "x", name, value, 0.1) for layer in range(3) for name, value in measured.items()]
        write_run(folder, heads=cells)
    joined, out = runs.join(folders), tmp_path / "paper"
    figure = paper_figures.drawings(joined)["x-heads"](horizontal=True)
    mine, yours = figure.axes[:2]
    assert [ax.get_title().split("\n")[-1] for ax in (mine, yours)] == ["mine", "yours"]
    assert mine.collections[0].get_clim() == yours.collections[0].get_clim()
    assert (mine.get_xlim(), mine.get_ylim()) == ((0, 3), (1, 0))
    assert figure.get_supxlabel() == "layer"
    assert "layer 0 at the left. Not drawn, since no head gains much: distance." in getattr(figure, "caption", "")
    arguments = *map(str, folders), "x-heads", "--font", "DejaVu Serif", "--format", "svg", "--out", str(out)
    assert command(capsys, "figures", *arguments).code == 0
    assert "DejaVu Serif" in (out / "x-heads.svg").read_text()
    assert (out / "x-heads.txt").read_text().count("Made by: interp x") == 2
