"""Kills, races and full disks lose nothing, and the check for losses notices a run mixed from two."""

from pathlib import Path

import pytest

from benchmarks.faults import stops

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # about forking while threads may run


def test_a_few_of_each_kind_lose_nothing() -> None:
    for result in (stops.kills_of_runs(1), stops.races(1)):
        assert result == {stops.SURVIVED: 1}


@pytest.mark.slow
def test_kills_and_full_disks_lose_nothing() -> None:  # docs/faults.md has more than a hundred
    assert stops.full_disks(20).keys() <= {stops.SURVIVED, stops.REFUSED}
    assert stops.kills_of_trainings(15).keys() == {stops.SURVIVED}
    assert stops.kills_of_runs(15).keys() == {stops.SURVIVED}


def test_tables_of_two_runs_are_no_run(tmp_path: Path) -> None:
    stops.write_run(tmp_path / "one", 1)
    stops.write_run(tmp_path / "two", 2)
    assert stops.number_of(tmp_path / "one") == 1
    (tmp_path / "two/tables/heads.parquet").replace(tmp_path / "one/tables/heads.parquet")
    assert stops.number_of(tmp_path / "one") is None
