"""How much of a task does a circuit of each size do? Faithfulness along a ranking of edges, and the areas of MIB.

Mueller et al. (2025, MIB, arXiv:2504.13151): faithfulness is (F(C) - F(empty)) / (F(whole) - F(empty)). CPR is the
area under it along a signed ranking; CMD is the area between it and 1 along an absolute ranking. Both use ten shares of
the edges from .001 to 1, on a linear axis.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import pad

from interp.circuits.faithfulness import faithfulness
from interp.circuits.finding import Scores, edge_scores, greedy, top
from interp.circuits.graph import Circuit, whole
from interp.circuits.random_circuits import random_circuit
from interp.circuits.reference import Ablation
from interp.circuits.splits import Split, share_of_difference
from interp.components import Graph
from interp.display import DataFrame, Result, so_many
from interp.errors import InputError, whole_number
from interp.model import Model
from interp.patching.gradients.edges import edge_attribution
from interp.patching.metrics import Metric
from interp.patching.results import Cells

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of all edges, as in MIB


@dataclass(frozen=True, repr=False)
class SizeCurve(Result):
    """Faithfulness of one ranking's circuits, and of random ones, on prompts that chose none of them.

    `circuits` have no dead ends, one for each of `shares`. `cells` and `random` (random circuits of the same sizes,
    grouped by circuit, or None) have the axis `circuit`. `groups` has one name per prompt.
    """

    shares: tuple[float, ...]
    circuits: tuple[Circuit, ...]
    cells: Cells
    groups: tuple[Hashable, ...]
    random: Cells | None = None

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row per size: `share` and `edges`, `faithfulness` with its interval over groups, and random circuits'.

        `random` is the mean over random circuits of the size, `random_low` and `random_high` the extremes.
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        whole = self.cells.difference()
        found = share_of_difference(self.cells.effects(), whole, self.groups, seed=seed)
        columns = {"share": self.shares, "edges": [circuit.size for circuit in self.circuits]}
        columns |= {"faithfulness": found.value, "ci_low": found.low, "ci_high": found.high, "groups": found.groups}
        if self.random is not None:
            values = share_of_difference(self.random.effects(), whole, self.groups).value.reshape(len(self.shares), -1)
            columns |= {"random": values.mean(1), "random_low": values.min(1), "random_high": values.max(1)}
        return pd.DataFrame(columns)

    def areas(self, *, seed: int = 0) -> dict[str, tuple[float, float, float]]:
        """CPR and CMD, each with its interval over groups. CPR wants a signed ranking, CMD an absolute one."""
        effects, whole = self.cells.effects().double(), self.cells.difference().double()
        steps = torch.tensor(self.shares).to(effects).diff() / 2
        widths = pad(steps, (0, 1)) + pad(steps, (1, 0))  # trapezoid weights
        sides = (1 - effects.sum(-1) / whole.sum()).sign()  # which side of 1 each point is on, fixed over resamples
        totals = torch.stack([widths @ effects, (widths * sides) @ (whole - effects)])
        areas = share_of_difference(totals, whole, self.groups, seed=seed)
        bounds = np.stack([areas.value, areas.low, areas.high], 1).tolist()
        return dict(zip(("cpr", "cmd"), map(tuple, bounds), strict=True))

    def facts(self) -> tuple[str, dict[str, str]]:
        """The areas."""
        areas = {name.upper(): "{:.3f} ({:.3f} to {:.3f})".format(*area) for name, area in self.areas().items()}
        return f"Faithfulness by size: {so_many(len(self.shares), 'circuit')}", areas


def circuits_by_size(
    graph: Graph,
    scores: Scores,
    shares: Sequence[float] = SHARES,
    *,
    absolute: bool = False,
    grow: bool = False,
) -> list[Circuit]:
    """Each size's circuit, without dead ends: the int(share x edges) top-ranked, as in MIB, or `greedy` with `grow`."""
    if not shares or [*shares] != sorted({*shares}) or not 0 < shares[0] <= shares[-1] <= 1:
        listed = ", ".join(map(str, shares))
        raise InputError(f"expected growing shares of the edges, above 0 and up to 1; got {listed}")
    choose = greedy if grow else top
    sizes = [int(share * whole(graph, "nodes" if scores.ndim == 1 else "edges").size) for share in shares]
    return [choose(graph, scores, size, absolute=absolute).pruned() for size in sizes]


def size_curve(
    model: Model,
    split: Split,
    metric: Metric,
    scores: Scores | None = None,
    *,
    graph: Graph | None = None,
    shares: Sequence[float] = SHARES,
    absolute: bool = False,
    grow: bool = False,
    n_random: int = 10,
    ablation: Ablation = "corrupt",
    seed: int = 0,
) -> SizeCurve:
    """Faithfulness against size, on the reporting pairs, of circuits chosen on the others.

    Args:
        model, metric, ablation: as in `faithfulness`.
        split: pairs that choose, and pairs that report.
        scores: rank the edges, from `split.choosing`; by default EAP-IG with five steps.
        graph: the graph of the scores' edges; by default the model's.
        shares, absolute, grow: as in `circuits_by_size`.
        n_random: random circuits of each size; 0 measures none.
        seed: seeds the random circuits.
    """
    graph = Graph.from_model(model) if graph is None else graph
    if scores is None:
        scores = edge_scores(edge_attribution(model, split.choosing, metric)).mean(-1)
    circuits = circuits_by_size(graph, scores, shares, absolute=absolute, grow=grow)
    seeds = range(first := whole_number("seed", seed) * 1000, first + whole_number("n_random", n_random))
    beside = [random_circuit(graph, each.size, kind=each.kind, seed=one) for each in circuits for one in seeds]
    cells = faithfulness(model, split.reporting, metric, [*circuits, *beside], ablation=ablation)
    tables = cells.values[metric.name].split([len(circuits), len(beside)])
    kept, random = (replace(cells, values={metric.name: table}) for table in tables)
    return SizeCurve((*shares,), (*circuits,), kept, split.reporting_groups, random if n_random else None)
