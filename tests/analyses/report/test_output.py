"""An output directory is complete or absent, and others' files in it stay."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pandas as pd
import pytest
import torch
from learners import ended, process
from matplotlib.figure import Figure

from analyses.execution import output
from interp import InputError
from interp.training import whole_files

TABLE = pd.DataFrame({"layer": [0, 1], "gain": [0.5, float("nan")]})


def write(out: Path, *names: str) -> None:
    with output.writing(out) as new:
        for name in names:
            new.text(name, name)
        new.run({"seed": 0})


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def record(out: Path) -> dict:
    return json.loads((out / "run.json").read_text())


def drawing() -> Figure:
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1])
    return figure


def at_shift(patch: pytest.MonkeyPatch, moved: int, act: Callable[[], object]) -> None:
    """Call `act` once `moved` files were moved."""
    shift, times = output._shift, count()

    def acting(file, place):
        if next(times) == moved:
            act()
        shift(file, place)

    patch.setattr(output, "_shift", acting)


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_no_text_of_a_csv_is_a_formula_and_the_parquet_has_it_as_it_was(tmp_path):
    formulas = ["=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "\r=1"]
    calm = ["a=1", "", "'=1", "−1", " =1", None]
    table = pd.DataFrame({"token": [*formulas, *calm], "effect": -0.5, "-dash": 1, "layer": range(12)})
    with output.writing(tmp_path / "out") as new:
        new.table("cells", table)
        new.run({})
    read = pd.read_csv(tmp_path / "out/tables/cells.csv", keep_default_na=False)
    assert read["token"].tolist() == [*(f"'{each}" for each in formulas), *calm[:-1], ""]
    assert (read["effect"].tolist(), [*read]) == ([-0.5] * 12, ["token", "effect", "'-dash", "layer"])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out/tables/cells.parquet"), table)


def test_tables_and_figures_lie_where_the_design_says_also_figures_that_are_drawn_at_once(tmp_path):
    before = torch.get_num_threads()
    names = {"run.json", *(f"tables/heads.{kind}" for kind in ("csv", "parquet"))}
    names |= {f"figures/{name}.{kind}" for name in ("one", "other", "third") for kind in ("svg", "png")}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with output.writing(tmp_path / str(threads)) as new:
            new.table("heads", TABLE)
            new.figures({"one": drawing(), "other": drawing(), "third": drawing()})
            new.run({"gain": float("nan"), "n": TABLE["layer"].iloc[1], "needs": frozenset({"tags"})})
        torch.set_num_threads(before)
        facts = record(tmp_path / str(threads))
        assert (facts["gain"], facts["n"], facts["needs"]) == (None, 1, ["tags"])
        assert {*facts["files"]} == names == {*files(tmp_path / str(threads))}
    assert files(tmp_path / "1") == files(tmp_path / "2")


def test_a_later_run_replaces_its_own_files_and_keeps_those_of_others(tmp_path):
    """Even if its record names files outside, and contains half a character."""
    out = tmp_path / "out"
    write(out, "report.html", "old/only.txt")
    (out / "notes.txt").write_text("mine")
    (out / "old/mine.txt").write_text("mine")
    (tmp_path.parent / "precious.txt").write_text("mine")
    facts = record(out) | {"note": "\ud800"}
    facts["files"] += ["../../precious.txt", str(tmp_path.parent / "precious.txt")]
    (out / "run.json").write_text(json.dumps(facts))
    write(out, "report.html", "new.txt")
    assert (tmp_path.parent / "precious.txt").exists()
    assert {*files(out)} == {"report.html", "new.txt", "run.json", "notes.txt", "old/mine.txt"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["report.html", "run.json", "tables", "pipe", "out", "above"])
def test_what_is_not_ours_is_refused_before_the_work_and_stays(tmp_path, name):
    """A file with our name, one instead of a folder, and a pipe, which must not block."""
    file = tmp_path / {"pipe": "run.json"}.get(name, name)
    os.mkfifo(file) if name == "pipe" else file.write_text("mine")
    out = {"out": file, "above": file / "under"}.get(name, tmp_path)
    with pytest.raises(InputError, match=r"did not write|is not a folder|is a file"), output.writing(out):
        pytest.fail("too late")
    assert os.listdir(tmp_path) == [file.name]
    assert name == "pipe" or file.read_text() == "mine"


@pytest.mark.parametrize("earlier", [False, True])
def test_a_run_that_fails_leaves_what_was_there(tmp_path, earlier):
    out = tmp_path / "a/b/out"
    if earlier:
        write(out, "report.html")
    before = files(tmp_path)

    def stopped() -> None:
        with output.writing(out) as new:
            new.text("report.html", "half")
            new.table("heads", TABLE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert files(tmp_path) == before
    assert bool(os.listdir(tmp_path)) == earlier


def show_early(out: Path, after: BaseException | None = None) -> None:
    """Show one page before the other is ready, if allowed."""
    with output.writing(out) as new:
        new.text("report.html", "first")
        new.text("tables/first.csv", "1")
        new.run({output.UNFINISHED: "effects"})
        if new.may_show:
            new.show()
            assert (out / "report.html").read_text() == "first"
            assert record(out)["unfinished"] == "effects"
        if after:
            raise after
        new.text("report.html", "whole")
        new.text("tables/whole.csv", "2")
        new.run({})


@pytest.mark.parametrize("error", [InputError("no"), KeyboardInterrupt()])
def test_what_was_shown_stays_and_says_that_it_is_not_all_until_the_rest_takes_its_place(tmp_path, error):
    out = tmp_path / "out"
    with pytest.raises(type(error), match="report.html shows" if isinstance(error, KeyboardInterrupt) else "no"):
        show_early(out, error)
    assert (out / "report.html").read_text() == "first"
    assert record(out)["unfinished"] == "effects"
    show_early(out)
    with pytest.raises(type(error), match=r"^(no)?$"):
        show_early(out, error)  # a finished run stays until the next is finished
    assert (out / "report.html").read_text() == "whole"
    assert {*files(tmp_path)} == {"out/report.html", "out/tables/whole.csv", "out/run.json"}


def test_a_run_without_a_directory_takes_none_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def place() -> str:
        return str(output.unused("report", "interp report --seed 1"))

    def write_run(name: str, **facts) -> None:
        with output.writing(name) as new:
            new.run(facts)

    assert place() == "report"
    Path("report").mkdir()
    assert place() == "report"  # it is empty
    write_run("report")
    Path("report-2").write_text("a file of mine")
    Path("report-3").symlink_to("report")
    write_run("report-4", unfinished="labels", command="interp report")
    assert place() == "report-5"
    write_run("report", unfinished="labels", command="interp report --seed 1")
    assert place() == "report"  # it resumes
    with whole_files.alone(Path("report")):
        assert place() == "report-5"  # another process works there


@pytest.mark.parametrize("moved", range(0, 6, 2))
def test_a_kill_while_files_are_moved_mixes_no_tables_and_the_next_run_goes_on(tmp_path, monkeypatch, moved):
    out = tmp_path / "out"
    write(out, "tables/a.csv", "tables/old.csv")
    (out / "notes.txt").write_text("mine")
    before = files(out)
    with monkeypatch.context() as patched:
        at_shift(patched, moved, lambda: os.kill(os.getpid(), signal.SIGKILL))
        killed = ended(process(lambda: write(out, "tables/a.csv", "tables/b.csv", "tables/new.csv")))
    assert killed == -signal.SIGKILL
    tables = {path.name for path in (out / "tables").glob("*")}
    assert tables <= {"a.csv", "old.csv"} or tables <= {"a.csv", "b.csv", "new.csv"}
    assert record(out)["unfinished"]
    with pytest.raises(RuntimeError), output.writing(out):  # which restores what was there
        raise RuntimeError
    assert files(out) == before
    write(out, "tables/b.csv")
    assert {*files(tmp_path)} == {"out/tables/b.csv", "out/run.json", "out/notes.txt"}


def test_what_cannot_be_moved_in_leaves_the_earlier_run(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write(out, "tables/a.csv")
    before = files(tmp_path)
    at_shift(monkeypatch, 2, full)
    why = r"cannot write .*out: No space left on device; what was there .* is as it was"
    with pytest.raises(InputError, match=why):
        write(out, "tables/b.csv", "tables/c.csv")
    assert files(tmp_path) == before


def test_stopped_while_files_are_moved_it_moves_them_all_and_says_so(tmp_path, monkeypatch):
    out, before = tmp_path / "out", signal.signal(signal.SIGTERM, signal.default_int_handler)
    write(out, "report.html")
    at_shift(monkeypatch, 1, lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(KeyboardInterrupt, match=r"report\.html was written before"):
            write(out, "report.html", "tables/new.csv")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert {*files(out)} == {"report.html", "tables/new.csv", "run.json"}
    assert "unfinished" not in record(out)


def test_of_two_at_once_one_writes_and_the_other_says_so_and_no_draft_may_be_a_link(tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    with output.writing(out) as first:
        with pytest.raises(InputError, match=r"another process is writing .*out: wait until it has ended"):
            write(out, "b.txt")
        first.text("a.txt", "a")
        first.run({})
    assert {*files(out)} == {"a.txt", "run.json"}
    elsewhere.mkdir()
    (elsewhere / "thesis.tex").write_text("mine")
    (tmp_path / ".report.interp-draft").symlink_to("elsewhere")
    with pytest.raises(InputError, match="draft is a link"):
        write(tmp_path / "report", "report.html")
    assert {*files(elsewhere)} == {"thesis.tex"}


@pytest.mark.parametrize("linked", ["kept", "tables", "run.json"])
def test_no_forged_record_moves_or_removes_files_behind_links(linked, tmp_path):
    """A draft and a run.json as a kill leaves them, with a link inside."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    backup = tmp_path / ".out.interp-draft/out.earlier"
    for folder in (elsewhere / "tables", out, backup):
        folder.mkdir(parents=True)
    names = ["tables/a.csv", "report.html"]
    facts = {"made_by": output.MAKER, output.UNFINISHED: "what was being moved in", "files": [*names, "run.json"]}
    for folder in (out, backup):
        (folder / "run.json").write_text(json.dumps(facts))
    for name in names:
        (elsewhere / name).write_text("mine")
    (elsewhere / "run.json").write_text(json.dumps(facts))
    if linked == "kept":
        backup.rename(tmp_path / "moved")
        backup.symlink_to(elsewhere)
    elif linked == "tables":
        (out / "tables").symlink_to(elsewhere / "tables")
        (backup / "tables").mkdir()
        (backup / "tables/a.csv").write_text("forged")
    else:
        (out / linked).unlink()
        (out / linked).symlink_to(elsewhere / linked)
    before = files(elsewhere)
    with suppress(InputError):
        write(out, "report.html")
    assert files(elsewhere) == before
    if linked != "kept":
        assert (out / linked).is_symlink()


def test_a_full_disk_and_a_directory_that_vanished_are_one_line(tmp_path, monkeypatch):
    out = tmp_path / "deep/out"

    def table(meanwhile=lambda: None):
        with output.writing(out) as new:
            meanwhile()
            new.table("heads", TABLE)

    with monkeypatch.context() as patched:
        patched.setattr(pd.DataFrame, "to_parquet", full)
        with pytest.raises(InputError, match=r"heads\.parquet: No space left on device; nothing is left"):
            table()
    assert not os.listdir(tmp_path)
    with pytest.raises(InputError, match=r"cannot write .*heads\.csv: No such file"):
        table(lambda: (tmp_path / "deep").rename(tmp_path / "moved"))
    assert os.listdir(tmp_path) == ["moved"]
