"""What does `interp train` do around a recipe? It reports progress, measures at every look, and leaves a record."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from analyses import over_training as forming
from analyses.execution.output import RUN, jsonable
from analyses.execution.provenance import recorded
from interp import AnnotatedText, InputError, Model
from interp.training import Plan, Progress, state
from interp.training.parallel import Parallel
from interp.training.whole_files import replacing
from models import weights_digest
from models.recipes import Recipe, Trained, assignment, read
from models.recipes.text_sources import Paired

MAKER = "interp train"  # distinguishes a training's run.json from a report's
_PAIRS = 200  # held-out pairs for measuring attention
LINES, JSON, NOTHING = "lines", "json", "nothing"
Output = Literal["lines", "json", "nothing"]
_PRINTED = ("held_out/", "model/")  # measurements that are printed


def train(
    name: str,
    out: Path,
    changes: Sequence[str] = (),
    *,
    resume: bool = False,
    device: str = "cpu",
    cache: Path | None = None,
    measured: bool = True,
    parallel: Parallel | None = None,
    command: str = "",
    mode: Output = LINES,
) -> None:
    """Follow the recipe `name` into the directory `out`, and report progress."""
    recipe = read(name, dict(map(assignment, changes)))
    if recipe.fitted and leads() and mode != NOTHING:
        fitted = f"to fit {recipe.plan.steps:,} steps: {'; '.join(recipe.fitted)}"
        print(fitted, file=sys.stderr if mode == JSON else sys.stdout)
    with _telling(recipe.plan, mode) as (say, tell):
        trained = recipe.train(
            out,
            device=device,
            cache=cache,
            resume=resume,
            measures=_measures(recipe) if measured else None,
            parallel=parallel,
            tell=tell,
            say=say,
        )
    if not leads():
        return
    seconds = trained.seconds  # of training, since it was resumed
    record = recorded(command=command, seed=recipe.plan.seed, seconds=seconds, stages={"training": seconds})
    facts = {"made_by": MAKER, **record, **_facts(recipe, trained, out)}
    _write(out / RUN, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        folder = path.parent.resolve(strict=True)  # the model's directory: never create another in its place
        with replacing(folder / path.name) as part:
            part.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}); the model is beside it, whole") from error


def leads() -> bool:
    """Whether this process is torchrun's first, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def interrupted(out: Path, command: str) -> str:
    """How to resume a run that was interrupted."""
    try:
        step = state.read(out / state.FILE).facts["step"]
    except InputError:
        return "interrupted before a state was saved: start it again"
    resuming = command if "--resume" in command.split() else f"{command} --resume"
    model = out / "steps" / f"{step:06d}"
    saved = f", and the model {model}" if model.is_dir() else ""
    return f"interrupted; the last good state is {out / state.FILE}, after step {step:,}{saved}: go on with {resuming}"


def _measures(recipe: Recipe) -> Callable[[Model], Mapping[str, float]]:
    for kind in recipe.data.values():
        if isinstance(kind, Paired):
            pairs = islice(kind.sides[1] or kind.sides[0], _PAIRS)
            texts = [AnnotatedText.plain(source, f"pair-{at}", target) for at, (source, target) in enumerate(pairs)]
            return partial(forming.measures, corpus=texts)
    return forming.measures


def _facts(recipe: Recipe, trained: Trained, out: Path) -> dict[str, Any]:
    plan, data = recipe.plan, recipe.data.values()
    tokens = sum(phase.steps * phase.rows * phase.row for phase in plan.phases)
    return {
        "recipe": recipe.name,
        "config": asdict(trained.model.config),
        "weights": weights_digest(out),
        "tokenizer": trained.tokenizer,
        "data": trained.data,
        "plan": asdict(plan),
        "steps": plan.steps,
        "rows": sum(phase.steps * phase.rows for phase in plan.phases),
        "tokens": None if any(isinstance(kind, Paired) for kind in data) else tokens,  # pairs differ in length
        "resumed_at": trained.begun or None,
    }


@contextmanager
def _telling(plan: Plan, mode: Output) -> Iterator[tuple[Callable[[str, int], None], Callable[[Progress], None]]]:
    """Two functions that report progress: while data is prepared, and while the model trains.

    A terminal shows a bar with a line per look above it; elsewhere only the lines. JSON always goes to standard output.
    """
    columns = TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[now]}")
    has_bar = Console(stderr=True).is_terminal and leads() and mode != NOTHING
    console = Console(stderr=True, quiet=not has_bar)  # before rich 14.3, a disabled bar ends with an empty line
    lines = console if has_bar and mode == LINES else Console(file=sys.stdout, soft_wrap=True)
    with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not has_bar) as bar:
        task = bar.add_task("reading", total=None, now="")

        def say(stage: str, count: int) -> None:
            bar.update(task, description=stage, now=f"{count:,} texts" if count else "")

        def tell(progress: Progress) -> None:
            now = f"loss {progress.loss:.3f}  {progress.tokens_per_second:,.0f} tokens/s"
            bar.update(task, description="training", completed=progress.step, total=plan.steps, now=now)
            if mode == NOTHING:
                return
            if progress.step == plan.steps or (plan.evaluate_every and progress.step % plan.evaluate_every == 0):
                line = _line(progress) if mode == LINES else json.dumps(jsonable(asdict(progress)), ensure_ascii=False)
                lines.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

        yield say, tell


def _line(progress: Progress) -> str:
    numbers = {name: value for name, value in progress.numbers.items() if name.startswith(_PRINTED)}
    values = ", ".join(f"{name.partition('/')[2]} {value:.3f}" for name, value in numbers.items())
    line = f"step {progress.step:,} of {progress.steps:,}: loss {progress.loss:.3f}"
    line += f", {progress.tokens_per_second:,.0f} tokens/s"
    line += f"; {values}" if values else ""
    return line if progress.sample is None else f"{line}\n  {' '.join(progress.sample.split())}"
