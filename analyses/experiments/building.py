"""What do the articles' small experiments show of this model? Runs them; writes tables, figures and one HTML page."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyses import output, report
from analyses.experiments import EXPERIMENTS
from analyses.figures.experiments import DRAW
from analyses.rendering import image, render
from interp import InputError, Transformer


@dataclass(frozen=True)
class _Part:
    """One experiment as the page shows it; `refused` says why where this model could not be asked."""

    name: str
    question: str
    sentence: str = ""
    figure: dict[str, str] | None = None
    refused: str | None = None


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
    say = progress or (lambda stage, count: None)
    chosen = {key: module for key, module in EXPERIMENTS.items() if commands is None or module.COMMAND in commands}
    with output.writing(out) as new:
        parts, facts = [], {}
        for key, module in chosen.items():
            say(key, 0)
            try:
                table = module.measure(model, seed=seed)
            except InputError as error:
                parts.append(_Part(key, module.QUESTION, refused=str(error)))
                continue
            facts[key] = {what: table.attrs[what] for what in ("used", "left_out", "refused") if what in table.attrs}
            new.table(key, table)
            figure = DRAW[key](table, title=module.QUESTION)
            svg = new.figure(key, figure).read_bytes()
            sentence = module.sentence(table)
            parts.append(_Part(key, module.QUESTION, sentence, image(figure, svg, "", f"{module.QUESTION} {sentence}")))
        if all(part.refused for part in parts):
            raise InputError("; ".join(dict.fromkeys(str(part.refused) for part in parts)))
        run: dict[str, Any] = {
            "model": report.model_facts(model),
            "name": name or "a model",
            "experiments": facts,
            "not_asked": {part.name: part.refused for part in parts if part.refused},
            "seed": seed,
            "command": command,
            "versions": output.versions(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", render("experiments.html.jinja", facts=run, parts=parts))
        new.run(run)
    return Path(out)
