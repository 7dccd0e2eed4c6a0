"""What do the articles' small experiments show of this model? Runs them; writes tables, figures and one HTML page."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from analyses.experiments import EXPERIMENTS
from analyses.experiments.experiments_section import section
from analyses.report import full_report as report
from analyses.report import output
from analyses.report.renderer import render
from interp import InputError, Transformer


def build(
    model: Transformer,
    out: Path,
    commands: Collection[str] | None = None,
    *,
    seed: int = 0,
    command: str = "",
    name: str = "",
    progress: Callable[[str, int], object] | None = None,
) -> Path:
    """Run the experiments of some commands (None: all) and write everything into `out`; returns where it lies.

    Args:
        model: a transformer with a tokenizer.
        out: the output directory; left as it was when anything fails.
        commands: `word-sense`, `next-word` or `position`: whose experiments.
        seed: of everything random.
        command: what the user typed, for the record.
        name: the model's name, for the record.
        progress: called with what is being done.

    Raises:
        InputError: none of them can be asked of this model, or an output directory that cannot be used.
    """
    started = time.perf_counter()
    chosen = [key for key, module in EXPERIMENTS.items() if commands is None or module.COMMAND in commands]
    with output.writing(out) as new:
        found = section(model, new, chosen, seed=seed, progress=progress)
        if not found.shown:
            raise InputError("; ".join(found.refused))
        run: dict[str, Any] = {
            "model": report.model_facts(model),
            "name": name or "a model",
            **found.facts,
            "seed": seed,
            "command": command,
            "versions": output.versions(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", render("experiments.html.jinja", facts=run, found=found))
        new.run(run)
    return Path(out)
