"""Is a circuit all that does the task, and is all of it needed?

Completeness: for any K, |F(C \\ K) - F(M \\ K)| is small. Minimality: each v in C has a K with a large
|F(C \\ (K + v)) - F(C \\ K)| (both Wang et al. 2022, arXiv:2211.00593, sections 4 and 5). Gaps are shares of the whole
effect, F(M) - F(empty).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from interp.circuits.faithfulness import faithfulness
from interp.circuits.finding import toggled
from interp.circuits.graph import Circuit, whole
from interp.circuits.reference import Ablation
from interp.circuits.splits import Split, share_of_difference
from interp.display import DataFrame, Result, signed, so_many
from interp.errors import InputError, whole_number
from interp.model import Model
from interp.patching.metrics import Metric
from interp.patching.results import Cells


@dataclass(frozen=True, repr=False)
class Gaps(Result):
    """How far apart two circuits are, row by row, measured on prompts that chose neither.

    `cells` has the two circuits of each row, one after the other; `removed` are the sets K, `members` the members v
    (minimality only). `worst` is the row that, on the choosing prompts, has the largest completeness gap or the member
    that matters least.
    """

    title: str
    cells: Cells
    removed: tuple[Circuit, ...]
    members: tuple[str, ...]
    groups: tuple[Hashable, ...]
    worst: int

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row per set or member: `removed` (a count), `gap` (a signed share), its interval over groups, `worst`."""
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        effects = self.cells.effects()
        gaps = share_of_difference(effects[0::2] - effects[1::2], self.cells.difference(), self.groups, seed=seed)
        columns = {"member": self.members} if self.members else {}
        columns |= {"removed": [each.size for each in self.removed], "gap": gaps.value}
        columns |= {"ci_low": gaps.low, "ci_high": gaps.high, "groups": gaps.groups}
        return pd.DataFrame(columns).assign(worst=np.arange(len(self.removed)) == self.worst)

    def facts(self) -> tuple[str, dict[str, str]]:
        """The row that the choosing prompts chose."""
        gap, low, high = (signed(each) for each in self.table().loc[self.worst, ["gap", "ci_low", "ci_high"]])
        name = self.members[self.worst] if self.members else f"without {self.removed[self.worst].size}"
        title = f"{self.title}: {so_many(len(self.removed), 'row')}, as shares of the whole effect"
        return title, {f"chosen: {name}": f"{gap} ({low} to {high})"}


def completeness(
    model: Model,
    split: Split,
    metric: Metric,
    circuit: Circuit,
    *,
    n_random: int = 20,
    steps: int = 5,
    candidates: int = 10,
    ablation: Ablation = "corrupt",
    seed: int = 0,
) -> Gaps:
    """F(C \\ K) - F(M \\ K) over no K, random sets K of the circuit, and one that grows greedily, the last row.

    Random sets have every size equally often. The greedy set adds, `steps` times, the one of `candidates` random
    members that widens the gap most, as Wang et al. do; the set with the widest gap on the way counts. The choosing
    pairs choose it and the `worst` row; the table is measured on the reporting pairs.
    """
    random, everything = np.random.default_rng(whole_number("seed", seed)), whole(circuit.graph, circuit.kind)

    def both(sets: Sequence[Circuit]) -> list[Circuit]:
        return [each - removed for removed in sets for each in (circuit, everything)]

    def widths(sets: Sequence[Circuit]) -> Float[np.ndarray, " set"]:
        return np.abs(np.subtract(*_means(model, split, metric, ablation, both(sets)).reshape(-1, 2).T))

    sets = _subsets(circuit, whole_number("n_random", n_random), random)
    gaps, grown, path = [*widths(sets)], sets[0], []
    for _ in range(min(whole_number("steps", steps), circuit.size)):
        left = (circuit - grown).members.nonzero()
        sample = left[random.permutation(len(left))[: whole_number("candidates", candidates, 1)]]
        larger = [toggled(grown, place) for place in sample]
        sizes = widths(larger)
        grown = larger[int(sizes.argmax())]
        path.append((sizes.max(), grown))
    if path:
        gap, widest = max(path, key=lambda each: each[0])
        gaps, sets = [*gaps, gap], [*sets, widest]
    cells = faithfulness(model, split.reporting, metric, both(sets), ablation=ablation)
    return Gaps("Completeness", cells, (*sets,), (), split.reporting_groups, int(np.argmax(gaps)))


def minimality(
    model: Model,
    split: Split,
    metric: Metric,
    circuit: Circuit,
    *,
    n_random: int = 20,
    ablation: Ablation = "corrupt",
    seed: int = 0,
) -> Gaps:
    """For each member v, F(C \\ K) - F(C \\ (K + v)) with the K at which v matters most: empty, or a random set.

    Random sets have every size equally often: a part that others can replace shows only once all of them are gone. The
    choosing pairs choose each K; `worst` is the member with the smallest maximal gap there. It costs `n_random` passes
    per member.
    """
    if not circuit.size:
        raise InputError("the circuit is empty: it has no member to test")
    random, measure = np.random.default_rng(whole_number("seed", seed)), partial(_means, model, split, metric, ablation)
    sets = _subsets(circuit, whole_number("n_random", n_random), random)
    members = [toggled(sets[0], place) for place in circuit.members.nonzero()]
    smaller = measure([circuit - (removed | member) for member in members for removed in sets])
    changes = np.abs(smaller.reshape(len(members), -1) - measure([circuit - removed for removed in sets]))
    best = [sets[row] for row in changes.argmax(1)]
    pairs = [each for removed, member in zip(best, members, strict=True) for each in (removed, removed | member)]
    cells = faithfulness(model, split.reporting, metric, [circuit - each for each in pairs], ablation=ablation)
    worst = int(changes.max(1).argmin())
    return Gaps("Minimality", cells, (*best,), (*member_names(circuit),), split.reporting_groups, worst)


def member_names(circuit: Circuit) -> list[str]:
    """Members' names: `0.1` for a node, `embed -> 0.1.v` for an edge."""
    return [name if isinstance(name, str) else " -> ".join(name) for name in circuit.names()]


def _means(
    model: Model, split: Split, metric: Metric, ablation: Ablation, circuits: Sequence[Circuit]
) -> Float[np.ndarray, " circuit"]:
    """Mean values on the choosing pairs."""
    values: Any = faithfulness(model, split.choosing, metric, circuits, ablation=ablation).values[metric.name]
    return values.double().mean(-1).cpu().numpy()


def _subsets(circuit: Circuit, count: int, random: np.random.Generator) -> list[Circuit]:
    """The empty set, and random ones of the circuit's members, of any size with the same probability."""
    places, sets = circuit.members.flatten().nonzero()[:, 0], [circuit - circuit]
    for _ in range(count):
        members = torch.zeros_like(circuit.members)
        members.view(-1)[places[random.permutation(len(places))[: random.integers(len(places) + 1)]]] = True
        sets.append(Circuit(circuit.graph, members))
    return sets
