"""Which cells of one site carry the difference between two prompts? Exact sweeps, as a table with intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses import figures
from analyses.execution import lots
from analyses.tasks.flips import answer_probabilities
from interp import InputError, Model, Transformer, patching
from interp.patching import Metric, Pairs, Sweep, sweep
from interp.patching.patch_sites import IN_ATTENTION, Attending, PatchSite, StackName
from interp.patching.preparation import Plan
from interp.patching.results import ANSWERS, ESTIMATED, POSITIONAL, Direction, long_table, refusal

METRICS: dict[str, Callable[[], Metric]] = {
    "logit_difference": patching.logit_difference,
    "log_probability": patching.log_probability,
    "probability": patching.probability,
    "rank": patching.rank,
    "kl_divergence": patching.kl_divergence,
    "loss": patching.next_token_loss,
}
DIRECTIONS: tuple[Direction, ...] = ("denoise", "noise")
NO_OUTPUT = "this model has no output layer, so there are no logits whose change could be measured: choose another"
_TOKENS = ("token", "corrupt_token")  # columns of places that count tokens
_AT_ONCE = 16  # pairs per lot


@dataclass(frozen=True)
class Answers:
    """Does the model do the task? The unpatched logit difference of right and wrong answers says so.

    `right` of `n` clean prompts and `wrong` of the corrupted ones rank their own answer first; `difference` is the mean
    of clean minus corrupted, which should be above 0. `refused` says why effects are no shares of it.
    """

    n: int
    right: int
    wrong: int
    difference: float
    refused: str | None

    @staticmethod
    def from_sweep(sweep: Sweep) -> "Answers | None":
        """The answers to a sweep's pairs; None if the pairs have no answers."""
        if ANSWERS not in sweep.clean:
            return None
        clean, corrupt = sweep.clean[ANSWERS], sweep.corrupt[ANSWERS]
        refused, right, wrong = refusal(ANSWERS, sweep.clean, sweep.corrupt), clean > 0, corrupt < 0
        return Answers(len(clean), int(right.sum()), int(wrong.sum()), float((clean - corrupt).mean()), refused)

    @property
    def sentence(self) -> str:
        """Both shares, and the difference."""
        change, verdict = ("falls", ", as expected") if self.difference > 0 else ("rises", "")
        return (
            f"The model prefers the right answer on {self.right} of {self.n} clean prompts, "
            f"and the wrong one on {self.wrong} of {self.n} corrupted prompts. The logit difference {change} by "
            f"{abs(self.difference):.3g} from clean to corrupted{verdict}."
        )


def measure(model: Model, pairs: Pairs, site: str = "z", *, seed: int = 0, **options: Any) -> pd.DataFrame:
    """How far patching each cell moves each metric: the rows of `Cells.table`. `options` are those of `sweeps`."""
    return cells_of(model, sweeps(model, pairs, site, **options), seed=seed).table


def sweeps(
    model: Model,
    pairs: Pairs,
    site: str,
    *,
    by_position: bool = False,
    directions: Sequence[Direction] = DIRECTIONS,
    metrics: Sequence[str] = ("logit_difference",),
    stack: StackName | None = None,
    attention: Attending = "self",
    answered: bool = False,
    progress: lots.Progress | None = None,
) -> list[Sweep]:
    """One sweep per direction, of all `metrics` (names of `METRICS`); `by_position` patches positions one by one.

    `stack` is the stack of an encoder-decoder to patch, by default the decoder. `answered` also reads the probabilities
    of the pairs' answers. `progress` is as in `lots.do`, in pairs.
    """
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if unknown := [name for name in metrics if name not in METRICS]:
        raise InputError(f"no metric {', '.join(dict.fromkeys(unknown))}: expected some of {', '.join(METRICS)}")
    axes = PatchSite.from_name(model, site, ("layer",), stack, attention).axes
    by = ["layer", *(axis for axis in axes if axis == "head" or (by_position and axis in POSITIONAL))]
    options = {"site": site, "by": by, "stack": stack, "attention": attention}
    swept = partial(_swept, model, tuple(dict.fromkeys(metrics)), answered, options)
    if not isinstance(model, Transformer):
        return [swept(direction, pairs) for direction in directions]
    parts = [pairs.take(rows) for rows in torch.arange(len(pairs), device=pairs.last.device).split(_AT_ONCE)]
    cells = iter(lots.do(swept, [(way, part) for way in directions for part in parts], progress))
    return [_joined(model, pairs, [next(cells) for _ in parts]) for _ in directions]


def _swept(
    model: Model, metrics: Sequence[str], answered: bool, options: Mapping[str, Any], direction: Direction, pairs: Pairs
) -> Sweep:
    readers = [*(METRICS[name]() for name in metrics), *(answer_probabilities(pairs) if answered else ())]
    return sweep(model, pairs, readers, direction=direction, **options)


def _joined(model: Model, pairs: Pairs, parts: Sequence[Sweep]) -> Sweep:
    first = parts[0]
    sides = [[part.values, part.clean, part.corrupt] for part in parts]
    values, clean, corrupt = (
        {name: torch.cat([part[name] for part in side], -1) for name in side[0]} for side in zip(*sides, strict=True)
    )
    ends = (corrupt, clean) if first.direction == "denoise" else (clean, corrupt)
    arguments = first.site, first.axes, first.direction, first.stack, first.attention
    return Plan.from_arguments(model, pairs, (), *arguments).cells(values, *ends)


@dataclass(frozen=True)
class Cells:
    """The effects of patching each cell of one site.

    In `table`, one row per cell, direction and metric: `effect` is the mean over prompts in the metric's unit, with its
    interval (`ci_low`, `ci_high`) and two-sided `p`; `share` is its part of the whole difference between clean and
    corrupted prompts, with `share_low` and `share_high`. Shares are missing if the difference is too small or has the
    wrong sign, or if the model does the task no better than a coin. Intervals are missing below three pairs; p for a
    single pair, and for cells that change nothing. `q` is over all rows. Named positions appear by name.
    """

    table: pd.DataFrame
    share_refused: Mapping[str, str]  # metric: why it has no shares
    prompts: Mapping[str, Sequence[float]]  # `clean_METRIC` and `corrupt_METRIC` of every pair, unpatched
    answers: Answers | None  # whether the model does the task
    place: str | None  # the site's name in figures, if the model has several stacks


def cells_of(model: Model, sweeps: Sequence[Sweep], *, seed: int = 0) -> Cells:
    """The cells of sweeps of one site."""
    first = sweeps[0]
    attention = "cross" if first.attention == "cross" and first.site in IN_ATTENTION else "self"
    patch_site = PatchSite.from_name(model, first.site, ("layer",), first.stack, attention)
    reasons = {name: first.no_share(name) for name in first.values}
    rows = [each.rows(name, seed=seed, shared=reasons[name] is None) for each in sweeps for name in each.values]
    place = {"stack": patch_site.stack, "attention": patch_site.attention, "site": patch_site.site}
    positional = [axis for axis in patch_site.axes if axis in POSITIONAL]
    tokens = [prefix + name for prefix, _ in zip(("", "key_"), positional, strict=False) for name in _TOKENS]
    order = [*place, "layer", "head", *positional, *tokens, "direction", "metric", *ESTIMATED]
    table = long_table(place, rows, first.axes, first.positions, first.labels).reindex(columns=order)
    named = {*first.axes} & {*POSITIONAL} if first.positions else set()
    numbers = [axis for axis in ("layer", "head", *positional) if axis not in named]
    table = table.astype(dict.fromkeys(numbers, "Int64") | dict.fromkeys(tokens, object))
    sides = ("clean", first.clean), ("corrupt", first.corrupt)
    prompts = {f"{side}_{name}": values[name].tolist() for side, values in sides for name in first.values}
    attending = f"{patch_site.attention}-attention " if patch_site.site in IN_ATTENTION else ""
    name = f"{patch_site.stack} {attending}{patch_site.site}" if len(model.config.stacks) > 1 else None
    refused = {name: reason for name, reason in reasons.items() if reason}
    return Cells(table, refused, prompts, Answers.from_sweep(first), name)


def strongest(cells: pd.DataFrame, metric: str, count: int) -> dict[str, list[dict[str, Any]]]:
    """By direction, the rows of `tables/cells` with the largest absolute effects on a metric, with `cell` names."""
    rows = cells.loc[cells["metric"] == metric]
    rows = rows.iloc[np.argsort(-rows["effect"].abs().to_numpy(dtype=float), kind="stable")]
    rows = rows.assign(cell=[figures.cell_name(row) for row in rows.to_dict("records")])
    ways = dict.fromkeys(cells["direction"])
    return {str(way): rows.loc[rows["direction"] == way].head(count).to_dict("records") for way in ways}
