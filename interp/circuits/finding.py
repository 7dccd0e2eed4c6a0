"""Which edges or nodes make up the circuit of a task? Scores say how much each carries, and choose the sets.

A score is positive if an edge or node moves the metric from the corrupted prompts' value towards the clean ones'.
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.faithfulness import faithfulness
from interp.circuits.graph import Circuit, whole
from interp.circuits.reference import Ablation, node_sites
from interp.circuits.splits import Groups, group_sums
from interp.components import Graph
from interp.errors import InputError, one_of, whole_number
from interp.model import Model, split_name
from interp.patching.gradients.estimates import attribution_patching
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.results import Cells, Direction

Scores = Float[Tensor, "*members"]  # for a graph's edges (`graph.shape`), or its senders
_DUST = 1e-6  # scores below this fraction of the largest have no sign
_BLOCK = 1 << 23  # numbers that a bootstrap holds at once
_AT_ONCE = 512  # circuits that lack one edge, held at once: 36 MB for GPT-2 small


def edge_scores(cells: Cells, metric: str | None = None) -> Float[Tensor, "sender receiver prompt"]:
    """What each edge adds to the metric, by attribution or measured one by one; NaN where there is no edge.

    Positive if it helps, whichever direction was measured: MIB's sign of a loss.
    """
    if cells.kind != "edges":
        raise InputError(f"expected scores of edges, as edge_attribution gives them; got {cells.kind}")
    return cells.effects(metric) * _sign(cells)


def node_scores(cells: Cells, metric: str | None = None) -> Float[Tensor, "sender prompt"]:
    """What each node adds, from `node_attribution` or as the sum over its edges (the same with one step)."""
    return cells.effects(metric) * _sign(cells) if cells.kind == "nodes" else edge_scores(cells, metric).nansum(1)


def node_attribution(model: Model, pairs: Pairs, metric: Metric, direction: Direction = "denoise") -> Cells:
    """The first-order effect of every node's output on the metric, on the axis `sender`, for every wiring and stack.

    For the arguments see `attribution_patching`.
    """
    graph, axes = Graph.from_model(model), {"z": ("layer", "head"), "mlp_out": ("layer",), "resid_pre": ("layer",)}
    places = [_place(site) for site in node_sites(model, graph)]
    estimates: dict[Any, dict[str, Cells]] = {}
    for attending in dict.fromkeys(attending for attending, *_ in places):
        sites = {kind: axes[kind] for each, kind, _ in places if each == attending}
        options: Any = dict(zip(("stack", "attention"), attending, strict=True))
        estimates[attending] = attribution_patching(model, pairs, metric, sites, direction, **options)
    tables = [estimates[attending][kind] for attending, kind, _ in places]
    rows = [each.effects()[layer].view(-1, len(pairs)) for each, (*_, layer) in zip(tables, places, strict=True)]
    cells = Cells("", tables[0].direction, ("sender",), {}, labels={"sender": graph.senders}, kind="nodes")
    cells.values[metric.name] = torch.cat(rows) * _sign(cells)
    return cells


def single_edges(
    model: Model,
    pairs: Pairs,
    metric: Metric,
    edges: Circuit | None = None,
    direction: Direction = "noise",
    *,
    ablation: Ablation = "corrupt",
) -> Cells:
    """The exact change of the metric when a single edge carries another write; axes as in `edge_attribution`.

    With `noise` the model reads the clean prompts and the edge carries the reference's write, which finds the edges
    that a task needs (AND). With `denoise` it reads the corrupted ones and the edge carries the clean write, which
    finds edges that suffice (OR). It costs one pass per edge; `edges` are those to measure, by default all. For the
    rest see `faithfulness`.
    """
    direction = "denoise" if one_of("direction", direction, Direction).startswith("denois") else "noise"
    edges = whole(model) if edges is None else edges
    if edges.kind == "nodes" or edges.graph.positions:
        raise InputError("expected edges of a graph without named positions, to take one at a time")
    if direction == "denoise" and ablation != "corrupt":
        raise InputError(f"denoising puts the clean write into the corrupted prompt: ablation {ablation!r} has none")
    places, graph = edges.members.nonzero(), edges.graph
    if direction == "denoise":
        readout = metric.prepare(model, pairs)  # from unswapped pairs: a divergence is from the clean prompts
        metric = Metric(metric.name, lambda *_: readout)
        pairs = replace(pairs, clean=pairs.corrupt, corrupt=pairs.clean)
    scores = torch.full((*graph.exists.shape, len(pairs)), torch.nan).to(model.device, model.dtype)
    for chunk in places.split(_AT_ONCE):
        without = [toggled(whole(graph), place) for place in chunk]
        cells = faithfulness(model, pairs, metric, without, ablation=ablation)
        scores[tuple(chunk.T)] = cells.values[metric.name] - cells.clean[metric.name]
    labels = {"sender": graph.senders, "receiver": graph.receivers}
    return Cells("", direction, ("sender", "receiver"), {metric.name: scores}, labels=labels, kind="edges")


def top(graph: Graph, scores: Scores, n: int, *, absolute: bool = False) -> Circuit:
    """The `n` edges or nodes with the highest scores, or the largest absolute ones; keeps dead ends (see `pruned`).

    The scores' shape says whether they are for edges or nodes; NaN means no score. Ties are broken by order.
    """
    strength = _strengths(graph, scores, absolute)
    if (n := whole_number("n", n)) > (most := int((strength > -torch.inf).sum())):
        raise InputError(f"expected at most {most:,}, which have scores; got n={n:,}")
    chosen = torch.zeros_like(strength, dtype=torch.bool)
    chosen.view(-1)[strength.flatten().argsort(descending=True, stable=True)[:n]] = True
    return Circuit(graph, chosen)


def greedy(graph: Graph, scores: Scores, n: int, *, absolute: bool = False) -> Circuit:
    """`n` edges, added one by one: the highest-scored that leads to the logits or to a node of the circuit.

    So each reaches the logits; `pruned` removes those that no input reaches. Hanna et al.'s package (2024) does this.
    """
    strength = _strengths(graph, scores, absolute)
    if strength.shape != graph.shape:
        raise InputError("a circuit grows along edges: expected scores of edges, got scores of nodes")
    if (n := whole_number("n", n)) > graph.n_edges:
        raise InputError(f"expected at most {graph.n_edges:,} edges, got n={n:,}")
    strength = strength.view(-1, *graph.exists.shape)
    chosen, queue, entered = torch.zeros_like(strength, dtype=torch.bool), [], set()

    def enter(receivers: Iterable[int]) -> None:
        for receiver in [each for each in receivers if each not in entered]:
            entered.add(receiver)
            senders = graph.exists[:, receiver].nonzero()[:, 0].tolist()
            for position, values in enumerate(strength[:, :, receiver].tolist()):
                for sender in senders:
                    heapq.heappush(queue, (-values[sender], position, sender, receiver))

    enter([len(graph.receivers) - 1])
    for _ in range(n):
        _, position, sender, receiver = heapq.heappop(queue)
        chosen[position, sender, receiver] = True
        enter(graph.parts[:, sender].nonzero()[:, 0].tolist())
    return Circuit(graph, chosen.view(graph.shape))


def sign_shares(
    scores: Float[Tensor, "*members prompt"], groups: Groups, *, resamples: int = 1000, seed: int = 0
) -> Float[Tensor, "*members"]:
    """The share of resamples of the groups in which each mean score has the sign that it has over all prompts.

    Scores below a millionth of the largest have no sign: their share is 0.
    """
    if len(groups) != scores.shape[-1]:
        raise InputError(f"expected a group for each of {scores.shape[-1]} prompts, got {len(groups)}")
    sums = group_sums(scores.nan_to_num(), groups).reshape(len({*groups}), -1)
    mean = sums.sum(0)
    least = _DUST * np.abs(mean).max(initial=0.0)
    random, count = np.random.default_rng(whole_number("seed", seed)), len(sums)
    draws = random.multinomial(count, np.full(count, 1 / count), whole_number("resamples", resamples, 1)).astype(float)
    agree = np.zeros_like(mean)
    for columns in np.array_split(np.arange(len(mean)), 1 + len(mean) * resamples // _BLOCK):
        agree[columns] = (draws @ sums[:, columns] * np.sign(mean[columns]) > least).mean(0)
    return torch.from_numpy(np.where(np.abs(mean) > least, agree, 0.0)).view(scores.shape[:-1])


def stable(
    graph: Graph,
    scores: Float[Tensor, "*members prompt"],
    groups: Groups,
    *,
    share: float = 0.9,
    absolute: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> Circuit:
    """The edges or nodes whose mean score keeps its sign in at least `share` of resamples of the groups.

    Without `absolute`, only those that help. An edge without any effect passes with probability 2 Φ(-z), z the
    `share`'s normal quantile (.9: one in five; one in ten with a helping sign). A higher share is stricter.
    """
    if not 0.5 < share <= 1:
        raise InputError(f"expected a share of resamples above one half and up to 1, got {share}")
    holds = sign_shares(scores, groups, resamples=resamples, seed=seed).to(scores.device) >= share
    mean = scores.nan_to_num().mean(-1)
    _strengths(graph, mean, absolute)
    return Circuit(graph, (holds if absolute else holds & (mean > 0)).cpu())


def _strengths(graph: Graph, scores: Scores, absolute: bool) -> Scores:
    """Scores to rank by, on the CPU; -inf where there is no edge or no score."""
    if scores.shape not in {graph.shape, (len(graph.senders),)}:
        expected = f"a score for each edge, {graph.shape}, or for each node, ({len(graph.senders)},)"
        raise InputError(f"expected {expected}; got {(*scores.shape,)}")
    scores = scores.detach().cpu()
    missing = scores.isnan() if scores.ndim == 1 else scores.isnan() | ~graph.exists
    return (scores.abs() if absolute else scores).masked_fill(missing, -torch.inf)


def toggled(circuit: Circuit, place: Iterable[Any]) -> Circuit:
    """The circuit without one member, or with it if it lacks it."""
    members = circuit.members.clone()
    members[tuple(int(index) for index in place)] ^= True
    return Circuit(circuit.graph, members)


def _sign(cells: Cells) -> int:
    """The sign that makes changes of the metric towards the clean value positive."""
    return 1 if cells.direction == "denoise" else -1


def _place(site: str) -> tuple[tuple[str, str], str, int]:
    """(Stack, attention), kind and layer of a site such as `decoder.1.cross_attn.z`; the embedding has layer 0."""
    stack, layer, name = split_name(site)
    assert stack is not None
    if layer is None:
        return (stack, "self"), "resid_pre", 0
    return (stack, "cross" if name.startswith("cross_attn.") else "self"), name.rpartition(".")[2], layer
