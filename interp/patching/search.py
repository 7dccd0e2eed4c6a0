"""Which few of many cells matter most? Gradients estimate all; only those that could change the answer are measured.

Gradients at both prompts estimate every cell; the more the two disagree, the larger the estimate's doubt. We measure
the most promising cells, their most doubtful prompts first, until no other cell can be among the first k. We model an
estimate's error, in units of its doubt, as Student t. All measured cells share its scale, which each cell's own prompts
refine (a moderated t, as in Smyth 2004).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor

from interp.display import signed, so_many
from interp.errors import InputError
from interp.model import Model
from interp.patching.gradients.estimates import attribution_patching
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, StackName
from interp.patching.plain import PlainRun
from interp.patching.preparation import BUDGET, Plan, read_values, row_limit
from interp.patching.results import Cells, Direction
from interp.patching.sweeps import fill, prompt_groups
from interp.transformer import with_parts

Array = np.ndarray
_DF = 3.0  # of the errors: heavy tails, since estimates sometimes miss badly
_PRIOR = 3.0  # a cell's own errors must outnumber _DF this many times to weigh as much as the shared scale
_SAMPLE = 20  # at the start, measure at least this many cells of all sizes, or one in this many


@dataclass(frozen=True, repr=False)
class TopCells(Cells):
    """The k cells with the largest mean effect, in either direction, measured exactly on all prompts.

    `cells` are their indices on `units`, strongest first; a named position is an index into `positions`. With the given
    confidence no other cell's mean effect exceeds `limit`, in either direction. Of the `total` (cell, prompt) that a
    patch can change, `paid` were measured.
    """

    limit: float = 0.0
    paid: int = 0
    total: int = 0

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The cells, how large any other may be, and how much was measured."""
        facts = {self.label(cell): signed(mean) for cell, mean in zip(self.cells, self.mean().tolist(), strict=True)}
        facts["any other"] = f"{self.limit:.3g} at most"
        facts["measured"] = f"{self.paid:,} of {self.total:,} cells and prompts that can change"
        (metric, effects), *_ = self.values.items()
        title = f"Top {so_many(len(self.cells), 'cell')} of {self.stack} {self.site}, {self.direction}: {metric}"
        return f"{title}, over {so_many(effects.shape[-1], 'prompt')}", facts


def top_cells(
    model: Model,
    pairs: Pairs,
    metric: Metric,
    site: str = "z",
    k: int = 5,
    confidence: float = 0.95,
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    tie: float = 0.02,
    budget: int = BUDGET,
) -> TopCells:
    """The k cells of a sweep whose mean effect over prompts is largest, without measuring them all.

    A prompt too short for a cell's position counts as 0, so that no cell wins by being rare. The confidence has a
    Bonferroni correction over cells. The search can miss a cell that neither gradient nor a similar cell reveals.

    Args:
        metric: what to read; must have a gradient.
        model, pairs, site, by, direction, stack, attention, budget: as in `sweep`.
        k: how many cells.
        confidence: probability that no other cell belongs among them, ties aside.
        tie: cells whose effect is within this fraction of the k-th's count as tied.
    """
    model = with_parts(model, "the screened search")
    if not 0 < confidence < 1:
        raise InputError(f"confidence lies between 0 and 1, got {confidence}")
    if tie < 0:
        raise InputError(f"tie is a share of the k-th effect, 0 or more; got {tie}")
    plan = Plan.from_arguments(model, pairs, metric, site, by, direction, stack, attention)
    if not plan.patch_site.in_engine(plan.by):
        raise InputError(f"a search measures few cells at a time, but {site!r} needs many: use `sweep`")
    limit, runs = row_limit(model, pairs, budget, plan.patch_site), PlainRun.from_both(model, *plan.inputs)
    groups = [*prompt_groups(plan, runs, limit, alone=True)]
    plain = read_values(model, runs[0], plan.readouts)
    reached = torch.zeros(*plan.shape, len(pairs))  # 1 if a patch there can have an effect
    for chunk in (each for group in groups for each in group.chunks(limit, np.ones(plan.shape, dtype=bool))):
        chunk.put({metric.name: reached}, [reached.new_ones(1, 1)])
    options = {"qk_fix": site in {"q", "k"}, "budget": budget, "stack": stack, "attention": attention}
    ways = plan.direction, "noise" if plan.direction == "denoise" else "denoise"
    first, second = (attribution_patching(model, pairs, metric, {site: by}, way, **options)[site] for way in ways)
    estimate, live = _flat(first.effects()), _flat(plan.by_name(reached))
    shape = first.values[metric.name].shape
    if not 1 <= k <= len(estimate):
        raise InputError(f"k must lie between 1 and the number of cells, {len(estimate)}; got {k}")

    @torch.no_grad()
    def measure(selected: Array) -> Array:
        """Exact effects of the selected cells and prompts."""
        cells, values = plan.of_names(selected.reshape(shape)), plan.unchanged(plain)
        chunks = [each for group in groups for each in group.chunks(limit, cells[..., int(group.prompts[0])])]
        fill(model, values, chunks, limit)
        change = values[metric.name] - plain[metric.name]
        return _flat(plan.by_name(change if plan.direction == "denoise" else -change))

    race = _Race(np.nan_to_num(estimate), np.nan_to_num(_flat(second.effects())), live.astype(bool), measure)
    top, bound = race.run(k, confidence, tie)
    effect = torch.from_numpy(np.where(np.isnan(estimate), np.nan, race.values)[top])
    cells = tuple(tuple(int(index) for index in np.unravel_index(cell, shape[:-1])) for cell in top)
    fields = {name: getattr(first, name) for name in ("site", "direction", "stack", "attention", "positions", "labels")}
    fields |= {"kind": "search", "cells": cells, "units": plan.by}
    fields |= {"limit": bound, "paid": race.paid, "total": int(live.sum())}
    return TopCells(axes=("cell",), values={metric.name: effect}, **fields)


class _Race:
    """Estimates and measurements of each (cell, prompt), and which to measure next."""

    def __init__(self, estimate: Array, second: Array, live: Array, measure: Callable[[Array], Array]):
        self.values = np.where(live, estimate, 0.0)  # estimates until measured; exactly 0 elsewhere
        self.estimate, self.measure = self.values.copy(), measure
        self.doubt = np.where(live, np.abs(estimate) + np.abs(estimate - second), 0.0)
        self.open = live.copy()
        self.live, self.paid = live, 0
        self.step = max(1, live.shape[1] // 32)  # prompts of a cell measured at a time

    def run(self, k: int, confidence: float, tie: float) -> tuple[Array, float]:
        """The first k cells, strongest first, and the limit that no other cell exceeds."""
        # cells evenly spaced in order of doubt: their errors calibrate the rest
        size = self.doubt.mean(1)
        order = np.argsort(-size)[: int((size > 0).sum())]
        count = min(len(order), max(_SAMPLE, len(order) // _SAMPLE))
        sample = order[np.linspace(0, len(order) - 1, count).round().astype(int)] if count else []
        self._take(np.isin(np.arange(len(size)), sample), self.step)
        while True:
            strength = np.abs(self.values.mean(1))
            order = np.argsort(-strength, kind="stable")
            first = np.zeros(len(strength), dtype=bool)
            first[order[:k]] = True
            if self.open[first].any():
                self._take(first, self.open.shape[1])
                continue
            highest = strength + self._error(confidence)
            bar = strength[first].min() * (1 + tie)
            rivals = np.flatnonzero(~first & self.open.any(1) & (highest > bar))
            if not len(rivals):
                return order[:k], float(highest[~first].max(initial=0.0))
            promising = rivals[np.argsort(-highest[rivals])][: max(k, len(rivals) // 4)]
            self._take(np.isin(np.arange(len(strength)), promising), self.step)

    def _take(self, cells: Array, n_prompts: int) -> None:
        """Measure the next prompts of some cells, the most doubtful first."""
        doubt = np.where(self.open, self.doubt, -1.0)
        place = np.argsort(np.argsort(-doubt, axis=1, kind="stable"), axis=1)
        selected = self.open & cells[:, None] & (place < n_prompts)
        self.values = np.where(selected, self.measure(selected), self.values)
        self.open &= ~selected
        self.paid += int(selected.sum())

    def _error(self, confidence: float) -> Array:
        """How far each cell's mean may be from its estimate, with this confidence for all cells jointly."""
        closed, errors = self.live & ~self.open & (self.doubt > 0), self.values - self.estimate
        measured, count = closed.any(1), closed.sum(1)
        if not measured.any():
            return np.where(self.open, self.doubt, 0.0).mean(1)
        ratios = np.where(closed, errors, 0.0).sum(1)[measured] / np.where(closed, self.doubt, 0.0).sum(1)[measured]
        variance = np.square(ratios).mean() * (_DF - 2) / _DF  # a t with scale 1 has mean square df / (df - 2)
        squares = np.square(np.divide(errors, self.doubt, where=closed, out=np.zeros_like(errors))).sum(1)
        scale = np.sqrt((_PRIOR * _DF * variance + squares) / (_PRIOR * _DF + count))
        tail = -special.stdtrit(_DF + count, (1 - confidence) / (2 * len(errors)))
        return tail * scale * np.where(self.open, self.doubt, 0.0).mean(1)


def _flat(table: Tensor) -> Array:
    return table.flatten(0, -2).double().cpu().numpy()
