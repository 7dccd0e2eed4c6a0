"""What does the directory of a training run tell of how its heads formed? Its record, or else its snapshots."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.execution.provenance import digest
from analyses.over_training.observe import by_kind, measures
from interp import InputError, Model
from interp.training import record, state

COLUMNS = ["run", "step", "measure", "stack", "attention", "layer", "head", "value", "baseline"]
LOSS, HELD_OUT = "loss", "held_out/"
Load = Callable[[str], Model]
Say = Callable[[str, int], object]  # what is being done, and how many snapshots were measured
_HEAD = re.compile(r"(?:(encoder|decoder|cross)\.)?L(\d+)\.H(\d+)")
_KINDS = {None: (None, "self"), "encoder": ("encoder", "self"), "decoder": ("decoder", "self")}
_KINDS["cross"] = ("decoder", "cross")


@dataclass(frozen=True)
class Run:
    """One training run as it is drawn."""

    name: str
    table: pd.DataFrame  # COLUMNS; losses and what was measured of the whole model have neither layer nor head
    source: str  # where the measures of heads are from
    folder: Path
    digest: str | None  # SHA-256 of its record, where it left one
    boundaries: tuple[int, ...] = ()  # steps after which a phase of training ended and another began
    left_out: Mapping[str, str] = field(default_factory=dict)  # snapshots, and why

    @property
    def looks(self) -> int:
        """How often its heads were measured."""
        return len({*self.heads["step"]})

    @property
    def heads(self) -> pd.DataFrame:
        """The rows that are about heads."""
        return self.table.loc[self.table["layer"].notna()]


def read_run(folder: Path, name: str, load: Load | None, *, seed: int = 0, progress: Say | None = None) -> Run:
    """A run's losses and the measures of its heads: those that it recorded, else those of its snapshots now.

    Nothing is written into `folder`.

    Args:
        folder: what `interp train` wrote: `metrics.jsonl`, `steps/NNNNNN/`, or both.
        name: what to call it.
        load: opens a snapshot; None has none measured.
        seed: of what snapshots are measured on.
        progress: called with what is being done and how many snapshots were measured.

    Raises:
        InputError: the directory holds neither, or nothing in it can be read.
    """
    if not folder.is_dir():
        raise InputError(f'no directory "{folder}": give one that interp train wrote')
    lines = [line for line in record.read(folder) if isinstance(line, dict) and isinstance(line.get("step"), int)]
    snapshots = sorted(each for each in folder.glob("steps/*") if each.name.isdecimal() and each.is_dir())
    if not lines and not snapshots:
        raise InputError(
            f"{folder} is no training run: expected metrics.jsonl or steps/, as interp train writes them into its --out"
        )
    left_out: dict[str, str] = {}
    if any(by_kind(line, "heads") for line in lines):
        source = "recorded while it was trained"
    elif snapshots and load is not None:
        measured = list(_measured(snapshots, name, load, seed, progress or (lambda stage, count: None), left_out))
        source = f"measured on {len(measured)} of its snapshots, seed {seed}"
        if not measured and not lines:
            raise InputError(f"no snapshot of {folder} can be measured: {next(iter(left_out.values()))}")
        lines = [*lines, *measured]
    else:
        source = "not recorded, and there are no snapshots to measure"
    table = pd.DataFrame([row for line in lines for row in _rows(line)], columns=COLUMNS).assign(run=name)
    table = table.astype({"layer": "Int64", "head": "Int64", "baseline": float, "value": float})
    table = table.sort_values("step", kind="stable", ignore_index=True)
    kept = folder / record.METRICS
    hashed = digest([kept.read_bytes()]) if kept.is_file() else None
    return Run(name, table, source, folder, hashed, phases(folder), left_out)


def _measured(
    snapshots: Iterable[Path], name: str, load: Load, seed: int, say: Say, left_out: dict[str, str]
) -> Iterator[dict[str, Any]]:
    for count, snapshot in enumerate(snapshots):
        say(f"measuring step {int(snapshot.name):,} of {name}", count)
        try:
            yield {"step": int(snapshot.name), **measures(load(str(snapshot)), seed)}
        except InputError as error:  # one that is being written, or is damaged
            left_out[f"{name}/steps/{snapshot.name}"] = str(error)


def _rows(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one look."""
    numbers = {
        name: float(value)
        for name, value in line.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    baselines, of_heads = by_kind(numbers, "baseline"), by_kind(numbers, "heads")
    known = set()
    for name, value in of_heads.items():
        measure, _, place = name.rpartition("/")
        if found := _HEAD.fullmatch(place):
            kind, layer, head = found.groups()
            known.add(measure)
            stack, attention = _KINDS[kind]
            where = {"stack": stack, "attention": attention, "layer": int(layer), "head": int(head)}
            baseline = baselines.get(f"{kind}.{measure}" if kind else measure)
            yield {"step": line["step"], "measure": measure, **where, "value": value, "baseline": baseline}
    whole = {name: value for name, value in by_kind(numbers, "model").items() if name not in known}
    whole |= {name: value for name, value in numbers.items() if name == LOSS or name.startswith(HELD_OUT)}
    for name, value in whole.items():
        yield {"step": line["step"], "measure": name, "value": value}


def phases(folder: Path) -> tuple[int, ...]:
    """The steps after which a phase of the run ended and another began, where its recipe or state says so."""
    try:
        if (recipe := folder / "recipe.toml").is_file():
            told = tomllib.loads(recipe.read_text("utf-8"))["phases"]
        elif (kept := folder / state.FILE).is_file():
            told = state.read(kept).facts["made_of"]["plan"]["phases"]
        else:
            return ()
        return tuple(accumulate(int(phase["steps"]) for phase in told))[:-1]
    except (InputError, OSError, ValueError, KeyError, TypeError):  # a light line in a figure, which can do without
        return ()
