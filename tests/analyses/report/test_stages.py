"""Plans made before the first stage hold: no further stages come, and writing is the last."""

import pytest
from repeats import copying, repeating_texts

from analyses import experiments, report
from analyses.corpora import Corpus
from analyses.execution.progress import WRITING, Announcer


@pytest.mark.filterwarnings("ignore::interp.errors.InputWarning")
def test_no_stage_of_a_report_is_beyond_those_planned_and_the_last_is_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"cost": experiments.EXPERIMENTS["cost"]})
    states, call = [], Announcer.__call__
    monkeypatch.setattr(Announcer, "__call__", lambda say, *counts: (call(say, *counts), states.append(say.state())))
    texts = Corpus("repeats", "fake", frozenset(), "0" * 64, lambda: iter(repeating_texts(60)))
    options = {"behaviours": ["position"], "pairs": 10, "experiments": True, "probes": False}
    report.build(copying([], []), [texts], tmp_path / "out", progress=Announcer(silent=True), **options)
    assert all(state["stage_number"] <= state["stages"] for state in states)
    stages = [state["stages"] for state in states]
    assert stages == sorted(stages, reverse=True)  # no unplanned stage came
    assert (states[-1]["stage_number"], states[-1]["stage"]) == (stages[-1], WRITING)
    assert any(state["total"] for state in states)
