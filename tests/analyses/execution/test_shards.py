"""Work that is kept until all of it is done: a run that was stopped ends with the numbers of one that was not."""

from dataclasses import dataclass

import pandas as pd
import pytest
import torch

from analyses.execution import shards
from analyses.execution.shards import Shards
from analyses.labels import label
from analyses.labels.judgement import Labelled
from interp import AnnotatedText, InputError
from models import planted
from tests.analyses.labels.test_labels import copying, repeating_texts

KEPT = {"a": torch.arange(6, dtype=torch.float64).reshape(2, 3), "b": torch.tensor([True, False])}


class Stop(BaseException):
    """A run that is killed."""


def kept(at: Shards, *depends: object) -> tuple[dict, int]:
    """What is kept, and how often it had to be made."""
    made = []
    (found,) = at.measure([(depends, lambda: made.append(1) or KEPT)])
    return dict(found), len(made)


def test_what_was_made_is_found_again_whole(tmp_path):
    of = Shards.for_output(tmp_path / "out", ["a model"])
    assert [kept(of, 1, torch.ones(3))[1] for _ in range(2)] == [1, 0]
    found, _ = kept(of, 1, torch.ones(3))
    assert found.keys() == KEPT.keys()
    torch.testing.assert_close(found, KEPT, rtol=0, atol=0)  # and of the same types
    assert of.counts == {"read": 2, "written": 1}
    of.clear()
    assert not list(tmp_path.iterdir())


def test_another_work_model_text_or_version_of_our_code_finds_nothing(tmp_path, monkeypatch):
    def of(about: str = "a model") -> Shards:
        return Shards.for_output(tmp_path / "out", [about])

    assert [kept(each, 1)[1] for each in (of(), of("another"), of().narrow("a text"), of())] == [1, 1, 1, 0]
    assert kept(of(), 2)[1] == 1
    monkeypatch.setattr(shards, "_code", lambda: "changed")
    assert kept(of(), 1)[1] == 1


@pytest.mark.parametrize("damage", [lambda old: old[:-3], lambda old: b"", lambda old: old[:-1] + bytes([old[-1] ^ 1])])
def test_a_damaged_shard_is_made_anew(tmp_path, damage):
    of = Shards.for_output(tmp_path / "out", [])
    kept(of, 1)
    (path,) = of.folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    found, made = kept(of, 1)
    assert made == 1
    assert torch.equal(found["a"], KEPT["a"])
    assert kept(of, 1)[1] == 0


def test_a_disk_that_is_full_keeps_nothing_and_stops_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "save_file", full)
    of = Shards.for_output(tmp_path / "out", [])
    assert [kept(of, 1)[1] for _ in range(2)] == [1, 1]
    assert of.counts == {"read": 0, "written": 0}
    assert not list(of.folder.iterdir())


def test_a_folder_that_is_a_link_is_refused_and_files_of_others_stay(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / ".out.shards").symlink_to("mine")
    with pytest.raises(InputError, match=r"out\.shards is a link"):
        Shards.for_output(tmp_path / "out", [])
    (tmp_path / ".out.shards").unlink()
    (tmp_path / "mine/thesis.tex").write_text("mine")
    (tmp_path / "mine").rename(tmp_path / ".out.shards")
    of = Shards.for_output(tmp_path / "out", [])
    kept(of, 1)
    of.clear()
    assert [path.name for path in of.folder.iterdir()] == ["thesis.tex"]


@dataclass(frozen=True)
class Texts:
    """A corpus with a hash."""

    texts: tuple[AnnotatedText, ...]
    name: str = "texts"
    digest: str = "a hash"

    def __iter__(self):
        return iter(self.texts)


def labelled(of: Shards | None, exact: bool) -> Labelled:
    model = copying([planted.uniform], [planted.uniform])
    return label(model, {"position": Texts((*repeating_texts(20),))}, documents=6, words=27, exact=exact, shards=of)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.smoke)])
def test_labels_that_were_stopped_anywhere_are_those_of_one_run(tmp_path, monkeypatch, exact):
    whole, measure, starts = labelled(None, exact), shards._measure, 0
    while True:
        of, made = Shards.for_output(tmp_path / "out", []), []

        def stopping(make, path, made=made, most=1 + starts % 4):
            tensors = measure(make, path)
            made.append(path)
            if len(made) == most:
                raise Stop
            return tensors

        with monkeypatch.context() as patched:
            patched.setattr(shards, "_measure", stopping)
            before = len([*of.folder.glob("*")]) if of.folder.exists() else 0
            try:
                found = labelled(of, exact)
                break
            except Stop:
                assert of.counts["read"] == before
                starts += 1
    assert starts > 2
    assert of.counts["read"] == before
    for name in ("labels", "evidence"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(whole, name), check_exact=True)
