"""When did each head of a model form? By the record of the run that trained it, where that is known."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pandas as pd

from analyses.over_training.phase_changes import last_look
from analyses.over_training.training_runs import Load, Run, Say, read_run
from analyses.tables.head_tables import Heads
from analyses.wording.formats import counted
from analyses.wording.head_names import HEAD
from interp import InputError, Model
from interp.training import record
from models.sources import LENS, directory_of

COLUMNS = [*HEAD, "measure", "run", "step", "value", "baseline", "gain", "formed_at", "before"]


def given(folder: Path, load: Load, *, seed: int = 0, progress: Say | None = None) -> Run:
    """A run that the user names; arguments, and what is raised, as of `read_run`.

    Raises:
        InputError: it tells nothing of heads either.
    """
    run = read_run(folder, folder.resolve().name, load, seed=seed, progress=progress)
    if run.heads.empty:
        raise InputError(
            f"{folder} tells nothing of heads: expected heads/... in its metrics.jsonl, or models in steps/"
        )
    return run


def known(name: str, model: Model) -> Run | None:
    """The run that trained a model, where its record of heads stands with the model's directory; None elsewhere.

    That is the record of the directory itself, as `interp train` leaves it; of a snapshot, RUN/steps/001000, that of
    RUN up to there; or `training/NAME` in a directory called NAME. One that cannot be read, or is
    of heads that the model does not have, is none.

    Args:
        name: what the model was loaded by (`models.load`).
        model: the model itself.
    """
    called = name.removeprefix(LENS)
    if called != "default" and not Path(called).is_dir():
        return None
    folder = directory_of(called).resolve()
    is_snapshot = folder.parent.name == "steps" and folder.name.isdecimal()
    for each in [folder.parents[1]] if is_snapshot else [folder, folder / "training" / folder.name]:
        if (each / record.METRICS).is_file():
            try:
                run = read_run(each, each.name, None)
            except InputError:  # somebody else's metrics.jsonl, or one that is damaged: a report can do without
                return None
            if is_snapshot:
                run = replace(run, table=run.table.loc[run.table["step"] <= int(folder.name)])
            return run if not run.heads.empty and _fits(run, model) else None
    return None


def forming(run: Run, model: Model) -> pd.DataFrame:
    """The rows of a run that are about heads, which are called as the tables of a report call the model's.

    Raises:
        InputError: the run is of other heads than the model has.
    """
    if not _fits(run, model):
        shapes = " and ".join(_shape(*shape) for shape in _shapes(run).values())
        own = " and ".join(_shape(each.n_layers, each.n_heads) for each in Heads.every(model))
        raise InputError(
            f"{run.folder} trained another model: its record is of {shapes}, this model is of {own}; give the run that "
            "trained this one"
        )
    only = Heads.every(model)[0].stack  # a record names stacks where there are several
    return run.heads.assign(stack=[only if pd.isna(each) else str(each) for each in run.heads["stack"]])


def _fits(run: Run, model: Model) -> bool:
    kinds = Heads.every(model)
    own = {(each.stack if len(kinds) > 1 else None, each.attention): (each.n_layers, each.n_heads) for each in kinds}
    return all(own.get(kind) == shape for kind, shape in _shapes(run).items())


def _shapes(run: Run) -> dict[tuple[str | None, str], tuple[int, int]]:
    """By stack, where there are several, and attention: how many layers and heads the record is of."""
    found = {}
    for key, rows in run.heads.groupby(["stack", "attention"], dropna=False):
        stack, attention = cast(tuple[Any, ...], key)
        layer, head = rows["layer"].to_numpy().max(), rows["head"].to_numpy().max()
        found[None if pd.isna(stack) else stack, attention] = int(layer) + 1, int(head) + 1
    return found


def _shape(n_layers: int, n_heads: int) -> str:
    return f"{counted(n_layers, 'layer')} of {counted(n_heads, 'head')}"


def when_formed(curves: pd.DataFrame) -> pd.DataFrame:
    """When each head had formed: a row a head and measure that was looked at at least twice.

    `value`, `baseline` and `gain` are those of the last look, at `step`. `formed_at` is the look from which on the head
    keeps half of that gain (`phase_changes.formed_at`), `before` the look before it: missing where the head had it from
    the first look on, and so did not form while anybody looked.

    Args:
        curves: rows of `forming`.
    """
    rows = []
    for key, curve in curves.sort_values("step").groupby([*HEAD, "measure", "run"], sort=False):
        row, steps = last_look(curve), [int(step) for step in curve["step"]]
        if len(steps) > 1:
            place = dict(zip((*HEAD, "measure", "run"), cast(tuple[Any, ...], key), strict=True))
            before = {later: sooner for sooner, later in pairwise(steps)}
            rows.append(place | row | {"before": before.get(row["formed_at"])})
    whole = dict.fromkeys(("layer", "head", "step", "formed_at", "before"), "Int64")
    numbers = dict.fromkeys(("value", "baseline", "gain"), float)
    return pd.DataFrame(rows, columns=COLUMNS).astype({**whole, **numbers})
