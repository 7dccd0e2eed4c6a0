"""The probes as part of a page: which corpus each task is asked on, and tables, figures and sentences of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analyses.corpora import Corpus
from analyses.figures.probe_curves import probe_depths, probes_by_layer
from analyses.page.schema import SCHEMAS
from analyses.page.sections import (
    Block,
    Bullets,
    Figure,
    Part,
    Section,
    Table,
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
from analyses.tables.findings import FEW_DOCUMENTS, FEW_ITEMS, UNKNOWN
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
            on: dict[str, Any] = {"held_out": source.held_out, "tasks": tasks, "lenient": True}
            probed[source] = run = measure(model, source.corpus, **on, seed=seed, progress=progress)
            left_out |= run.left_out
        except InputError as error:
            if model.tokenizer is None:
                raise
            _raise_if_damaged(source)
            left_out |= dict.fromkeys(tasks, str(error))
    if not probed:
        raise InputError(f"nothing to probe: {_reasons(left_out)}")
    order = {task: source for task in TASKS for source, run in probed.items() if task in run.scores}
    scores = {task: probed[source].scores[task] for task, source in order.items()}
    whole = replace(next(iter(probed.values())), scores=scores)
    layers, depths, deepest = whole.layers, whole.depths, whole.config.n_layers
    question, differences = sentences.question(depths), sentences.differences(depths)
    not_probed = {task: left_out[task] for task in TASKS if task in left_out}
    short: list[tuple[Text, Text]] = [
        (link(task.title, f"probes-{name}"), sentences.in_short(layers.loc[layers["task"] == name], task, deepest))
        for name, task in TASKS.items()
        if name in scores
    ]
    if differences:
        short.append((link(question, "probes-depths"), sentences.verdict(depths) or differences[0]))
    curves, gravity = probes_by_layer(layers), probe_depths(depths, deepest, title=question)
    shown: list[Block] = [
        _TEXTS["introduction"],
        Figure("probes_by_layer", curves, _TEXTS["by layer"], sentences.by_layer(layers)),
        Figure("probe_depths", gravity, _TEXTS["depths"], sentences.depths(depths)),
        _depths(depths, apart=len(probed) > 1),
    ]
    for task, source in order.items():
        caveats = _caveats(TASKS[task], source, probed[source], held_out)
        shown.append(_task(whole, TASKS[task], _trained_on(source, scores[task]), caveats))
    shown += [caveat(f"{TASKS[task].title}: not probed: {reason}.") for task, reason in not_probed.items()]
    counts = pd.DataFrame([run.counts for run in probed.values()]).fillna(0).astype(int).to_dict("records")
    return Part(
        sections=[Section("Probes of every layer", [*shown, remark(_TEXTS["chosen"])], "probes")],
        short=short + [(TASKS[task].title, f"Not probed: {reason}.") for task, reason in not_probed.items()],
        counted=counts_table(counts, [source.name for source in probed], counts[0].keys()),
        definitions=[*WORDS["definitions"].items()],
        tables={"layers": layers, "depths": depths},
        facts={
            "tasks": {task: _facts(source, scores[task]) for task, source in order.items()},
            "left_out": {source.name: run.counts for source, run in probed.items()},
            "not_probed": not_probed,
        },
    )


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


def _raise_if_damaged(source: Source) -> None:
    """A text at fault is an error; what this model can see of a sound one is a reason."""
    for corpus in (source.corpus, source.held_out):
        for _ in corpus or ():
            pass


def _reasons(left_out: Mapping[str, str]) -> str:
    reasons = dict.fromkeys(left_out.values())
    return "; ".join(f"{', '.join(task for task in left_out if left_out[task] == why)}: {why}" for why in reasons)


def _depths(depths: pd.DataFrame, *, apart: bool) -> Section:
    """How deep tasks are read beside each other; `apart` where two were asked on different texts."""
    verdict, differences = sentences.verdict(depths), sentences.differences(depths)
    blocks: list[Block] = [(bold(verdict),)] if verdict else []
    blocks.append(Bullets(differences) if differences else _TEXTS["not alone"])
    blocks += [caveat(_TEXTS["apart"])] if apart else []
    return Section(sentences.question(depths), [*blocks, remark(_TEXTS["intervals"])], "probes-depths")


def _task(whole: Probed, task: Task, trained_on: str, caveats: Sequence[str]) -> Section:
    """One task: what was asked, what is read best, and a row a layer."""
    rows, deepest = whole.layers.loc[whole.layers["task"] == task.name], whole.config.n_layers
    best, depth = sentences.read_best(rows, deepest), sentences.depth(whole.depths, task.name, deepest)
    blocks: list[Block] = [
        (f"{task.question} ", soft(trained_on)),
        *map(caveat, caveats),
        f"{best} {depth} What that probe has over each thing beside it:",
        Bullets(sentences.compared(rows)),
        sentences.of_heads(rows),
        _streams(rows.loc[rows["head"].isna()]),
    ]
    return Section(task.title, blocks, f"probes-{task.name}")


def _streams(rows: pd.DataFrame) -> Table:
    """A row a layer's stream."""
    ambiguous = "ambiguous " * bool((rows["ambiguous_n"] > 0).any())
    columns = f"depth accuracy gain learnt selectivity {ambiguous}cumulative_accuracy"
    return SCHEMAS["layers"].page(rows.to_dict("records"), columns, _TEXTS["streams"])


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
