"""Damaged files of every readable kind give a right result or one line, never a traceback, a hang, or endless memory.
Faults found in this way have their own tests beside the other tests of each reader.
"""

from pathlib import Path

import pytest

from benchmarks.faults.damage import FAULT, READ, REFUSED, Outcome, outcome, outcomes
from benchmarks.faults.read_files import READERS, Reader
from interp import InputError


def faults(name: str, seeds: range) -> dict[int, str]:
    """By seed, the messages of outcomes that are neither a right result nor a refusal."""
    by_seed = dict(outcomes(name, seeds))
    assert {each.kind for each in by_seed.values()} - {FAULT}, "nothing was read and nothing refused"
    return {seed: each.message for seed, each in by_seed.items() if each.kind == FAULT}


@pytest.mark.parametrize("name", READERS)
def test_a_good_file_is_read(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    reader.make(tmp_path)
    assert outcome(reader, tmp_path, (tmp_path / reader.file).read_bytes()) == Outcome(READ)


@pytest.mark.parametrize("name", READERS)
def test_fifty_damaged_files_are_read_or_refused(name: str) -> None:
    assert not faults(name, range(50))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.smoke] * (name == "training pairs")) for name in READERS]
)
def test_two_thousand_damaged_files_are_read_or_refused(name: str) -> None:
    assert not faults(name, range(2_000))


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(InputError("no"), REFUSED), (ValueError("no"), FAULT), (AssertionError("other words"), FAULT)],
)
def test_what_is_raised_is_told_apart(tmp_path: Path, raised: Exception, kind: str) -> None:
    def read(folder: Path) -> None:
        raise raised

    assert outcome(Reader("a", lambda folder: None, read), tmp_path, b"").kind == kind


def test_a_reader_that_hangs_or_takes_all_memory_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(folder: Path) -> None:
        while True:
            pass

    monkeypatch.setattr("benchmarks.faults.damage.SECONDS", 0.2)
    assert "HungError: more than 0.2 seconds" in outcome(Reader("a", lambda folder: None, hang), tmp_path, b"").message
    greedy = Reader("a", lambda folder: None, lambda folder: bytearray(1 << 33))
    assert outcome(greedy, tmp_path, b"").message.startswith("MemoryError")
