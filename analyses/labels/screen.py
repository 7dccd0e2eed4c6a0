"""Which effects must be measured, and which may stay estimates? Those that can change a label are measured.

A cell is a head and a measure. On the reporting half, we measure all candidates, and their exchange and removal if
hiding costs enough. On the choosing half, we estimate all effects (`interp.patching.gradients.claimed_keys`), and
measure cells whose estimate makes a candidate, or comes within its error of one. Estimates are of first order, so the
error grows with the square of what the claimed rows move; small estimates of other cells show how fast. A random sample
of the rest bounds how many we miss. Each cell is measured on one part of the documents at a time, until it is settled
on which side of the threshold its effect is.
"""

import random
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import beta
from torch import Tensor

from analyses.execution.lots import Progress
from analyses.labels import hiding
from analyses.labels.hiding import ARMS, CLAIM, KINDS, N_PARTS, Cells, Costs, PerCell, PerJob, Work

SHARE = 0.05  # share of the screened-out cells to draw at random and measure
_SURE = 3  # parts that measures are divided into, by the model's confidence in what they read
_CALIBRATING = 20  # small estimates to calibrate the error: those whose rows move most
_QUANTILE = 0.95  # quantile of those cells' errors
_ALWAYS = 0.25  # share of the least effect that counts: the error allowed even if nothing moves
Cell = tuple[int, int, str]  # layer, head and measure


@dataclass(frozen=True)
class Screen:
    """What to measure: the `candidates`; if `choosing`, also cells that may reach `least`, and a sample."""

    candidates: Collection[Cell]  # if `choosing`, those chosen by attention
    least: float
    choosing: bool


@dataclass(frozen=True)
class Screened:
    """How many cells have claims, how many were measured, and how far estimates may be off.

    An effect may exceed its estimate by a quarter of the least effect that counts, plus `margin` times the square of
    what the rows move, in nats per row.
    """

    cells: int
    measured: int  # how many `cells`, including `sampled` ones
    margin: float
    sampled: int  # drawn at random from the screened-out cells
    error: float  # nine tenths of the sampled effects are at most this far from their estimates, in nats per row
    missed: int = 0  # how many sampled cells are candidates by effect

    @property
    def most_missed(self) -> float:
        """Upper 95% bound on the share of candidates among screened-out cells (Clopper & Pearson 1934)."""
        if self.missed == self.sampled:
            return float(self.sampled > 0)
        return float(beta.ppf(0.95, self.missed + 1, self.sampled - self.missed))


class HidingCosts(NamedTuple):
    """What hiding cost, measured or estimated."""

    drops: PerJob  # each job's loss
    counted: Bool[Tensor, "job head"] | None  # jobs that count, fewer if a cell settled early; None: all
    measured: Cells  # not estimated
    arms: Cells  # keys were also exchanged and removed
    mass: PerJob | None = None  # attention to the keys, if the text is masked
    sampled: Cells | bool = False  # drawn at random
    estimate: PerCell | float = float("nan")  # of the effect
    screened: Screened | None = None


def verify(work: Work, screen: Screen, seed: int, progress: Progress | None = None) -> HidingCosts:
    """Measure the cells of the screen; if it is `choosing`, estimate all cells first."""
    n_heads = work.model.config.last.n_heads
    if not screen.choosing:
        return _of_candidates(work, screen, progress)
    estimated = hiding.hide(work, KINDS, estimate=True, progress=progress)
    guesses, drops = estimated["drop"], torch.full_like(estimated["drop"], torch.nan)
    estimates = hiding.costs_of(work, guesses)
    is_claimed, estimate = estimates[CLAIM].rows.sum(0) > 0, hiding.effect_of(estimates)
    parts, sample = (
        np.zeros(is_claimed.shape, dtype=int),
        np.zeros_like(is_claimed),
    )  # the number of parts that each cell is measured on

    def counted() -> Bool[Tensor, "job head"]:
        measured_on = torch.from_numpy(parts).T[work.of_jobs("column")[:, 0]]
        return (measured_on == 0) | (work.of_jobs("part") < measured_on)

    def measure(cells: Cells, part: int) -> Costs:
        """Measure some cells on one more part of the documents, replacing estimates."""
        new = hiding.hide(work, KINDS, cells=cells, part=part)["drop"]
        drops[:] = torch.where(new.isnan(), drops, new)
        parts[cells] = part + 1
        return hiding.costs_of(work, torch.where(drops.isnan(), guesses, drops), counted())

    def error() -> PerCell:
        """How far effects exceed estimates on the same documents; NaN if not measured."""
        foretold = hiding.effect_of(hiding.costs_of(work, guesses, counted()))
        return np.where(parts > 0, hiding.effect_of(costs) - foretold, np.nan)

    size, size_of_first = (
        _moved(hiding.costs_of(work, estimated["size"], which)) for which in (None, work.of_jobs("part") == 0)
    )
    small = is_claimed & (estimate < screen.least)
    calibrating = small & ~_candidates(work, screen)
    calibrating[calibrating] = np.argsort(np.argsort(-size[calibrating], kind="stable")) < _CALIBRATING
    calibrating &= size > 0
    costs = measure(is_claimed & (calibrating | ~small), part=0)
    margin = _margin(error(), calibrating, size_of_first, screen.least)
    near = estimate + _ALWAYS * screen.least + margin * size**2 >= screen.least
    rest = is_claimed & (parts == 0)
    sample = _sample(rest & ~near, _confidence(work, estimated["value"]), n_heads, seed)
    costs = measure((rest & near) | sample, part=0)
    for part in range(1, N_PARTS):
        costs = measure((parts > 0) & ~hiding.settled(costs, screen.least, int(is_claimed.sum())), part)
    off = np.abs(error())[sample]
    error_bound = float(np.nanquantile(off, 0.9)) if np.isfinite(off).any() else 0.0
    screened = Screened(int(is_claimed.sum()), int((parts > 0).sum()), margin, int(sample.sum()), error_bound)
    whole, arms = torch.where(drops.isnan(), guesses, drops), np.zeros_like(is_claimed)
    return HidingCosts(whole, counted(), parts > 0, arms, estimated.get("mass"), sample, estimate, screened)


def _candidates(work: Work, screen: Screen) -> Cells:
    """True for the screen's candidates with keys to hide."""
    columns = {measure.name: column for column, (_, measure) in enumerate(work.measures)}
    cells = np.zeros((work.n_heads, len(columns)), dtype=bool)
    for layer, head, name in screen.candidates:
        if name in columns:  # `self` has no key to hide
            cells[layer * work.model.config.last.n_heads + head, columns[name]] = True
    return cells


def _of_candidates(work: Work, screen: Screen, progress: Progress | None) -> HidingCosts:
    cells = _candidates(work, screen)
    hidden = hiding.hide(work, KINDS, cells=cells, progress=progress)
    drops, nothing = hidden["drop"], np.zeros_like(cells)
    arms = cells & (hiding.effect_of(hiding.costs_of(work, drops)) >= screen.least)
    exchanged = hiding.hide(work, ARMS, cells=arms)["drop"]
    return HidingCosts(torch.where(exchanged.isnan(), drops, exchanged), None, cells, arms, hidden.get("mass"), nothing)


def _moved(costs: Costs) -> PerCell:
    """How much the claim and the larger of its controls move per row, in absolute value."""
    claim, *controls = (costs[kind].a_row() for kind in KINDS)
    return claim + np.fmax(*controls)


def _confidence(work: Work, values: Float[Tensor, " job"]) -> Float[np.ndarray, " measure"]:
    """The mean reading per row of each measure's claims if nothing is hidden."""
    claims = (
        work.table.assign(value=values.numpy()).loc[work.table["kind"] == CLAIM].groupby("column")[["value", "rows"]]
    )
    sums = claims.sum().reindex(range(len(work.measures)), fill_value=0.0)
    return (sums["value"] / np.maximum(sums["rows"], 1)).to_numpy()


def _margin(error: PerCell, calibrating: Cells, size: PerCell, least: float) -> float:
    """How far effects may exceed estimates, as a multiple of the square of what their rows move."""
    beyond = error - _ALWAYS * least
    usable = calibrating & (size > 0) & np.isfinite(beyond)
    return float(np.quantile(np.maximum(0.0, beyond[usable]) / size[usable] ** 2, _QUANTILE)) if usable.any() else 0.0


def _sample(rest: np.ndarray, confidence: np.ndarray, n_heads: int, seed: int) -> np.ndarray:
    """A random sample of the cells, stratified by layer and by confidence of the measure."""
    part = np.argsort(np.argsort(confidence)) * _SURE // len(confidence)  # each measure's part
    strata: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, column in np.argwhere(rest).tolist():
        strata[place // n_heads, int(part[column])].append((place, column))
    sample, rng = np.zeros_like(rest), random.Random(seed)
    for _, cells in sorted(strata.items()):
        for cell in rng.sample(cells, int(np.ceil(SHARE * len(cells)))):
            sample[cell] = True
    return sample
