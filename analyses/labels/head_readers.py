"""Who reads a labelled head? Later heads' queries, keys and values, feed-forwards and the logits, one edge at a time.

An edge is cut by exact path patching: its reader alone gets what the head writes for the corrupted prompt, everything
else stays, and what the reader then does goes on through the whole model (`interp.circuits.faithfulness` of the whole
graph without the edge).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from analyses.behaviours import measures_of, select
from analyses.execution import lots
from analyses.measures.definitions import DECLARED, Behaviour
from analyses.tasks.causal_tests import Task, reporting_half
from analyses.tasks.flips import clusters_in
from analyses.wording.plain_words import SET
from interp import InputError, Model, Transformer
from interp.circuits import Graph, faithfulness, from_edges, whole
from interp.patching import Pairs, logit_difference
from interp.patching.results import ANSWERS, guessed, refusal
from interp.statistics import benjamini_hochberg, shares

READER_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "task", "reader"),
    *("effect", "ci_low", "ci_high", "p", "q", "n", "choosing"),
]
_PAIRS = 32  # of a task
_HEADS = 3  # of a task, those that gain most


def measure(
    model: Model,
    labels: pd.DataFrame,
    behaviours: Sequence[str | Behaviour] | None = None,
    *,
    refused: Collection[str] = (),
    seed: int = 0,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """Who reads labelled heads: `tables/readers`, a row a head, task and reader, of tasks that ask about its label.

    `effect` is the share of the clean-corrupted logit difference that goes when the edge is cut, with its interval over
    the half of the pairs that reports; `choosing` is that of the other half; `q` is over all rows. Of each task those
    three heads are asked that gain most. Tasks that the model cannot do, and those in `refused`, have no row.

    Raises:
        InputError: the model has no edges, as norms follow its layers; or no output layer, or another library runs it.
    """
    if not isinstance(model, Transformer) or model.output is None:
        raise InputError("who reads a head is asked of transformers that interp runs, with an output layer")
    if reason := Graph.from_model(model).reason:
        raise InputError(reason)
    rows, by_name = list[dict[str, Any]](), select(behaviours)
    for behaviour in by_name.values():
        tasks = {each.name: each.tasks for each in measures_of({behaviour.name: behaviour})}
        for name, build in behaviour.tasks.items():
            asked = labels.loc[[name in tasks.get(each, ()) for each in labels["measure"]]]
            asked = asked.loc[~asked["label"].str.startswith(SET).astype(bool)].sort_values("gain", ascending=False)
            asked = asked.drop_duplicates(["layer", "head"]).head(_HEADS).to_dict("records")
            if asked and name not in refused and (task := _task(model, name, build, seed)) is not None:
                rows += _of_task(model, task, asked, seed, progress)
    table = pd.DataFrame(rows, columns=READER_COLUMNS)
    return table.assign(q=benjamini_hochberg(table["p"].to_numpy(dtype=float)))


def _task(model: Model, name: str, build: Any, seed: int) -> Task | None:
    try:
        return build(model, _PAIRS, seed, name, DECLARED["tasks"].get(name, {}).get("question", name))
    except InputError:
        return None  # its row of `tables/tasks` says why


def _of_task(
    model: Transformer,
    task: Task,
    asked: Sequence[Mapping[str, Any]],
    seed: int,
    progress: lots.Progress | None,
) -> Iterator[dict[str, Any]]:
    pairs, clusters = task.pairs, [*task.clusters.values()]
    if pairs is None:
        return
    graph, reports = Graph.from_model(model), reporting_half(pairs, seed)
    lot = [(pairs, f"{row['layer']}.{row['head']}") for row in asked]
    for row, (clean, corrupt, values) in zip(asked, lots.do(partial(_cut, model), lot, progress), strict=True):
        plain = ({ANSWERS: clean}, {ANSWERS: corrupt})
        if guessed(clean, task.answers, clusters) or refusal(ANSWERS, *plain):
            return
        effects, wholes = (clean - values).double().numpy().T, (clean - corrupt).double().numpy()
        chose, reported = (
            shares(effects[half], wholes[half], clusters=clusters_in(clusters, half), seed=seed)
            for half in (~reports, reports)
        )
        common = {name: row[name] for name in ("stack", "attention", "layer", "head", "behaviour", "measure")}
        for index, reader in enumerate(_readers(graph, f"{row['layer']}.{row['head']}")):
            yield {
                **{**common, "task": task.name, "reader": reader, "effect": reported.value[index]},
                **{"ci_low": reported.low[index], "ci_high": reported.high[index], "p": reported.p[index]},
                **{"n": int(reported.n[index]), "choosing": chose.value[index]},
            }


def _readers(graph: Graph, sender: str) -> list[str]:
    """All that read a node."""
    exists = graph.exists[graph.index("senders")[sender]]
    return [name for name, reads in zip(graph.receivers, exists.tolist(), strict=True) if reads]


def _cut(
    model: Transformer, pairs: Pairs, sender: str
) -> tuple[Float[Tensor, " pair"], Float[Tensor, " pair"], Float[Tensor, "reader pair"]]:
    """The logit differences of clean and corrupted prompts, and those with the edge to each reader cut."""
    everything = whole(model)
    graph = everything.graph
    circuits = [everything - from_edges(graph, [(sender, reader)]) for reader in _readers(graph, sender)]
    cells = faithfulness(model, pairs, logit_difference(), circuits)
    return cells.clean[ANSWERS].cpu(), cells.corrupt[ANSWERS].cpu(), cells.values[ANSWERS].cpu()
