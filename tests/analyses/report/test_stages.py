"""Every command plans its stages before the first: each is one of a number that holds, and the writing is the last."""

import pandas as pd
import pytest

from analyses import experiments, report
from analyses.corpora import Corpus
from analyses.execution.progress import WRITING, Announcer
from tests.analyses.labels.test_labels import WORDS, copying, repeating_texts
from tests.analyses.probe.test_probes import corpus, reader, tagged

pytestmark = pytest.mark.filterwarnings("ignore::interp.errors.InputWarning")
PROMPTS = f"{WORDS[1]} {WORDS[2]} {WORDS[1]}", f"{WORDS[3]} {WORDS[2]} {WORDS[1]}", WORDS[2], WORDS[3]
TAGGED = corpus("tags", tagged(80), "tags")


class Heard(Announcer):
    """Number, stages and name at every call."""

    def __init__(self):
        super().__init__()
        self.states: list[tuple[int, int | None, str]] = []

    def __call__(self, stage: str, done: int, total: int | None = None) -> None:
        if not stage.endswith("\n"):
            super().__call__(stage, done, total)
            self.states.append((self.state().stage_number, self.state().stages, stage))


def probe(out, say):
    report.probe(reader(), [TAGGED], out, progress=say)


def compare(out, say):
    report.compare({"a": reader(), "b": reader()}, [TAGGED], out, behaviours=["position"], progress=say)


def patch(out, say):
    prompts = pd.DataFrame(
        dict(zip(("clean", "corrupt", "answer", "wrong"), ([each] for each in PROMPTS), strict=True))
    )
    report.patch(copying([], []), prompts, out, estimates=True, as_typed=True, progress=say)


def full(out, say):
    texts = Corpus("repeats", "fake", frozenset(), "0" * 64, lambda: iter(repeating_texts(60)))
    report.build(
        copying([], []), [texts], out, behaviours=["position"], pairs=10, experiments=True, probes=False, progress=say
    )


@pytest.mark.parametrize("command", [probe, compare, patch, full])
def test_no_stage_is_beyond_those_planned_and_the_last_is_the_last(command, tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"cost": experiments.EXPERIMENTS["cost"]})
    say = Heard()
    command(tmp_path / "out", say)
    assert all(stages is not None and number <= stages for number, stages, _ in say.states), say.states
    planned = [stages or 0 for _, stages, _ in say.states]
    assert planned == sorted(planned, reverse=True)  # nothing came that was not planned
    assert len(dict.fromkeys(stage for *_, stage in say.states)) == planned[-1]
    assert say.states[-1] == (planned[-1], planned[-1], WRITING)
