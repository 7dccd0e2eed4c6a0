"""What can be read from a model's layers? Runs the probes; writes tables, figures and one HTML page."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analyses.corpora import Corpus
from analyses.probe.probe_runs import Say
from analyses.probe.probe_section import section
from analyses.report import full_report as report
from analyses.report import output
from analyses.report.renderer import render
from interp import Transformer


def build(
    model: Transformer,
    corpora: Sequence[Corpus],
    out: Path,
    *,
    held_out: Sequence[Corpus] = (),
    seed: int = 0,
    command: str = "",
    name: str = "",
    progress: Say | None = None,
) -> Path:
    """Probe every layer and head and write everything into `out`; returns where it lies.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpora: annotated texts to train on; a task is asked on the first that annotates it.
        out: the output directory; left as it was when anything fails.
        held_out: annotated texts to test on; without one for a task a quarter of its corpus is kept apart.
        seed: of everything random.
        command: what the user typed, for the record.
        name: the model's name, for the record.
        progress: called with what is being done and the number of texts read.

    Raises:
        InputError: nothing that can be probed, a damaged corpus, or an output directory that cannot be used.
    """
    started = time.perf_counter()
    say: Say = progress or (lambda stage, texts: None)
    with output.writing(out) as new:
        shown = section(model, corpora, new, held_out=held_out, seed=seed, progress=say)
        say("writing the page", 0)
        facts: dict[str, Any] = {
            "model": report.model_facts(model),
            "name": name or "a model",
            "corpora": [
                *(_corpus(each, shown.facts, "train") for each in corpora),
                *(_corpus(each, shown.facts, "test") for each in held_out),
            ],
            **shown.facts,
            "seed": seed,
            "command": command,
            "versions": output.versions(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", render("probes.html.jinja", facts=facts, section=shown))
        new.run(facts)
    return Path(out)


def _corpus(corpus: Corpus, facts: Mapping[str, Any], use: str) -> dict[str, Any]:
    """What run.json says of a corpus: whether it is there to train or to test on, and for which tasks it was."""
    key = {"train": "trained_on", "test": "tested_on"}[use]
    return {
        "name": corpus.name,
        "kind": corpus.kind,
        "sha256": corpus.digest,
        "annotates": sorted(corpus.annotates),
        "use": use,
        "tasks": [task for task, each in facts["tasks"].items() if each[key] == corpus.name],
    }
