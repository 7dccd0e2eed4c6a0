"""The probes as part of a page: which corpus each task is asked on, and tables, figures and sentences of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analyses.corpora import Corpus
from analyses.figures.probe_curves import probe_depths, probes_by_layer
from analyses.page.sections import (
    Block,
    Bullets,
    Figure,
    Part,
    Section,
    Table,
    Terms,
    Text,
    bold,
    caveat,
    link,
    remark,
    soft,
)
from analyses.probe import probe_sentences as sentences
from analyses.probe.fitted import Scores
from analyses.probe.probe_runs import Probed, Say, measure
from analyses.probe.probe_tables import AMBIGUOUS, CONTROL, RULE, UNTRAINED, Beside
from analyses.probe.probe_tasks import TASKS, Task
from analyses.tables.findings import FEW_DOCUMENTS, FEW_ITEMS, UNKNOWN
from analyses.wording.formats import interval, number
from interp import InputError, Model

_INTRODUCTION = (
    "A linear classifier is trained to read a label from one layer’s vectors, the model itself unchanged, and tested "
    "on other documents. What it gets says something of the model only beside what it gets without it: the rule that "
    "reads no sentence, which knows a word or its place alone (such as the tag that this word has most often, or the "
    "nearest mention), the same probe of the same model before training, and a control task of random labels that "
    "only knowing words by heart solves (Hewitt & Liang 2019)."
)
_BY_LAYER = (
    "Accuracy on words of documents that the probe was not trained on. The shaded band is the 95% interval of what the "
    "probe has over its control task, drawn from the control’s line. “Blocks passed” 0 is the embedding."
)
_DEPTHS = (
    "Expected layer: where probes that may use ever more layers gain. Centre of gravity: where a probe that may use "
    "all layers looks (Tenney et al. 2019). On the right, 0 means read equally deep."
)
_INTERVALS = (
    "The interval of the expected layer covers which documents were tested, not which were trained on. That of the "
    "centre of gravity covers which documents were trained on: probes were fitted again from nothing to eight random "
    "halves of them. Neither covers another penalty of the probes’ weights. Each interval holds at 95% by itself, not "
    "all of them together."
)
_STREAMS = (
    "Probes of each layer’s stream. Brackets hold 95% intervals. Mixes of layers, like heads, are trained on at most "
    "6 000 items, and those of pairs along axes that all layers share, so they may read less than one layer alone."
)
_CHOSEN = (
    "The best layer and the best head are chosen on the items on which they are reported, so they look a little better "
    "than they are. Intervals resample test documents, for the probes as trained, one draw of the control task and one "
    "untrained model."
)
_DEFINITIONS: Terms = (
    (
        "probe",
        "Multinomial logistic regression on the mean of a word’s pieces; of a pair, on both words’ 64 principal "
        "coordinates and their products. Hewitt & Liang and Tenney et al. train other classifiers: a linear one is "
        "ours.",
    ),
    (
        "control task, selectivity",
        "Each word type gets one random label, drawn with the labels’ own shares (Hewitt & Liang 2019); selectivity is "
        "accuracy less accuracy on it. Of pairs of words, the pair of forms is the type.",
    ),
    ("untrained model", "The same architecture with fresh random weights, probed alike."),
    (
        "expected layer",
        "With S(l) the accuracy of a probe that may mix layers 0 to l, the sum of l × (S(l) − S(l−1)) over the sum of "
        "S(l) − S(l−1) (Tenney et al. 2019, who score F1). Layer 0 is the embedding.",
    ),
    (
        "centre of gravity",
        "The mean layer, weighted by the shares of a probe that may mix all layers (Tenney et al. 2019). Layers are "
        "scaled to one size first, which is ours.",
    ),
)


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
    order = {task: source for task in TASKS for source, each in probed.items() if task in each.scores}
    scores = {task: probed[source].scores[task] for task, source in order.items()}
    whole = replace(next(iter(probed.values())), scores=scores)
    question, differences = sentences.question(whole.depths), sentences.differences(whole.depths)
    not_probed = {task: left_out[task] for task in TASKS if task in left_out}
    short: list[tuple[Text, Text]] = [
        (link(TASKS[task].title, f"probes-{task}"), sentences.in_short(whole, TASKS[task])) for task in scores
    ]
    if differences:
        said = sentences.verdict(whole.depths) or differences[0]
        short.append((link(question, "probes-depths"), said))
    shown: list[Block] = [
        _INTRODUCTION,
        Figure("probes_by_layer", probes_by_layer(whole.layers), _BY_LAYER, sentences.by_layer(whole.layers)),
        Figure(
            "probe_depths",
            probe_depths(whole.depths, whole.config.n_layers, title=question),
            _DEPTHS,
            sentences.depths(whole.depths),
        ),
        _depths(whole.depths, apart=len(probed) > 1),
    ]
    for task, source in order.items():
        given = _given(TASKS[task], source, probed[source], held_out)
        shown.append(_task(whole, TASKS[task], _trained_on(source, scores[task]), given))
    shown += [caveat(f"{TASKS[task].title}: not probed: {reason}.") for task, reason in not_probed.items()]
    return Part(
        sections=[Section("Probes of every layer", [*shown, remark(_CHOSEN)], "probes")],
        short=short + [(TASKS[task].title, f"Not probed: {reason}.") for task, reason in not_probed.items()],
        counted=[_counted(probed)],
        definitions=_DEFINITIONS,
        tables={"layers": whole.layers, "depths": whole.depths},
        facts={
            "tasks": {task: _facts(source, scores[task]) for task, source in order.items()},
            "left_out": {source.name: each.counts for source, each in probed.items()},
            "not_probed": not_probed,
        },
    )


def _sources(corpora: Sequence[Corpus], held_out: Sequence[Corpus]) -> tuple[dict[Source, list[str]], dict[str, str]]:
    """Which tasks are asked of which texts, and why others are not."""
    sources: dict[Source, list[str]] = {}
    left_out = {}
    for name, task in TASKS.items():
        corpus, test = (
            next((each for each in some if task.needs in each.annotates), None) for some in (corpora, held_out)
        )
        if corpus is None:
            left_out[name] = f"no {task.annotation} in {', '.join(each.name for each in corpora)}"
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
    alone = "Only one task was probed, so there is nothing to compare its depth with."
    blocks: list[Block] = [(bold(verdict),)] if verdict else []
    blocks.append(Bullets(differences) if differences else alone)
    if apart:
        blocks.append(caveat("The tasks were not asked on the same text, so texts may differ where depths seem to."))
    return Section(sentences.question(depths), [*blocks, remark(_INTERVALS)], "probes-depths")


def _task(whole: Probed, task: Task, trained_on: str, caveats: Sequence[str]) -> Section:
    """One task: what was asked, what is read best, and a row a layer."""
    rows = whole.layers.loc[whole.layers["task"] == task.name]
    best = f"{sentences.read_best(rows, whole.config.n_layers)}."
    depth = sentences.depth(whole.depths, task.name, whole.config.n_layers)
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
    ambiguous = bool((rows["ambiguous_n"] > 0).any())
    columns = ["blocks passed", "accuracy", "over the rule", "over the untrained model"]
    columns += ["over its control (selectivity)", *["noun-or-verb words"] * ambiguous, "mix of layers up to here"]
    texts: list[list[Text]] = [
        [
            (bold(number(row["depth"])),),
            number(row["accuracy"]),
            *(_over(row, each) for each in (RULE, UNTRAINED, CONTROL)),
            *[number(row[AMBIGUOUS.value])] * ambiguous,
            number(row["cumulative_accuracy"]),
        ]
        for row in rows.to_dict("records")
    ]
    return Table(columns, texts, "r" * len(columns), _STREAMS)


def _over(row: Mapping[Any, Any], beside: Beside) -> Text:
    bounds = interval(row[beside.low], row[beside.high], sign=True)
    return f"{number(row[beside.difference], sign=True)} ", soft(f"({bounds})")


def _trained_on(source: Source, scores: Scores) -> str:
    where = f"of {source.held_out.title}" if source.held_out else "of the same corpus, kept apart"
    train, test = (number(scores.documents[split]) for split in ("train", "test"))
    return (
        f"Trained on {number(scores.n_train)} items of {source.corpus.title} ({train} documents), "
        f"tested on {number(len(scores.groups))} {where} ({test} documents)."
    )


def _given(task: Task, source: Source, probed: Probed, held_out: Sequence[Corpus]) -> list[str]:
    """What makes a task's numbers less than they look."""
    caveats = []
    if held_out and not source.held_out:
        names = ", ".join(each.name for each in held_out)
        caveats.append(f"No {task.annotation} in {names}, so documents of the same corpus were kept for the test.")
    scores = probed.scores[task.name]
    if scores.n_train >= task.most:
        caveats.append(
            "Reading stopped where there was enough: these are the first documents, not a sample of them all."
        )
    if (documents := scores.documents["test"]) < FEW_DOCUMENTS:
        caveats.append(f"Only {documents} documents to test on: intervals are rough.")
    if (n := len(scores.groups)) < FEW_ITEMS:
        caveats.append(f"Only {n} items to test on: such shares are rough.")
    unknown, tokens = probed.counts.get("unknown tokens", 0), probed.counts.get("tokens", 0)
    if unknown > UNKNOWN * tokens:
        caveats.append(f"{unknown / tokens:.0%} of the tokens of {source.name} are unknown to the model.")
    return caveats


def _counted(probed: Mapping[Source, Probed]) -> Table:
    """What was read and left out: a row a count, a column a source."""
    whats = dict.fromkeys(what for each in probed.values() for what in each.counts)
    rows = [[what, *(number(each.counts.get(what, 0)) for each in probed.values())] for what in whats]
    return Table(["", *(source.name for source in probed)], rows, "w" + "r" * len(probed))


def _facts(source: Source, scores: Scores) -> dict[str, Any]:
    """What run.json says of one task."""
    return {
        "trained_on": source.corpus.name,
        "tested_on": source.held_out.name if source.held_out else "documents kept apart",
        "documents": scores.documents,
        "trained": scores.n_train,
        "tested": len(scores.groups),
    }
