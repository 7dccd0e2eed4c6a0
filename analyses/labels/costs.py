"""What do claims and their controls cost, head by head and measure by measure, added up by group of documents?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student
from torch import Tensor

from analyses.findings import DISCOVERY
from analyses.labels.claims import Hiding
from analyses.labels.readouts import Readout
from interp.patching.knockout import Read
from interp.patterns import Totals
from interp.statistics import ratio

CLAIM, CONTROLS, ARMS = "claim", ("other keys", "usual distances"), ("exchange", "removal")
SEEN = "attention where masked", "the same to other keys"
_SURELY = 0.995  # of the one-sided bounds of a cost that is settled
FEWEST = 5  # documents, or groups of them, in which keys were hidden: fewer say nothing
Cells = Bool[np.ndarray, "head measure"]
PerCell = Float[np.ndarray, "head measure"]


@dataclass(frozen=True)
class Job:
    """A claim, or a control, that waits to be hidden: of a measure (`column`), in a group and part of the documents."""

    kind: str
    group: int
    column: int
    readout: Readout
    ids: tuple[int, ...]
    hiding: Hiding
    read: Read
    part: int


@dataclass(frozen=True)
class Costs:
    """By kind (a claim, a control, an arm) what was lost and at how many rows. Two of the same kinds add up."""

    by: dict[str, Totals]

    @staticmethod
    def empty(kinds: Sequence[str], n_heads: int, n_measures: int) -> "Costs":
        """Nothing measured yet."""
        return Costs({kind: Totals.empty(n_heads, n_measures) for kind in kinds})

    def __add__(self, other: "Costs") -> "Costs":
        return Costs({kind: own + other.by[kind] for kind, own in self.by.items()})

    def __getitem__(self, kind: str) -> Totals:
        return self.by[kind]

    def add(self, jobs: Sequence[Job], effects: Float[Tensor, "job head"]) -> None:
        """Add the costs of claims and of each of their controls."""
        for kind in self.by:
            self.add_to(kind, [job.kind == kind for job in jobs], jobs, effects)

    def add_to(self, kind: str, which: Sequence[bool], jobs: Sequence[Job], effects: Float[Tensor, "job head"]) -> None:
        """Add the costs of some jobs to one kind."""
        own, totals = [at for at, counted in enumerate(which) if counted], self.by[kind]
        if not own:
            return
        scores, rows = (torch.zeros(len(own), *totals.rows.shape[1:], dtype=torch.float64) for _ in range(2))
        here = torch.arange(len(own)), slice(None), torch.tensor([jobs[at].column for at in own])
        scores[here] = effects[own]
        rows[here] = torch.tensor([[float(len(jobs[at].hiding.rows))] for at in own], dtype=torch.float64)
        totals.add(torch.tensor([jobs[at].group for at in own]), scores, rows)

    def take(self, other: "Costs", cells: Cells, fresh: Cells) -> None:
        """Add what `other` has of some cells; those that are `fresh` forget what they had."""
        for kind, found in other.by.items():
            for part in ("scores", "weights", "rows"):
                own, more = getattr(self.by[kind], part), getattr(found, part)
                own[:, torch.from_numpy(fresh)] = 0.0
                own[:, torch.from_numpy(cells)] += more[:, torch.from_numpy(cells)]

    def strictest(self) -> tuple[Totals, Int[np.ndarray, "head measure"]]:
        """Of every cell the control that loses most a row, and which of `CONTROLS` it is."""
        means = [_a_row(self.by[kind]) for kind in CONTROLS]
        best = torch.as_tensor(np.nan_to_num(np.stack(means), nan=-np.inf).argmax(0))
        both = [
            torch.stack([getattr(self.by[kind], part) for kind in CONTROLS]) for part in ("scores", "weights", "rows")
        ]
        chosen = [part.gather(0, best.expand(1, *part.shape[1:]))[0] for part in both]
        return Totals(*chosen), best.numpy()

    def losses(self) -> tuple[PerCell, PerCell]:
        """What claims lose, and the control that loses most, in the read's unit a row; NaN where nothing is claimed."""
        return _a_row(self.by[CLAIM]), _a_row(self.strictest()[0])

    def effect(self) -> PerCell:
        """What claims lose beyond their strictest control."""
        return np.subtract(*self.losses())

    def sizes(self) -> PerCell:
        """Of costs without signs: what the claim and the larger of its controls move a row."""
        claim, *controls = map(_a_row, self.by.values())
        return claim + np.fmax(*controls)

    def settled(self, least: float, cells: int) -> Cells:
        """Where more documents would not change whether the effect reaches `least`, by Student's t over groups.

        Where its one-sided 99.5% bounds are both below or both above, and where above, p for an effect at all is so
        small that it holds whatever else of so many `cells` is tested (Bonferroni, at the rate that findings are held
        to). Nowhere where fewer than five groups say anything.
        """
        drops, controls = self.by[CLAIM], self.strictest()[0]
        effect, error, groups = ratio((drops.scores - controls.scores).numpy(), drops.weights.numpy())
        with np.errstate(invalid="ignore", divide="ignore"):
            reach = student.ppf(_SURELY, groups - 1) * error
            p = student.sf(effect / error, groups - 1)
            apart = (effect + reach < least) | ((effect - reach > least) & (p < DISCOVERY / cells))
        return (groups >= FEWEST) & apart


def _a_row(totals: Totals) -> PerCell:
    """What is lost a row; NaN where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (totals.scores.sum(0) / totals.weights.sum(0)).numpy()
