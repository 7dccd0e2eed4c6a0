"""The probes as part of a page: which corpus each task is asked on, tables and figures written, sentences made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyses.corpora import Corpus
from analyses.figures.probe_curves import probe_depths, probes_by_layer
from analyses.findings import FEW_DOCUMENTS, FEW_ITEMS, UNKNOWN
from analyses.probe import probe_sentences as sentences
from analyses.probe.items import probed_stack
from analyses.probe.probe_runs import EDGES, WORDS, Probed, Say, find
from analyses.probe.probe_tables import depth_table, layer_table
from analyses.probe.probe_tasks import TASKS
from analyses.report import output
from analyses.report.renderer import image, interval, number
from interp import InputError, Transformer

_NEEDS = {"tag": "tags", "relation": "relations", "coreference": "chains"}  # of `Corpus.annotates`
_SAID = {"tags": "tags", "relations": "dependency relations", "chains": "coreference chains"}
_BY_LAYER = (
    "Accuracy on words of documents that the probe was not trained on. The shaded band is the 95% interval of what the "
    "probe has over its control task, drawn from the control’s line. “Blocks passed” 0 is the embedding."
)
_DEPTHS = (
    "Expected layer: where probes that may use ever more layers gain. Centre of gravity: where a probe that may use "
    "all layers looks (Tenney et al. 2019). On the right, 0 means read equally deep."
)


@dataclass(frozen=True)
class TaskShown:
    """One task as the page shows it."""

    name: str
    title: str
    asked: str
    source: str  # what it was trained and tested on
    short: str
    best: str
    compared: Sequence[str]
    depth: str
    heads: str
    caveats: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    ambiguous: bool  # whether its table has ambiguous words


@dataclass(frozen=True)
class Section:
    """What a page shows of the probes. `facts` is for `run.json`; the template macro `probes` shows the rest."""

    tasks: Sequence[TaskShown]
    question: str  # about depths
    verdict: str | None  # its answer, where one sentence can say it
    differences: Sequence[str]
    apart: bool  # whether two tasks were asked on different texts
    left_out: Mapping[str, str]  # tasks that were not probed, by title, and why
    images: Sequence[Mapping[str, str]]
    counted: Sequence[tuple[str, Sequence[str]]]  # a row a count, a column a source
    sources: Sequence[str]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class _Source:
    """A corpus to train on, and one to test on; None keeps a quarter of the documents for the test."""

    corpus: Corpus
    held_out: Corpus | None

    @property
    def name(self) -> str:
        """How the two are called together."""
        return f"{self.corpus.title}, tested on {self.held_out.title}" if self.held_out else self.corpus.title


def section(
    model: Transformer,
    corpora: Sequence[Corpus],
    new: output.Output,
    *,
    held_out: Sequence[Corpus] = (),
    seed: int = 0,
    progress: Say | None = None,
) -> Section:
    """Probe every task, write `tables/layers`, `tables/depths` and the figures, and return what a page shows.

    A task is trained on the first corpus that annotates it, and tested on the first of `held_out` that does; where none
    does, a quarter of the corpus's documents is kept apart for the test.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpora: annotated texts.
        new: the output directory in the making.
        held_out: annotated texts to test on.
        seed: of everything random.
        progress: called with what is being done, and how many texts it has read.

    Raises:
        InputError: nothing could be probed, with every reason; or a damaged corpus.
    """
    if not corpora:
        raise InputError("nothing to probe: expected at least one corpus")
    sources, left_out = _sources(corpora, held_out)
    probed: dict[_Source, Probed] = {}
    for source, tasks in sources.items():
        try:
            probed[source] = found = find(model, source.corpus, source.held_out, tasks, seed=seed, progress=progress)
            left_out |= found.left_out
        except InputError as error:
            if model.tokenizer is None:
                raise
            _raise_if_damaged(source)
            left_out |= dict.fromkeys(tasks, str(error))
    if not probed:
        raise InputError(f"nothing to probe: {_reasons(left_out)}")
    order = {task: source for task in TASKS for source, each in probed.items() if task in each.found}
    found = {task: probed[source].found[task] for task, source in order.items()}
    layers, depths = (make(model, found, seed=seed) for make in (layer_table, depth_table))
    new.table("layers", layers)
    new.table("depths", depths)
    whats = dict.fromkeys(what for each in probed.values() for what in each.counts)
    deepest = probed_stack(model).n_layers
    return Section(
        tasks=[
            _shown(layers.loc[layers["task"] == task], depths, deepest, order[task], probed[order[task]], held_out)
            for task in found
        ],
        question=sentences.question(depths),
        verdict=sentences.verdict(depths),
        differences=sentences.differences(depths),
        apart=len(probed) > 1,
        left_out={sentences.TITLES[task]: left_out[task] for task in TASKS if task in left_out},
        images=_images(new, layers, depths, deepest),
        counted=[(what, [number(each.counts.get(what, 0)) for each in probed.values()]) for what in whats],
        sources=[source.name for source in probed],
        facts=_facts(order, probed, left_out),
    )


def _sources(corpora: Sequence[Corpus], held_out: Sequence[Corpus]) -> tuple[dict[_Source, list[str]], dict[str, str]]:
    """Which tasks are asked of which texts, and why others are not."""
    sources: dict[_Source, list[str]] = {}
    left_out = {}
    for task, need in _NEEDS.items():
        corpus, test = (next((each for each in some if need in each.annotates), None) for some in (corpora, held_out))
        if corpus is None:
            left_out[task] = f"no {_SAID[need]} in {', '.join(each.name for each in corpora)}"
        else:
            sources.setdefault(_Source(corpus, test), []).append(task)
    return sources, left_out


def _raise_if_damaged(source: _Source) -> None:
    """A text at fault is an error; what this model can see of a sound one is a reason."""
    for corpus in (source.corpus, source.held_out):
        for _ in corpus or ():
            pass


def _reasons(left_out: Mapping[str, str]) -> str:
    reasons = dict.fromkeys(left_out.values())
    return "; ".join(f"{', '.join(task for task in left_out if left_out[task] == why)}: {why}" for why in reasons)


def _images(new: output.Output, layers: pd.DataFrame, depths: pd.DataFrame, deepest: int) -> list[dict[str, str]]:
    drawn = []
    for name, figure, caption in (
        ("probes_by_layer", probes_by_layer(layers), _BY_LAYER),
        ("probe_depths", probe_depths(depths, deepest, title=sentences.question(depths)), _DEPTHS),
    ):
        drawn.append(image(figure, new.figure(name, figure).read_bytes(), caption))
    return drawn


def _shown(
    rows: pd.DataFrame,
    depths: pd.DataFrame,
    deepest: int,
    source: _Source,
    probed: Probed,
    held_out: Sequence[Corpus],
) -> TaskShown:
    task = str(rows["task"].iloc[0])
    return TaskShown(
        name=task,
        title=sentences.TITLES[task],
        asked=sentences.ASKED[task],
        source=_trained_on(task, source, probed),
        short=sentences.in_short(rows, depths, deepest),
        best=sentences.read_best(rows, deepest) + ".",
        compared=sentences.compared(rows),
        depth=sentences.depth(depths, task, deepest),
        heads=sentences.of_heads(rows),
        caveats=_caveats(task, source, probed, held_out),
        rows=[_row(row) for row in rows.loc[rows["head"].isna()].to_dict("records")],
        ambiguous=bool((rows["ambiguous_n"] > 0).any()),
    )


def _trained_on(task: str, source: _Source, probed: Probed) -> str:
    found = probed.found[task]
    documents = found.documents
    where = f"of {source.held_out.title}" if source.held_out else "of the same corpus, kept apart"
    trained, corpus = number(found.n_train), source.corpus.title
    return (
        f"Trained on {trained} items of {corpus} ({number(documents['train'])} documents), "
        f"tested on {number(len(found.groups))} {where} ({number(documents['test'])} documents)."
    )


def _caveats(task: str, source: _Source, probed: Probed, held_out: Sequence[Corpus]) -> list[str]:
    found = []
    if held_out and not source.held_out:
        names = ", ".join(each.name for each in held_out)
        found.append(f"No {_SAID[_NEEDS[task]]} in {names}, so documents of the same corpus were kept for the test.")
    asked = probed.found[task]
    if asked.n_train >= (EDGES if task == "coreference" else WORDS):
        found.append("Reading stopped where there was enough: these are the first documents, not a sample of them all.")
    if (documents := asked.documents["test"]) < FEW_DOCUMENTS:
        found.append(f"Only {documents} documents to test on: intervals are rough.")
    if (n := len(asked.groups)) < FEW_ITEMS:
        found.append(f"Only {n} items to test on: such shares are rough.")
    unknown, tokens = probed.counts.get("unknown tokens", 0), probed.counts.get("tokens", 0)
    if unknown > UNKNOWN * tokens:
        found.append(f"{unknown / tokens:.0%} of the tokens of {source.name} are unknown to the model.")
    return found


def _row(row: Mapping[Any, Any]) -> dict[str, str]:
    """One layer's stream as text."""
    return {
        "depth": number(row["depth"]),
        **{
            name: number(row[name])
            for name in ("accuracy", "baseline", "control_accuracy", "untrained_accuracy", "cumulative_accuracy")
        },
        "gain": number(row["gain"], sign=True),
        "gain_interval": interval(row["gain_low"], row["gain_high"], sign=True),
        "selectivity": number(row["selectivity"], sign=True),
        "selectivity_interval": interval(row["ci_low"], row["ci_high"], sign=True),
        "learnt": number(row["learnt"], sign=True),
        "learnt_interval": interval(row["learnt_low"], row["learnt_high"], sign=True),
        "ambiguous": number(row["ambiguous_accuracy"]),
    }


def _facts(
    order: Mapping[str, _Source], probed: Mapping[_Source, Probed], left_out: Mapping[str, str]
) -> dict[str, Any]:
    """What run.json says of the probes."""
    return {
        "tasks": {
            task: {
                "trained_on": source.corpus.name,
                "tested_on": source.held_out.name if source.held_out else "documents kept apart",
                "documents": probed[source].found[task].documents,
                "trained": probed[source].found[task].n_train,
                "tested": len(probed[source].found[task].groups),
            }
            for task, source in order.items()
        },
        "left_out": {source.name: probed[source].counts for source in probed},
        "not_probed": {task: left_out[task] for task in TASKS if task in left_out},
    }
