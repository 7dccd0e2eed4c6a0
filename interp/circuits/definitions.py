"""Does a circuit do the task, is it all that does it, and is all of it needed? Each as its authors define it.

Faithfulness is the ratio of mean differences (F(C) - F(empty)) / (F(M) - F(empty)), of which 1 is the whole model
(Mueller et al. 2025, MIB). Completeness: for any K, |F(C \\ K) - F(M \\ K)| is small. Minimality: for each v of C there
is a K with a large |F(C \\ (K + v)) - F(C \\ K)| (both Wang et al. 2022, arXiv:2211.00593, sections 4 and 5). Here all
are shares of F(M) - F(empty).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.faithfulness import faithfulness
from interp.circuits.graph import Circuit, whole
from interp.circuits.reference import Ablation
from interp.circuits.splits import Groups, Split, grouped, share_of_difference
from interp.display import DataFrame, Result, signed, so_many
from interp.errors import InputError, whole_number
from interp.model import Model
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.results import Cells

Gap = tuple[Circuit, Circuit]
Measure = Callable[[Sequence[Circuit]], Float[np.ndarray, " circuit"]]


@dataclass(frozen=True, repr=False)
class Gaps(Result):
    """How far apart two circuits are, row by row, measured on prompts that chose none of them.

    `removed` are the sets K, `members` the members v of minimality (of completeness there are none), `first` and
    `second` the metric of both circuits, `whole` the difference of which gaps are a share. `worst` is the row that the
    choosing prompts call the largest gap of completeness, or the member that they can best do without.
    """

    title: str
    removed: tuple[Circuit, ...]
    members: tuple[str, ...]
    first: Float[Tensor, "row prompt"]
    second: Float[Tensor, "row prompt"]
    whole: Float[Tensor, " prompt"]
    groups: tuple[Hashable, ...]
    worst: int

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row a set or member: `removed` (how many), `gap` (first - second, a share) with its interval, `worst`.

        The definitions are of the gap's size, whichever its sign.
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        gaps = share_of_difference(self.first - self.second, self.whole, self.groups, seed=seed)
        columns = {"member": self.members} if self.members else {}
        columns |= {"removed": [each.size for each in self.removed]}
        columns |= {"gap": gaps.value, "ci_low": gaps.low, "ci_high": gaps.high, "groups": gaps.groups}
        return pd.DataFrame(columns).assign(worst=np.arange(len(self.removed)) == self.worst)

    def facts(self) -> tuple[str, dict[str, str]]:
        """The row that the choosing prompts pointed at, and the range of all."""
        table = self.table()
        row = table.iloc[self.worst]
        name = f" {row['member']}" if self.members else ""
        interval = f"{signed(row['gap'])} ({signed(row['ci_low'])} to {signed(row['ci_high'])})"
        sizes = table["gap"].abs()
        facts = {
            f"chosen{name}": f"{interval}, without {so_many(int(row['removed']), 'more member')}",
            "all": f"{sizes.min():.3g} to {sizes.max():.3g} in size",
        }
        return f"{self.title}: {so_many(len(table), 'row')}, as shares of the whole effect", facts


def both_ways(
    model: Model, pairs: Pairs, metric: Metric, circuits: Sequence[Circuit], *, ablation: Ablation = "corrupt"
) -> tuple[Cells, Cells]:
    """Circuits kept alone, and the whole model without them: what is enough, and what cannot be done without.

    Of two parts of which either is enough (OR), keeping one shows it and removing one shows nothing; of two that are
    both needed (AND), the reverse (Heimersheim & Nanda 2024, arXiv:2404.15255). `recovered()` of the first is
    faithfulness, and of the second what is left of the task.
    """
    removed = [whole(each.graph, each.kind) - each for each in circuits]
    cells = faithfulness(model, pairs, metric, [*circuits, *removed], ablation=ablation)
    (name, values), *_ = cells.values.items()
    kept, left = values.split(len(circuits))
    return replace(cells, values={name: kept}), replace(cells, values={name: left})


def faithful(cells: Cells, pairs: Pairs, groups: Groups = (), *, seed: int = 0) -> DataFrame:
    """Faithfulness of each circuit of `faithfulness`, with its interval over groups of prompts (by default prompts)."""
    import pandas as pd  # noqa: PLC0415 (as above)

    found = share_of_difference(cells.effect(), cells.difference(), grouped(pairs, groups), seed=seed)
    columns = {"faithfulness": found.value, "ci_low": found.low, "ci_high": found.high, "groups": found.groups}
    return pd.DataFrame(columns)


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
    """F(C \\ K) - F(M \\ K) over random sets K of the circuit, and over one that grows greedily.

    Random sets have every size alike. The greedy one starts empty and takes, `steps` times, that of `candidates` random
    members which widens the gap most, as Wang et al. do; of all the sets on its way the widest is its row, the last.
    Pairs that choose choose it, and the `worst` row; pairs that report are those of the table.
    """
    random = np.random.default_rng(whole_number("seed", seed))
    everything, measure = whole(circuit.graph, circuit.kind), _measure(model, split, metric, ablation)

    def gaps(sets: Sequence[Circuit]) -> np.ndarray:
        values = measure([each - removed for removed in sets for each in (circuit, everything)])
        return np.abs(values[0::2] - values[1::2])

    sets = [_subset(circuit, random) for _ in range(whole_number("n_random", n_random))]
    sets = [circuit - circuit, *sets]
    sizes, grown, path = [*gaps(sets)], sets[0], []
    for _ in range(min(whole_number("steps", steps), circuit.size)):
        left = (circuit - grown).members.nonzero()
        sample = left[random.permutation(len(left))[: whole_number("candidates", candidates, 1)]]
        larger = [_with(grown, place) for place in sample]
        widths = gaps(larger)
        grown = larger[int(widths.argmax())]
        path.append((float(widths.max()), grown))
    if path:
        width, best = max(path, key=lambda each: each[0])
        sizes, sets = [*sizes, width], [*sets, best]
    pairs = [(circuit - removed, everything - removed) for removed in sets]
    return _gaps("Completeness", model, split, metric, ablation, sets, (), pairs, int(np.argmax(sizes)))


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
    """For each member v, F(C \\ K) - F(C \\ (K + v)) with the K at which v matters most: nothing, or a random set.

    Random sets have every size alike, since of parts that replace each other v shows only where all others are gone.
    Pairs that choose choose each K; `worst` is the member whose largest gap there is the least. It costs `n_random`
    passes a member.
    """
    if not circuit.size:
        raise InputError("the circuit is empty: it has no member to be needed")
    random = np.random.default_rng(whole_number("seed", seed))
    sets = [circuit - circuit, *(_subset(circuit, random) for _ in range(whole_number("n_random", n_random)))]
    places, measure = circuit.members.nonzero(), _measure(model, split, metric, ablation)
    base = measure([circuit - removed for removed in sets])
    listed = [circuit - _with(removed, place) for place in places for removed in sets]
    changes = np.abs(measure(listed).reshape(len(places), -1) - base)
    best = [sets[row] for row in changes.argmax(1)]
    pairs = [(circuit - removed, circuit - _with(removed, place)) for removed, place in zip(best, places, strict=True)]
    names = [name if isinstance(name, str) else " -> ".join(name) for name in circuit.names()]
    return _gaps("Minimality", model, split, metric, ablation, best, names, pairs, int(changes.max(1).argmin()))


def _measure(model: Model, split: Split, metric: Metric, ablation: Ablation) -> Measure:
    """Mean values on the pairs that choose."""

    def measure(circuits: Sequence[Circuit]) -> np.ndarray:
        values = faithfulness(model, split.choosing, metric, circuits, ablation=ablation).values
        return next(iter(values.values())).double().mean(-1).cpu().numpy()

    return measure


def _gaps(
    title: str,
    model: Model,
    split: Split,
    metric: Metric,
    ablation: Ablation,
    removed: Sequence[Circuit],
    members: Sequence[str],
    pairs: Sequence[Gap],
    worst: int,
) -> Gaps:
    """Both circuits of each row on the pairs that report."""
    cells = faithfulness(model, split.reporting, metric, [each for pair in pairs for each in pair], ablation=ablation)
    (_, values), *_ = cells.values.items()
    first, second = values[0::2], values[1::2]
    sides = (*removed,), (*members,), first, second, cells.difference(), split.reporting_groups
    return Gaps(title, *sides, worst)


def _subset(circuit: Circuit, random: np.random.Generator) -> Circuit:
    """A random set of the circuit's members, of any size with the same probability."""
    places = circuit.members.nonzero()
    members = torch.zeros_like(circuit.members)
    for place in places[random.permutation(len(places))[: int(random.integers(len(places) + 1))]]:
        members[tuple(place.tolist())] = True
    return replace(circuit, **{circuit.kind: members})


def _with(circuit: Circuit, place: Tensor) -> Circuit:
    members = circuit.members.clone()
    members[tuple(place.tolist())] = True
    return replace(circuit, **{circuit.kind: members})
