"""What could have been found here? Planted heads face the tests of real heads, on the same documents.

A planted head makes the strictest rule's choice, but is right in some share of the items on which that rule errs. Its
success varies over documents as much as real heads' does. `benchmarks.power` plants such heads, and others, in whole
tables.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from analyses.measures.findings import NOTABLE
from analyses.scoring.outcomes import Outcomes
from interp.statistics import Estimate, estimate

PLANTS = 200
POWER = 0.8  # a head is detectable if tests find this share of planted ones
_TOGETHER = 0.1  # latent correlation of a document's items; the observed one is .05, the mean over
# heads of the default model and MiniLM and relations of EWT (342 pairs)
_STEPS = 7  # bisections between no hard item and all: precise to a hundredth


def bar(p: np.ndarray, rate: float) -> float:
    """The largest p at which one more test would be significant (Benjamini & Hochberg 1995)."""
    levels = rate * np.arange(1, len(p) + 2) / (len(p) + 1)
    reached = np.searchsorted(np.sort(p), levels, side="right") >= np.arange(len(levels))
    return float(levels[reached].max(initial=0.0))


@dataclass(frozen=True)
class HardItems:
    """The items on which the strictest rule chooses no target, and sums over all others.

    Excess is how often a choice is right, beyond the rate of its kind of word (`Records.kinds`).
    """

    groups: np.ndarray  # hard item group: 1 if the item is in the group
    first: np.ndarray  # hard item: whether a choice counts as right for it
    excess: np.ndarray  # 2 x hard item: excess of the rule's choice, then of the right one
    second: np.ndarray  # hard item: whether the best rule on hard items is right
    items: np.ndarray  # group: the number of all items
    easy_excess: np.ndarray  # group: excess of the rule's choices on all other items

    @staticmethod
    def of(items: Outcomes, best: int, second: int, rates: np.ndarray) -> "HardItems":
        """The items that are hard for the rule `best`; `rates` has a rate per kind of word."""
        hard, one = ~items.sought[:, best], np.ones(len(items.groups))
        excess = np.stack([items.hits[:, best], items.first]) - rates[[items.rule_kinds[:, best], items.target_kind]]
        return HardItems(
            groups=items.in_group.T[hard],
            first=items.first[hard],
            excess=excess[:, hard],
            second=items.hits[hard, second].astype(float),
            items=items.by_group(one),
            easy_excess=items.by_group(excess[0] * ~hard),
        )

    def detectable(self, beats: float, beyond: float, seed: int) -> float:
        """The share of hard items that a head must get right to be found in `POWER` of cases, with p below either bar.

        NaN if even a head that gets all of them right is not found that often.
        """
        rng, shape = np.random.default_rng(seed), (self.groups.shape[1], PLANTS)
        of_items = rng.standard_normal((len(self.first), PLANTS)) * math.sqrt(1 - _TOGETHER)
        draws = special.ndtr(of_items + self.groups @ rng.standard_normal(shape) * math.sqrt(_TOGETHER))
        if not len(draws) or self.power(draws < 1, beats, beyond) < POWER:
            return float("nan")
        low, high = 0.0, 1.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.power(draws < middle, beats, beyond) >= POWER else (middle, high)
        return high

    def power(self, right: np.ndarray, beats: float, beyond: float) -> float:
        """The share of planted heads that tests find; each is `right` (hard item x head) or makes the rule's choice."""
        hits, n = right & self.first[:, None], self.groups.sum(0)[:, None]

        def over(values: np.ndarray, weights: np.ndarray, rest: np.ndarray | float = 0.0) -> Estimate:
            return estimate(
                self.groups.T @ values + rest, np.broadcast_to(weights, (len(weights), right.shape[1])), replicates=0
            )

        difference = over(hits.astype(float) - ~right, n)
        margin = over(hits, self.items[:, None])
        second = over(hits - self.second[:, None], n)
        chance = over(np.where(right, *self.excess[::-1, :, None]), self.items[:, None], self.easy_excess[:, None])
        shared = np.maximum(difference.p, chance.p)
        holds = [(difference.low > 0) & (margin.low > 0) & (margin.value >= NOTABLE)]
        holds += [(difference.low > 0) & (second.low > 0) & (difference.value >= NOTABLE)]
        called = [np.maximum(shared, margin.p) <= beats, np.maximum(shared, second.p) <= beyond]
        return float(np.logical_or.reduce([each & p for each, p in zip(holds, called, strict=True)]).mean())
