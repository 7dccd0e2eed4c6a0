"""What does a training run's directory say about how its heads formed? Its record, or else its snapshots.

A model's run is the one that the user names, or the one whose record is in the model's directory. Two things say when
heads formed: a curve's phase change, and for each measure the head that has most of it at the end.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from analyses.execution.provenance import digest
from analyses.measures.definitions import DECLARED
from analyses.measures.findings import NOTABLE
from analyses.measures.head_tables import Heads
from analyses.over_training.observe import PAGE_MEASURES, by_kind, measures
from analyses.wording.formats import counted
from analyses.wording.head_names import HEAD
from interp import InputError, Model
from interp.training import state
from models.sources import LENS, OURS, directory_of

COLUMNS = ["run", "step", "measure", "stack", "attention", "layer", "head", "value", "baseline"]
LOSS, HELD_OUT = "loss", "held_out/"
Load = Callable[[str], Model]
Say = Callable[[str, int], object]  # the current work, and the number of snapshots measured
_HEAD = re.compile(r"(?:(encoder|decoder|cross)\.)?L(\d+)\.H(\d+)")
_KINDS = {None: (None, "self"), "encoder": ("encoder", "self"), "decoder": ("decoder", "self")}
_KINDS["cross"] = ("decoder", "cross")


@dataclass(frozen=True)
class Run:
    """One training run, as figures need it."""

    name: str
    table: pd.DataFrame  # COLUMNS; losses and measures of the whole model have neither layer nor head
    source: str  # where the measures of heads come from
    folder: Path
    digest: str | None  # SHA-256 of its record, if it left one
    boundaries: tuple[int, ...] = ()  # steps at which one phase of training ended and another began
    left_out: Mapping[str, str] = field(default_factory=dict)  # snapshots that were skipped, and why

    @property
    def looks(self) -> int:
        """How often its heads were measured."""
        return len({*self.heads["step"]})

    @property
    def heads(self) -> pd.DataFrame:
        """The rows about heads."""
        return self.table.loc[self.table["layer"].notna()]


def read_run(folder: Path, name: str, load: Load | None, *, seed: int = 0, progress: Say | None = None) -> Run:
    """A run's losses and the measures of its heads: those it recorded, or those of its snapshots, measured now.

    Nothing is written into `folder`. Raises an `InputError` if it holds neither, or if nothing can be read.
    """
    if not folder.is_dir():
        raise InputError(f'no directory "{folder}": give one that interp train wrote')
    lines = [
        line for line in state.read_metrics(folder) if isinstance(line, dict) and isinstance(line.get("step"), int)
    ]
    snapshots = sorted(each for each in folder.glob("steps/*") if each.name.isdecimal() and each.is_dir())
    if not lines and not snapshots:
        raise InputError(
            f"{folder} is not a training run: expected metrics.jsonl or steps/, as interp train writes into --out"
        )
    left_out: dict[str, str] = {}
    if any(by_kind(line, "heads") for line in lines):
        source = "recorded while it was trained"
    elif snapshots and load is not None:
        measured = []
        for count, snapshot in enumerate(snapshots):
            if progress is not None:
                progress(f"measuring step {int(snapshot.name):,} of {name}", count)
            try:
                measured.append({"step": int(snapshot.name), **measures(load(str(snapshot)), seed)})
            except InputError as error:  # still being written, or damaged
                left_out[f"{name}/steps/{snapshot.name}"] = str(error)
        source = f"measured on {len(measured)} of its snapshots, seed {seed}"
        if not measured and not lines:
            raise InputError(f"no snapshot of {folder} can be measured: {next(iter(left_out.values()))}")
        lines = [*lines, *measured]
    else:
        source = "not recorded, and there are no snapshots to measure"
    table = pd.DataFrame([row for line in lines for row in _rows(line)], columns=COLUMNS).assign(run=name)
    table = table.astype({"layer": "Int64", "head": "Int64", "baseline": float, "value": float})
    table = table.sort_values("step", kind="stable", ignore_index=True)
    metrics = folder / state.METRICS
    sha256 = digest([metrics.read_bytes()]) if metrics.is_file() else None
    return Run(name, table, source, folder, sha256, phases(folder), left_out)


def _rows(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    numbers = {
        name: float(value)
        for name, value in line.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    baselines, head_measures = by_kind(numbers, "baseline"), set()
    for name, value in by_kind(numbers, "heads").items():
        measure, _, head_name = name.rpartition("/")
        if match := _HEAD.fullmatch(head_name):
            kind, layer, head = match.groups()
            head_measures.add(measure)
            stack, attention = _KINDS[kind]
            place = {"stack": stack, "attention": attention, "layer": int(layer), "head": int(head)}
            baseline = baselines.get(f"{kind}.{measure}" if kind else measure)
            yield {"step": line["step"], "measure": measure, **place, "value": value, "baseline": baseline}
    whole = {name: value for name, value in by_kind(numbers, "model").items() if name not in head_measures}
    whole |= {name: value for name, value in numbers.items() if name == LOSS or name.startswith(HELD_OUT)}
    for name, value in whole.items():
        yield {"step": line["step"], "measure": name, "value": value}


def phases(folder: Path) -> tuple[int, ...]:
    """The steps at which one phase of the run ended and another began, if its recipe says so."""
    try:
        plan = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))["phases"]
        return tuple(accumulate(int(phase["steps"]) for phase in plan))[:-1]
    except (OSError, ValueError, KeyError, TypeError):  # it only adds a faint line to a figure
        return ()


def run_of_folder(folder: Path, load: Load, *, seed: int = 0, progress: Say | None = None) -> Run:
    """A run that the user names; like `read_run`, but it must have measures of heads."""
    run = read_run(folder, folder.resolve().name, load, seed=seed, progress=progress)
    if run.heads.empty:
        raise InputError(
            f"{folder} says nothing about heads: expected heads/... in its metrics.jsonl, or models in steps/"
        )
    return run


def run_of_model(name: str, model: Model) -> Run | None:
    """The run that trained a model, if its record of heads is in the model's directory; else None.

    `interp train` leaves the record in the directory `name` itself. For a snapshot, RUN/steps/001000, it is RUN's
    record up to that step. Otherwise it is `training/NAME` in a directory called NAME. A record that cannot be read, or
    that has heads the model lacks, does not count.
    """
    name = name.removeprefix(LENS)
    if name not in OURS and not Path(name).is_dir():
        return None
    folder = directory_of(name).resolve()
    is_snapshot = folder.parent.name == "steps" and folder.name.isdecimal()
    for candidate in [folder.parents[1]] if is_snapshot else [folder, folder / "training" / folder.name]:
        if (candidate / state.METRICS).is_file():
            try:
                run = read_run(candidate, candidate.name, None)
            except InputError:  # another tool's metrics.jsonl, or a damaged one; reports work without it
                return None
            if is_snapshot:
                run = replace(run, table=run.table.loc[run.table["step"] <= int(folder.name)])
            return run if not run.heads.empty and _fits(run, model) else None
    return None


def forming(run: Run, model: Model) -> pd.DataFrame:
    """A run's rows about heads, named as in the tables of the model's report."""
    if not _fits(run, model):
        recorded, expected = (
            " and ".join(f"{counted(layers, 'layer')} of {counted(heads, 'head')}" for layers, heads in shapes.values())
            for shapes in (_shapes(run), _shapes_of(model))
        )
        raise InputError(
            f"{run.folder} trained another model: its record describes {recorded}, this model has {expected}; "
            "give the run that trained this one"
        )
    only = Heads.kinds_of(model)[0].stack  # a record names stacks only if there are several
    return run.heads.assign(stack=run.heads["stack"].astype(object).fillna(only))


def _fits(run: Run, model: Model) -> bool:
    return _shapes(run).items() <= _shapes_of(model).items()


def _shapes_of(model: Model) -> dict[tuple[str, str], tuple[int, int]]:
    """How many layers and heads the model has, by stack (if there are several) and attention."""
    kinds = Heads.kinds_of(model)
    return {(each.stack * (len(kinds) > 1), each.attention): (each.n_layers, each.n_heads) for each in kinds}


def _shapes(run: Run) -> dict[tuple[str, str], tuple[int, int]]:
    shapes: dict[tuple[str, str], tuple[int, int]] = {}
    for stack, attention, layer, head in run.heads[HEAD].drop_duplicates().itertuples(index=False):
        kind = "" if pd.isna(stack) else stack, attention
        layers, heads = shapes.get(kind, (0, 0))
        shapes[kind] = max(layers, layer + 1), max(heads, head + 1)
    return shapes


CHANGING = "induction"  # the measure whose rise is the phase change (Olsson 2022)
LEAST = 0.1  # a smaller rise does not count
PART = 1 / 3  # of the whole rise, at least
TIMES = 3  # as fast as over the whole run, at least
STRETCH = 1 / 20  # of the run, at most; or one interval between looks, if longer
NEARLY = 0.9  # of the largest rise: the shortest stretch with that much is the change
FEWEST = 4  # looks: with fewer, no rise can be three times as fast as the whole
SHARES = ("previous-token", "induction", "antecedent")  # measures in units for which `LEAST` makes sense
KIND = ["stack", "attention"]
_WHOLE = ("layer", "head", "step", "half_way", "rise_from", "rise_to", "formed_at", "before")
_NUMBERS = ("value", "baseline", "gain", "value_from", "value_to", "times")


class Rise(NamedTuple):
    """Where a curve starts and stops rising abruptly, and how many times as fast as over the whole run."""

    rise_from: int
    rise_to: int
    value_from: float
    value_to: float
    times: float


FORMED_COLUMNS: list[str] = DECLARED["tables"]["formed"].split()
WHEN_COLUMNS = [*HEAD, "measure", "run", "step", "value", "baseline", "gain", "formed_at", "before"]  # of `when_formed`


def phase_change(steps: Sequence[int], values: Sequence[float]) -> Rise | None:
    """Where a curve rises abruptly, if it does.

    The candidates are stretches between looks of at most `STRETCH` of the run (or one interval). We take the shortest
    with at least `NEARLY` of the largest rise of any. It is a phase change if the curve rises there by at least
    `LEAST`, by `PART` of its whole range, and `TIMES` as fast per step as if it rose evenly over the whole run.
    """
    x, y = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    if len(x) < FEWEST:
        return None
    length, rise = x[None] - x[:, None], y[None] - y[:, None]
    next_look = np.eye(len(x), k=1, dtype=bool)
    allowed = next_look | ((length > 0) & (length <= STRETCH * (x[-1] - x[0])))
    largest, whole = float(rise[allowed].max()), float(y.max() - y.min())
    if largest < LEAST:
        return None
    enough = allowed & (rise >= max(LEAST, NEARLY * largest))
    length = np.where(enough, length, np.inf)
    first, last = np.unravel_index(np.where(length == length.min(), rise, -np.inf).argmax(), length.shape)
    times = float(rise[first, last] / length[first, last] / (whole / (x[-1] - x[0])))
    if rise[first, last] < PART * whole or times < TIMES:
        return None
    return Rise(int(x[first]), int(x[last]), float(y[first]), float(y[last]), times)


def formed_at(steps: Sequence[int], values: Sequence[float], baseline: float) -> int | None:
    """The look from which a curve keeps half of its last gain over a baseline; None if that gain is under 0.05.

    A look that has half does not count if a later one has less.
    """
    gains = np.asarray(values, dtype=float) - baseline
    if not len(gains) or gains[-1] < NOTABLE:
        return None
    short = np.flatnonzero(gains < gains[-1] / 2)
    return int(steps[short[-1] + 1 if len(short) else 0])


def last_look(curve: pd.DataFrame) -> dict[str, Any]:
    """The last of one head's looks (in order): its `step`, `value`, `baseline` and `gain`; and `formed_at`."""
    end: dict[str, Any] = curve.iloc[-1].to_dict()
    baseline = 0.0 if pd.isna(end["baseline"]) else float(end["baseline"])
    row = {"step": int(end["step"]), "value": float(end["value"]), "baseline": float(end["baseline"])}
    formed = formed_at(curve["step"].tolist(), curve["value"].tolist(), baseline)
    return row | {"gain": row["value"] - baseline, "formed_at": formed}


def best_curve(heads: pd.DataFrame) -> pd.DataFrame:
    """For each look, the row of the best head; `heads` are rows of one run, kind and measure."""
    return heads.loc[heads.groupby("step")["value"].idxmax()].sort_values("step")


def formed(run: Run) -> pd.DataFrame:
    """For each measure and kind of attention, the head with the highest value at the last look, and when it had half.

    `half_way` is that head's `formed_at`. `rise_from` to `times` describe the phase change of the best head at each
    look, for shares that gain at least 0.05: without a gain nothing has formed, however the curve jumps. Relations,
    and all tags but one, are left out (`observe.PAGE_MEASURES`).
    """
    rows = []
    rows_drawn = run.heads.loc[run.heads["measure"].isin(PAGE_MEASURES)]
    for key, heads in rows_drawn.groupby(["measure", *KIND], sort=False, dropna=False):
        best = best_curve(heads)
        layer, head = best[["layer", "head"]].iloc[-1]
        row = last_look(heads.loc[(heads["layer"] == layer) & (heads["head"] == head)].sort_values("step"))
        row |= dict(zip(("measure", *KIND), cast(tuple[Any, ...], key), strict=True))
        row |= {"run": run.name, "layer": layer, "head": head, "half_way": row["formed_at"]}
        has_formed = row["measure"] in SHARES and row["gain"] >= NOTABLE
        change = phase_change(best["step"].tolist(), best["value"].tolist()) if has_formed else None
        rows.append(row | (change._asdict() if change else {}))
    return _table(rows, FORMED_COLUMNS)


def when_formed(curves: pd.DataFrame) -> pd.DataFrame:
    """When each head had formed: a row for each head and measure with at least two looks.

    `value`, `baseline` and `gain` are those of the last look, at `step`. `before` is the look before `formed_at`; it is
    missing if the head had it from the first look, so that nobody saw it form.
    """
    rows = []
    for key, curve in curves.sort_values("step").groupby([*HEAD, "measure", "run"], sort=False):
        row, steps = last_look(curve), [int(step) for step in curve["step"]]
        if len(steps) > 1:
            place = dict(zip((*HEAD, "measure", "run"), cast(tuple[Any, ...], key), strict=True))
            previous = {later: sooner for sooner, later in pairwise(steps)}
            rows.append(place | row | {"before": previous.get(row["formed_at"])})
    return _table(rows, WHEN_COLUMNS)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    kinds = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_NUMBERS, float)}
    return pd.DataFrame(rows, columns=columns).astype({name: kinds[name] for name in columns if name in kinds})
