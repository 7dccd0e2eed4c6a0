"""Writing replaces only files of its own kind, and other files with our names do not count as ours."""

import os
import signal
import stat
from pathlib import Path

import pytest
from learners import ended, process
from refusals import refusal

from interp import InputError
from interp.training import whole_files as files
from interp.training.state import Directory

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Somebody else's directory."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    return folder


def test_a_link_in_place_of_a_draft_is_neither_emptied_nor_written_to(tmp_path, victim):
    (tmp_path / ".out.interp-draft").symlink_to(victim)
    with pytest.raises(InputError, match=r"out\.interp-draft is a link"), files.alone(tmp_path / "out"):
        pytest.fail("it was taken for a draft")
    assert files.is_being_made(tmp_path / "out")  # so no run that picks its own name picks this one
    files.sweep_beside(tmp_path / "out")
    assert (victim / "thesis.tex").read_text() == "mine"


@AS_ROOT
def test_a_draft_of_another_user_is_left_alone(tmp_path):
    (tmp_path / "shared").mkdir()
    drafts = [tmp_path / "shared" / name for name in (".out.interp-draft", ".out.abcdefgh.interp-draft")]
    for draft in drafts:
        draft.mkdir()
        os.chown(draft, 12345, 12345)
    with pytest.raises(InputError, match="belongs to another user"), files.alone(tmp_path / "shared" / "out"):
        pytest.fail("it was taken for ours")
    files.sweep_beside(tmp_path / "shared" / "out")
    assert all(draft.is_dir() for draft in drafts)
    os.chown(tmp_path / "shared", 12345, 12345)  # a disk that gives all files to one user
    files.sweep_beside(tmp_path / "shared" / "out")
    assert not any(draft.exists() for draft in drafts)


LINK = (lambda place: place.symlink_to(place.with_name("victim")), "a link")


@pytest.mark.parametrize(("make", "expected"), [LINK, (os.mkfifo, "a pipe"), (Path.mkdir, "a directory")])
def test_a_file_takes_the_place_of_files_alone(make, expected, tmp_path, victim):
    make(place := tmp_path / "out.html")
    before = place.lstat()
    refused = pytest.raises(InputError, match=f"out.html is {expected}: expected the name of a file")
    with refused, files.replacing(place) as part:
        part.write_text("new")
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)
    refused = pytest.raises(InputError, match="is a file: expected the name of a directory")
    with refused, files.replacing(victim / "thesis.tex") as part:
        part.mkdir()
    assert (victim / "thesis.tex").read_text() == "mine"
    assert {*os.listdir(tmp_path)} == {"out.html", "victim"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError, signal.SIGKILL])
def test_a_stop_between_two_directories_puts_the_first_back(stop, tmp_path, victim, monkeypatch):
    replace = os.replace

    def once(source: Path, place: Path) -> None:
        if Path(place) == victim:
            monkeypatch.undo()
            if isinstance(stop, signal.Signals):
                os.kill(os.getpid(), stop)
            raise stop
        replace(source, place)

    def write() -> None:
        with files.replacing(victim) as part:
            part.mkdir()

    monkeypatch.setattr(os, "replace", once)
    if isinstance(stop, signal.Signals):
        assert ended(process(write)) == -stop
        assert not victim.exists()
        monkeypatch.undo()
        files.sweep_beside(victim)
    else:
        with pytest.raises(stop):
            write()
    assert (victim / "thesis.tex").read_text() == "mine"
    assert os.listdir(tmp_path) == ["victim"]


def test_a_directory_that_takes_anothers_place_is_as_private(victim):
    victim.chmod(0o750)
    with files.replacing(victim) as part:
        part.mkdir()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o750


def test_a_run_writes_to_no_folder_that_is_a_link(tmp_path, victim):
    (tmp_path / "steps").symlink_to(victim)
    assert "steps is a link" in refusal(Directory, tmp_path, lambda model, out: None, {})
