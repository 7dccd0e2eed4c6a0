"""The probes as part of a page: which corpus each task is asked on, and tables, figures and sentences of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analyses.corpora import Corpus
from analyses.figures.curves import probe_depths, probes_by_layer
from analyses.measures.findings import FEW_DOCUMENTS, FEW_ITEMS, UNKNOWN
from analyses.page.schema import SCHEMAS
from analyses.page.sections import (
    Block,
    Bullets,
    Figure,
    Part,
    Section,
    Text,
    bold,
    caveat,
    counts_table,
    link,
    remark,
    soft,
)
from analyses.probe import probe_sentences as sentences
from analyses.probe.fitted import Scores
from analyses.probe.probe_runs import Say, measure
from analyses.probe.probe_tables import Probed
from analyses.probe.probe_tasks import TASKS, WORDS, Task
from analyses.wording.formats import number
from interp import InputError, Model

_TEXTS: Mapping[str, str] = WORDS["texts"]


@dataclass(frozen=True)
class Source:
    """A corpus to train on, and one to test on; None keeps a quarter of the documents for the test."""

    corpus: Corpus
    held_out: Corpus | None

    @property
    def name(self) -> str:
        """How the two are called together."""
        return f"{self.corpus.title}, tested on {self.held_out.title}" if self.held_out else self.corpus.title


def section(
    model: Model,
    corpora: Sequence[Corpus],
    *,
    held_out: Sequence[Corpus] = (),
    seed: int = 0,
    progress: Say | None = None,
) -> Part:
    """Probe every task, and return what a page shows: tables `layers` and `depths`, figures, sentences.

    A task is trained on the first corpus that annotates it, and tested on the first of `held_out` that does; where none
    does, a quarter of the corpus's documents is kept apart for the test.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpora: annotated texts.
        held_out: annotated texts to test on.
        seed: of everything random.
        progress: called with what is being done, and how many texts it has read.

    Raises:
        InputError: nothing could be probed, with every reason; or a damaged corpus.
    """
    if not corpora:
        raise InputError("nothing to probe: expected at least one corpus")
    sources, left_out = _sources(corpora, held_out)
    probed: dict[Source, Probed] = {}
    for source, tasks in sources.items():
        try:
            run = measure(model, source.corpus, held_out=source.held_out, tasks=tasks, seed=seed, progress=progress)
            probed[source] = run
            left_out |= run.left_out
        except InputError as error:
            if model.tokenizer is None:
                raise
            for corpus in (source.corpus, source.held_out):
                for _ in corpus or ():  # raises where the text is at fault, and not what this model can see of it
                    pass
            left_out |= dict.fromkeys(tasks, str(error))
    if not probed:
        reasons = dict.fromkeys(left_out.values())
        said = (f"{', '.join(task for task in left_out if left_out[task] == why)}: {why}" for why in reasons)
        raise InputError(f"nothing to probe: {'; '.join(said)}")
    order = {task: source for task in TASKS for source, run in probed.items() if task in run.scores}
    whole = replace(next(iter(probed.values())), scores={task: probed[order[task]].scores[task] for task in order})
    layers, depths, deepest = whole.layers, whole.depths, whole.config.n_layers
    rows = {task: layers.loc[layers["task"] == task] for task in order}
    best = {task: sentences.read_best(rows[task], TASKS[task], deepest) for task in order}
    question, verdict, differences = sentences.question(depths), sentences.verdict(depths), _differences(depths)
    curves, gravity = probes_by_layer(layers), probe_depths(depths, deepest, title=question)
    compared: list[Block] = [*([(bold(verdict),)] if verdict else []), differences]
    compared += [caveat(_TEXTS["apart"])] * (len(probed) > 1)
    shown: list[Block] = [
        _TEXTS["introduction"],
        Figure("probes_by_layer", curves, _TEXTS["by layer"], sentences.by_layer(layers)),
        Figure("probe_depths", gravity, _TEXTS["depths"], sentences.depths(depths)),
        Section(question, [*compared, remark(_TEXTS["intervals"])], "probes-depths"),
    ]
    for task, source in order.items():
        has_ambiguous = bool((rows[task]["ambiguous_n"] > 0).any())
        columns = (
            f"depth accuracy gain learnt selectivity {'ambiguous ambiguous_gain ' * has_ambiguous}cumulative_accuracy"
        )
        streams = rows[task].loc[rows[task]["head"].isna()].to_dict("records")
        deep = sentences.depth(depths.loc[depths["task"] == task])
        blocks: list[Block] = [
            (f"{TASKS[task].question} ", soft(_trained_on(source, whole.scores[task]))),
            *map(caveat, _caveats(TASKS[task], source, probed[source], held_out)),
            f"{best[task]} Of {deepest} blocks, {deep}",
            sentences.read_by_heads(rows[task]),
            SCHEMAS["layers"].page(streams, columns, _TEXTS["streams"]),
        ]
        shown.append(Section(TASKS[task].title, blocks, f"probes-{task}"))
    refusals = {TASKS[task].title: left_out[task] for task in TASKS if task in left_out}
    short: list[tuple[Text, Text]] = [(link(TASKS[task].title, f"probes-{task}"), text) for task, text in best.items()]
    if isinstance(differences, Bullets):
        short.append((link(question, "probes-depths"), verdict or differences.items[0]))
    counts = pd.DataFrame([run.counts for run in probed.values()]).fillna(0).astype(int).to_dict("records")
    return Part(
        sections=[
            Section(
                "Probes of every layer",
                [
                    *shown,
                    *(caveat(f"{title}: not probed: {why}.") for title, why in refusals.items()),
                    remark(_TEXTS["chosen"]),
                ],
                "probes",
            )
        ],
        short=[*short, *((title, f"Not probed: {why}.") for title, why in refusals.items())],
        counted=counts_table(counts, [source.name for source in probed], counts[0].keys()),
        definitions=[*WORDS["definitions"].items()],
        tables={"layers": layers, "depths": depths},
        facts={
            "tasks": {task: _facts(source, whole.scores[task]) for task, source in order.items()},
            "left_out": {source.name: run.counts for source, run in probed.items()},
            "not_probed": {task: left_out[task] for task in TASKS if task in left_out},
        },
    )


def _differences(depths: pd.DataFrame) -> Bullets | str:
    lines = sentences.differences(depths)
    return Bullets(lines) if lines else _TEXTS["not alone"]


def _sources(corpora: Sequence[Corpus], held_out: Sequence[Corpus]) -> tuple[dict[Source, list[str]], dict[str, str]]:
    """Which tasks are asked of which texts, and why others are not."""
    sources: dict[Source, list[str]] = {}
    left_out = {}
    for name, task in TASKS.items():
        corpus, test = (
            next((text for text in texts if task.needs in text.annotates), None) for texts in (corpora, held_out)
        )
        if corpus is None:
            left_out[name] = f"no {task.annotation} in {', '.join(text.name for text in corpora)}"
        else:
            sources.setdefault(Source(corpus, test), []).append(name)
    return sources, left_out


def _trained_on(source: Source, scores: Scores) -> str:
    where = f"of {source.held_out.title}" if source.held_out else "of the same corpus, kept apart"
    train, test = (number(scores.documents[split]) for split in ("train", "test"))
    return (
        f"Trained on {number(scores.n_train)} items of {source.corpus.title} ({train} documents), "
        f"tested on {number(len(scores.groups))} {where} ({test} documents)."
    )


def _caveats(task: Task, source: Source, probed: Probed, held_out: Sequence[Corpus]) -> list[str]:
    """What makes a task's numbers less than they look."""
    scores, names = probed.scores[task.name], ", ".join(text.name for text in held_out)
    documents, n = scores.documents["test"], len(scores.groups)
    unknown, tokens = probed.counts.get("unknown tokens", 0), probed.counts.get("tokens", 0)
    caveats = {
        f"No {task.annotation} in {names}, so documents of the same corpus were kept for the test.": bool(
            held_out and not source.held_out
        ),
        _TEXTS["stopped"]: scores.n_train >= task.most,
        f"Only {documents} documents to test on: intervals are rough.": documents < FEW_DOCUMENTS,
        f"Only {n} items to test on: such shares are rough.": n < FEW_ITEMS,
        f"{unknown / max(1, tokens):.0%} of the tokens of {source.name} are unknown to the model.": (
            unknown > UNKNOWN * tokens
        ),
    }
    return [text for text, holds in caveats.items() if holds]


def _facts(source: Source, scores: Scores) -> dict[str, Any]:
    """What run.json says of one task."""
    return {
        "trained_on": source.corpus.name,
        "tested_on": source.held_out.name if source.held_out else "documents kept apart",
        "documents": scores.documents,
        "trained": scores.n_train,
        "tested": len(scores.groups),
    }
