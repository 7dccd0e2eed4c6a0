"""Which set of a model's parts is enough for a task? We rank parts, try circuits of each size, and test the smallest.

Long work runs in lots of circuits or prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.circuit.circuit_pairs import Prompts
from analyses.execution import lots
from analyses.execution.progress import Say, Stages
from interp import InputError, Model
from interp.circuits.completeness import completeness, minimality
from interp.circuits.faithfulness import faithfulness
from interp.circuits.finding import edge_scores, node_attribution, node_scores, sign_shares, toggled, top
from interp.circuits.graph import Circuit, Graph, Kind, whole
from interp.circuits.hypotheses import hypotheses
from interp.circuits.random_circuits import random_circuit
from interp.circuits.reference import Ablation
from interp.circuits.size_curves import SHARES, size_curve
from interp.circuits.splits import Groups, Split, grouped, share_of_difference
from interp.errors import one_of, whole_number
from interp.patching import Pairs, edge_attribution, logit_difference
from interp.patching.results import ANSWERS, Cells, guessed, unreliable
from interp.statistics import FEWEST_CLUSTERS

Method = Literal["eap-ig", "eap", "exact", "nodes"]
_AREAS = {"signed": "cpr", "absolute": "cmd"}  # by ranking
STAGES = "scoring edges", "choosing a circuit", "circuits of each size"
STABLE = 0.95  # an edge is stable if it keeps its sign in this share of resamples
MOST = 150  # members of a circuit, at most, for tests that take a pass per member
_AT_ONCE = 16  # circuits or prompts per lot
_STEPS = {"eap-ig": 5, "eap": 1}
_FINE = 16  # sizes to try between two neighbouring ones
_POSITIONS = "only the method exact tells positions apart, and these pairs name some: take it, or leave positions out"
_WHOLE_NODES = "; the method nodes (--method nodes) finds circuits of whole heads and feed-forwards"


class Settings(NamedTuple):
    """How much to measure."""

    n_random: int = 10  # random circuits of each size; twice as many of the circuit's own size
    n_sizes: int = 24  # sizes of each ranking to try first
    shares: Sequence[float] = SHARES  # of all edges, as sizes on the curve
    each_answer: bool = True  # if answers are few, the model must beat a coin on each of them
    tests: bool = True  # whether to test completeness, minimality and the hypotheses


ALL, _NONE = Settings(), pd.DataFrame()


@dataclass(frozen=True)
class Found:
    """A task's circuit and its tables: `circuit_edges`, `circuit_curve` and `circuit_tests`."""

    prompts: Prompts
    split: Split
    circuit: Circuit
    edges: pd.DataFrame
    curve: pd.DataFrame
    tests: pd.DataFrame
    facts: Mapping[str, Any]  # numbers for sentences and run.json


class Candidates(NamedTuple):
    """What candidate circuits share: model, graph and kind, the prompts that choose and report, and the settings."""

    model: Model
    ablation: Ablation
    graph: Graph
    kind: Kind
    split: Split
    settings: Settings
    seed: int

    @property
    def whole(self) -> Circuit:
        """All edges, or all nodes."""
        return whole(self.graph, self.kind)

    def cells(self, pairs: Pairs, circuits: Sequence[Circuit], progress: lots.Progress | None = None) -> Cells:
        """`faithfulness` of circuits, in lots."""
        stacks = torch.stack([each.members for each in circuits]).split(_AT_ONCE)
        parts: list[Cells] = lots.do(partial(_faithful, self, pairs), [(each,) for each in stacks], progress)
        return replace(parts[0], values={ANSWERS: torch.cat([part.values[ANSWERS] for part in parts])})


def find(
    model: Model,
    prompts: Prompts,
    method: Method = "eap-ig",
    *,
    ablation: Ablation = "corrupt",
    share: float = 0.9,
    settings: Settings = ALL,
    seed: int = 0,
    progress: Say | None = None,
) -> Found:
    """Find the smallest circuit that does at least `share` of a task, and measure it on held-out prompts.

    Half of the groups of prompts choose: `method` scores the edges on them, and we take the smallest circuit tried for
    which the 95% interval of faithfulness is above `share`. The other half reports. A task that the model does not
    do is an `InputError`, and so is a model without edges.
    """
    say = Stages.to(progress)
    say.plan([*STAGES, *["needed"] * settings.tests])
    kind: Kind = "nodes" if one_of("method", method, Method) == "nodes" else "edges"
    one_of("ablation", ablation, Ablation)
    whole_number("seed", seed)
    if not 0 < share <= 1:
        raise InputError(f"expected a share of the task above 0 and up to 1, got {share}")
    graph, split = _graph(model, prompts.pairs, method), Split.from_pairs(prompts.pairs, prompts.groups, seed=seed)
    candidates = Candidates(model, ablation, graph, kind, split, settings, seed)
    names, choosing = grouped(prompts.pairs, prompts.groups), {*split.choosing_groups}
    chooses = np.array([name in choosing for name in names])
    if reason := _refusal(candidates, prompts, names, torch.from_numpy(chooses)):
        raise InputError(f"no circuit of this task: {reason}")
    say(STAGES[0], 0)
    by_prompt = _scores(candidates, method, partial(say, STAGES[0]))
    scores, signs = by_prompt.mean(-1), sign_shares(by_prompt, split.choosing_groups, seed=seed).cpu()
    say(STAGES[1], 0)
    circuit, ranking = _smallest(candidates, scores, share, partial(say, STAGES[1]))
    say(STAGES[2], 0)
    shares = [each for each in settings.shares if kind == "edges" or each * candidates.whole.size >= 1]
    curves = partial(_curve, candidates, scores, shares)
    tables, areas = zip(*lots.do(curves, [(each,) for each in _AREAS], partial(say, STAGES[2])), strict=True)
    stable = circuit & Circuit(graph, signs >= STABLE)
    tests, facts = _alone(candidates, circuit, stable, partial(say, STAGES[2]))
    edges = _member_rows(candidates, circuit, scores, signs)
    if settings.tests:
        say("needed", 0)
        more, members, counts = _needed(candidates, circuit, partial(say, "needed"))
        tests, edges, facts = pd.concat([tests, more]), edges.join(members), facts | counts
    facts |= {"method": method, "ablation": ablation, "share": share, "kind": kind, "ranking": ranking}
    facts |= {"size": circuit.size, "of": candidates.whole.size, "kept": stable.size, "areas": {**areas[0], **areas[1]}}
    for side, groups in (("choose", split.choosing_groups), ("report", split.reporting_groups)):
        facts[side] = {"pairs": len(groups), "groups": len({*groups})}
    sides = {"group": pd.factorize(pd.Series(names))[0], "side": np.where(chooses, "chooses", "reports")}
    prompts = prompts._replace(table=prompts.table.assign(**sides))
    parts = edges, pd.concat(tables), tests
    edges, curve, tests = (each.assign(task=prompts.name).reset_index(drop=True) for each in parts)
    return Found(prompts, split, circuit, edges, curve, tests, facts)


def _refusal(candidates: Candidates, prompts: Prompts, groups: Groups, chooses: Tensor) -> str | None:
    """Why no shares can be computed: on all prompts, on either half, or for one of few answers; None if they can."""
    cells, answers = candidates.cells(prompts.pairs, [candidates.whole]), prompts.table["answer"]
    each = candidates.settings.each_answer and answers.value_counts().min() >= FEWEST_CLUSTERS
    few = [*answers] if each else ()
    sides = (unreliable(cells.difference()[side]) for side in (chooses, ~chooses))
    why = cells.no_share() or guessed(cells.clean[ANSWERS], few, [[*map(str, groups)]])
    return why or next(filter(None, sides), None)


def _graph(model: Model, pairs: Pairs, method: Method) -> Graph:
    if pairs.positions and method not in {"exact", "nodes"}:
        raise InputError(_POSITIONS)
    graph = Graph.from_model(model)
    if graph.reason and method != "nodes":
        raise InputError(graph.reason + _WHOLE_NODES)
    return Graph.from_model(model, positions=[*pairs.positions]) if method == "exact" else graph


def _faithful(candidates: Candidates, pairs: Pairs, stack: Tensor) -> Cells:
    circuits = [Circuit(candidates.graph, members) for members in stack]
    return faithfulness(candidates.model, pairs, logit_difference(), circuits, ablation=candidates.ablation)


def _scores(candidates: Candidates, method: Method, progress: lots.Progress) -> Tensor:
    """The score of each edge or node, `*members prompt`; NaN for those that do not exist."""
    pairs, everything = candidates.split.choosing, candidates.whole.members
    if method == "exact":
        places = everything.nonzero()
        changes = lots.do(partial(_exact, candidates), [(each,) for each in places.split(_AT_ONCE)], progress)
        scores = torch.full((*everything.shape, len(pairs)), torch.nan).to(changes[0])
        scores[tuple(places.T)] = torch.cat(changes)
        return scores
    rows = torch.arange(len(pairs), device=pairs.last.device).split(_AT_ONCE)
    parts = lots.do(partial(_attributed, candidates.model, method), [(pairs.take(each),) for each in rows], progress)
    return torch.cat(parts, -1)


def _exact(candidates: Candidates, places: Tensor) -> Tensor:
    """The loss of the metric without each edge, `place prompt`."""
    without = torch.stack([toggled(candidates.whole, place).members for place in places])
    cells = _faithful(candidates, candidates.split.choosing, without)
    return cells.clean[ANSWERS] - cells.values[ANSWERS]


def _attributed(model: Model, method: Method, pairs: Pairs) -> Tensor:
    if method == "nodes":
        return node_scores(node_attribution(model, pairs, logit_difference()))
    return edge_scores(edge_attribution(model, pairs, logit_difference(), steps=_STEPS[method]))


def _smallest(candidates: Candidates, scores: Tensor, share: float, progress: lots.Progress) -> tuple[Circuit, str]:
    """The smallest sufficient circuit on the choosing prompts, and its ranking; the whole model if none suffices.

    Sizes first grow by a factor; then we search between the smallest sufficient size and the one before it.
    """
    everything, groups = candidates.whole, candidates.split.choosing_groups
    sizes = sorted({*np.geomspace(1, everything.size, candidates.settings.n_sizes).round().astype(int).tolist()})
    options, best = [(each, size) for each in _AREAS for size in sizes], (everything, "signed", everything.size)
    for _ in range(2):
        tops = [top(candidates.graph, scores, size, absolute=each == "absolute").pruned() for each, size in options]
        cells = candidates.cells(candidates.split.choosing, tops, progress)
        bounds = share_of_difference(cells.effects(), cells.difference(), groups, seed=candidates.seed)
        lower = np.where(np.isnan(bounds.low), bounds.value, bounds.low)
        tried = [(each, *option) for each, option, low in zip(tops, options, lower, strict=True) if low >= share]
        best = min([*tried, best], key=lambda each: each[0].size)
        _, ranking, size = best
        before = max((each for each in sizes if each < size), default=0)
        options = [(ranking, each) for each in {*np.linspace(before + 1, size, _FINE).astype(int).tolist()}]
    return best[:2]


def _curve(
    candidates: Candidates, scores: Tensor, shares: Sequence[float], ranking: str
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Faithfulness by size for one ranking, and its area; the signed ranking also has random circuits."""
    model, ablation, graph, kind, split, settings, seed = candidates
    options = {"graph": graph, "ablation": ablation, "absolute": ranking == "absolute", "seed": seed}
    n_random = settings.n_random if ranking == "signed" else 0
    curve = size_curve(model, split, logit_difference(), scores, shares=shares, n_random=n_random, **options)
    areas = curve.areas(seed=seed) if kind == "edges" and [*shares] == [*SHARES] else {}
    table = curve.table(seed=seed).assign(ranking=ranking).rename(columns={"edges": "size"})
    return table, {name: area for name, area in areas.items() if name == _AREAS[ranking]}


def _alone(
    candidates: Candidates, circuit: Circuit, stable: Circuit, progress: lots.Progress
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Faithfulness of the circuit, of the model without it, of its stable part, and of random circuits."""
    split, n, names = candidates.split, 2 * candidates.settings.n_random, ("alone", "without", "stable")
    seeds = range(first := 1000 * candidates.seed + 500, first + n)
    random = [random_circuit(candidates.graph, circuit.size, kind=candidates.kind, seed=seed) for seed in seeds]
    cells = candidates.cells(split.reporting, [circuit, candidates.whole - circuit, stable, *random], progress)
    bounds = share_of_difference(cells.effects(), cells.difference(), split.reporting_groups, seed=candidates.seed)
    rows = [*zip(names, bounds.value, bounds.low, bounds.high, strict=False)]
    values = bounds.value[len(names) :]
    rows.append(("random", values.mean(), values.min(), values.max()))
    table = pd.DataFrame(rows, columns=["test", "value", "ci_low", "ci_high"])
    table["n"] = [len({*split.reporting_groups})] * len(names) + [n]
    return table, {name: [*map(float, numbers)] for name, *numbers in rows}


def _needed(
    candidates: Candidates, circuit: Circuit, progress: lots.Progress
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """The tests of a circuit, how much it needs each member, and how many it needs; or why this is not measured."""
    if circuit.size > MOST or circuit.size == candidates.whole.size:
        why = f"it takes many passes a member, and the circuit has {circuit.size:,} (at most {MOST})"
        return _NONE, _NONE, {"untested": why if circuit.size > MOST else "it is the whole model"}
    parts = lots.do(partial(_tested, candidates, circuit), [(n,) for n in range(3)], progress)
    (_, members), n_needed = parts[1], int((parts[1][1]["needed_low"] > 0).to_numpy().sum())
    return pd.concat([rows for rows, _ in parts]), members, {"needed": n_needed}


def _tested(candidates: Candidates, circuit: Circuit, n: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of one test; for minimality also how much the circuit needs each member."""
    model, ablation, *_, split, _, seed = candidates
    options: Any = {"ablation": ablation, "seed": seed}
    if n == 2:
        rows = hypotheses(model, split.reporting, logit_difference(), circuit, split.reporting_groups, **options)
        return rows.assign(test="hypothesis of " + rows["test"]), _NONE
    gaps = [completeness, minimality][n](model, split, logit_difference(), circuit, n_random=(20, 5)[n], **options)
    table = gaps.table(seed=seed).rename(columns={"gap": "value", "groups": "n"})
    rows = table.loc[table["worst"]].assign(test=gaps.title.lower()).drop(columns=["worst", "removed"])
    sizes = table[["value", "ci_low", "ci_high"]].set_axis(["needed", "needed_low", "needed_high"], axis=1)
    index = np.flatnonzero(circuit.members[candidates.whole.members])
    return rows, sizes.set_axis(index) if gaps.members else _NONE


def _member_rows(candidates: Candidates, circuit: Circuit, scores: Tensor, signs: Tensor) -> pd.DataFrame:
    """One row per edge or node."""
    names, everything = candidates.whole.names(), candidates.whole.members
    columns = ["position", "sender", "receiver"][-len(names[0]) :] if candidates.kind == "edges" else ["sender"]
    facts = {"score": scores.cpu(), "sign_share": signs, "in_circuit": circuit.members}
    rows = {name: values[everything].numpy() for name, values in facts.items()}
    return pd.DataFrame(names, columns=columns).assign(**rows)
