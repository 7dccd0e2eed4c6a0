"""Which effects must be measured, and which may stay estimates? Those that can change a label are measured.

A cell is a head and a measure. All effects are estimated first (`interp.patching.gradients.claimed_keys`). While labels
are chosen, those cells are measured whose estimate makes a candidate, and those that are within an estimate's error of
it; on the half that reports, all candidates, and what exchange and removal cost of those that hiding costs enough. An
estimate is of first order, so what it leaves out grows with the square of what it moves: of what the claimed rows
move to first order, added up without signs. How fast is told by small estimates of cells that attention does not
choose, those whose rows move most; a quarter of the least effect that counts is allowed however little moves. Of the
rest some are drawn at random from every layer, and of what the model is sure of as of what it is not (gradients vanish
there), and measured too: how many of them are candidates bounds how many are missed.

While labels are chosen, a cell is measured on a part of the documents at a time, and on no more once these settle
whether its effect reaches what counts. On the half that reports nothing stops early.
"""

import random
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from analyses.labels.costs import Cells
from analyses.labels.tally import N_PARTS, Tally

SHARE = 0.05  # of what is screened out, drawn at random and measured
_SURE = 3  # parts of the measures, by how sure the model is of what they read
_CALIBRATING = 20  # small estimates that tell their error: those whose rows move most are measured for it
_QUANTILE = 0.95  # of those cells' errors
_ALWAYS = 0.25  # of the least effect that counts: how far off an estimate may be where nothing moves
Cell = tuple[int, int, str]  # layer, head and measure


@dataclass(frozen=True)
class Screen:
    """What to measure: the `candidates`; while these are chosen, what may have an effect of `least`, and a sample."""

    candidates: Collection[Cell]  # while they are chosen, those that attention chooses
    least: float
    choosing: bool


@dataclass(frozen=True)
class Screened:
    """How many cells had something claimed, how many were measured, and how far estimates may be off.

    measured  of `cells`, `sampled` among them
    margin    how far above its estimate an effect may be: a quarter of the least effect that counts, and so many times
              the square of what the rows move, in nats a row
    sampled   drawn at random from all that were screened out
    error     nine tenths of the sampled have an effect at most so far from its estimate, in nats a row
    missed    of the sampled, how many are candidates by their effect
    """

    cells: int
    measured: int
    margin: float
    sampled: int
    error: float
    missed: int = 0

    @property
    def most_missed(self) -> float:
        """Upper 95% bound of the share of candidates in what was screened out (Clopper & Pearson 1934)."""
        if self.missed == self.sampled:
            return float(self.sampled > 0)
        return float(beta.ppf(0.95, self.missed + 1, self.sampled - self.missed))


def verify(tally: Tally, screen: Screen, seed: int) -> Screened | None:
    """Measure what the screen says in place of its estimate; None where nothing is chosen."""
    n_heads, names = tally.model.config.last.n_heads, [measure.name for _, measure in tally.measures]
    there, estimate = tally.claimed(), tally.costs.effect()
    size = sum(tally.sizes[1:], tally.sizes[0]).sizes()
    candidates = np.zeros_like(there)
    for layer, head, name in screen.candidates:
        if name in names:  # `self` has no key that could be hidden
            candidates[layer * n_heads + head, names.index(name)] = True
    if not screen.choosing:
        candidates &= there
        tally.measure(candidates)
        tally.measure_arms(candidates & (tally.costs.effect() >= screen.least))
        return None
    small = there & (estimate < screen.least)
    known = small & ~candidates
    known[known] = np.argsort(np.argsort(-size[known], kind="stable")) < _CALIBRATING
    known &= size > 0
    tally.measure(there & (known | ~small), part=0)
    margin = _margin(tally, known, screen.least)
    near = estimate + _ALWAYS * screen.least + margin * size**2 >= screen.least
    rest = there & ~tally.measured
    drawn = _drawn(rest & ~near, tally.said(), n_heads, seed)
    tally.measure((rest & near) | drawn, part=0)
    tally.sampled = drawn
    for part in range(1, N_PARTS):
        tally.measure(tally.measured & ~tally.costs.settled(screen.least, int(there.sum())), part)
    off = np.abs(tally.costs.effect() - tally.foretold())[drawn]
    error = float(np.nanquantile(off, 0.9)) if np.isfinite(off).any() else 0.0
    return Screened(int(there.sum()), int(tally.measured.sum()), margin, int(drawn.sum()), error)


def _margin(tally: Tally, known: Cells, least: float) -> float:
    """By how many times the square of what its rows move an effect may be above its estimate."""
    beyond, size = tally.costs.effect() - tally.foretold() - _ALWAYS * least, tally.sizes[0].sizes()
    told = known & (size > 0) & np.isfinite(beyond)
    return float(np.quantile(np.maximum(0.0, beyond[told]) / size[told] ** 2, _QUANTILE)) if told.any() else 0.0


def _drawn(rest: np.ndarray, said: np.ndarray, n_heads: int, seed: int) -> np.ndarray:
    """Some of the cells at random, of each layer and each part of the measures by what the model says at their rows."""
    part = np.argsort(np.argsort(said)) * _SURE // len(said)  # of each measure
    strata: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, column in np.argwhere(rest).tolist():
        strata[place // n_heads, int(part[column])].append((place, column))
    drawn, rng = np.zeros_like(rest), random.Random(seed)
    for _, cells in sorted(strata.items()):
        for cell in rng.sample(cells, int(np.ceil(SHARE * len(cells)))):
            drawn[cell] = True
    return drawn
