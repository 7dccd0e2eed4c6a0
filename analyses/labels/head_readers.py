"""Who reads a head that carries an answer: later heads' queries, keys and values, feed-forwards, the output layer?

We cut edges one at a time, by exact path patching. One reader gets the head's output for the corrupted prompt, and the
change spreads through the rest of the model (`interp.circuits.faithfulness` of the whole graph without the edge).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from analyses.behaviours import select
from analyses.execution import lots
from analyses.measures.definitions import DECLARED, Behaviour
from analyses.measures.findings import carriers
from analyses.tasks.causal_tests import Task, reporting_half
from analyses.tasks.flips import clusters_in
from analyses.wording.head_names import HEAD, Place
from interp import InputError, Model, Transformer
from interp.circuits import Graph, faithfulness, from_edges, whole
from interp.patching import Pairs, logit_difference
from interp.patching.results import ANSWERS, refusal
from interp.statistics import benjamini_hochberg, shares

READER_COLUMNS = [*HEAD, "behaviour", "task", "reader", "effect", "ci_low", "ci_high", "p", "q", "n", "choosing"]
_PAIRS = 24  # per task
_HEADS = 2  # per task: those that carry most


def measure(
    model: Model,
    labels: pd.DataFrame,
    effects: pd.DataFrame | None = None,
    behaviours: Sequence[str | Behaviour] | None = None,
    *,
    seed: int = 0,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """Who reads heads: `tables/readers`, one row per head, task and reader.

    Each task has the two heads that carry most, among heads with a label of the task and heads that `effects` (the rows
    of `tables/effects`) shows to carry it. `effect` is the share of the clean-corrupted logit difference that is lost
    if the edge is cut, with its interval over the reporting half of the pairs; `choosing` is the same on the other
    half. `q` is over all rows.

    Raises:
        InputError: the model has no edges (norms follow its layers) or no output layer, or another library runs it.
    """
    if not isinstance(model, Transformer) or model.output is None:
        raise InputError("finding who reads a head needs a transformer with an output layer that interp itself runs")
    if reason := Graph.from_model(model).reason:
        raise InputError(reason)
    rows, columns = list[dict[str, Any]](), [*HEAD, "task", "task_effect"]
    heads = labels.reindex(columns=columns)
    if effects is not None and len(effects):
        carrying = carriers(effects.loc[effects["intervention"] == "noise"])
        heads = pd.concat([heads, carrying.assign(task_effect=carrying["effect"])[columns]])
    for behaviour in select(behaviours).values():
        for name, build in behaviour.tasks.items():
            carrying = heads.loc[heads["task"] == name].sort_values("task_effect", ascending=False, kind="stable")
            places = [Place.from_row(row) for row in carrying.drop_duplicates(HEAD).head(_HEADS).to_dict("records")]
            if places:
                task = build(model, _PAIRS, seed, name, DECLARED["tasks"].get(name, {}).get("question", name))
                rows += ({"behaviour": behaviour.name, **row} for row in _of_task(model, task, places, seed, progress))
    table = pd.DataFrame(rows, columns=READER_COLUMNS)
    return table.assign(q=benjamini_hochberg(table["p"].to_numpy(dtype=float)))


def _of_task(
    model: Transformer, task: Task, places: Sequence[Place], seed: int, progress: lots.Progress | None
) -> Iterator[dict[str, Any]]:
    pairs, clusters, senders = task.pairs, [*task.clusters.values()], [f"{each.layer}.{each.head}" for each in places]
    if pairs is None:
        return
    cut = lots.do(partial(_cut, model, pairs), [(sender,) for sender in senders], progress)
    reports = reporting_half(pairs, seed)
    for place, sender, (clean, corrupt, values) in zip(places, senders, cut, strict=True):
        if refusal(ANSWERS, {ANSWERS: clean}, {ANSWERS: corrupt}):
            return
        effects, wholes = (clean - values).double().numpy().T, (clean - corrupt).double().numpy()
        chose, reported = (
            shares(effects[half], wholes[half], clusters=clusters_in(clusters, half), seed=seed)
            for half in (~reports, reports)
        )
        for index, reader in enumerate(_readers(Graph.from_model(model), sender)):
            yield {
                **{**place._asdict(), "task": task.name, "reader": reader, "effect": reported.value[index]},
                **{"ci_low": reported.low[index], "ci_high": reported.high[index], "p": reported.p[index]},
                **{"n": int(reported.n[index]), "choosing": chose.value[index]},
            }


def _readers(graph: Graph, sender: str) -> list[str]:
    """All readers of a node; keys and values are per key/value head."""
    exists = graph.exists[graph.index("senders")[sender]]
    return [name for name, reads in zip(graph.receivers, exists.tolist(), strict=True) if reads]


def _cut(
    model: Transformer, pairs: Pairs, sender: str
) -> tuple[Float[Tensor, " pair"], Float[Tensor, " pair"], Float[Tensor, "reader pair"]]:
    """Logit differences of clean and corrupted prompts, then with the edge to each reader cut."""
    everything = whole(model)
    graph = everything.graph
    circuits = [everything - from_edges(graph, [(sender, reader)]) for reader in _readers(graph, sender)]
    cells = faithfulness(model, pairs, logit_difference(), circuits)
    return cells.clean[ANSWERS].cpu(), cells.corrupt[ANSWERS].cpu(), cells.values[ANSWERS].cpu()
