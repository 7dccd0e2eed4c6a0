"""The probes as part of a page: each task's corpus, tables, figures and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analyses.corpora import Corpus
from analyses.execution.progress import Say
from analyses.figures.curves import probes_by_layer
from analyses.measures.findings import FEW_DOCUMENTS, FEW_ITEMS, UNKNOWN
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, Part, Section, Text
from analyses.probe.fitted import Scores
from analyses.probe.probe_runs import EXPECTED, GRAVITY, RULE, UNTRAINED, Probed, measure
from analyses.probe.probe_tasks import TASKS, WORDS, Task
from analyses.wording.formats import counted, number, percent
from interp import InputError, Model

_TEXTS: Mapping[str, str] = WORDS["texts"]
UNSURE = "unclear"
_COLUMNS = "depth accuracy gain learnt selectivity {}cumulative_accuracy"


@dataclass(frozen=True)
class Source:
    """A corpus to train on and one to test on; None: test on a quarter of the training documents."""

    corpus: Corpus
    held_out: Corpus | None

    @property
    def name(self) -> str:
        """The name of one corpus, or of both."""
        return f"{self.corpus.title}, tested on {self.held_out.title}" if self.held_out else self.corpus.title


def section(
    model: Model,
    corpora: Sequence[Corpus],
    *,
    held_out: Sequence[Corpus] = (),
    seed: int = 0,
    progress: Say | None = None,
    **limits: Any,
) -> Part:
    """Probe every task, and return what a page shows: tables `layers` and `depths`, figures, sentences.

    A task trains on the first corpus that annotates it, and is tested on the first of `held_out` that does, else on a
    quarter of the corpus's documents. If nothing can be probed, an `InputError` has every reason. `limits` are options
    of `measure`.
    """
    if not corpora:
        raise InputError("nothing to probe: expected at least one corpus")
    sources, left_out = _sources(corpora, held_out)
    probed: dict[Source, Probed] = {}
    for source, tasks in sources.items():
        try:
            options = {"held_out": source.held_out, "tasks": tasks, "seed": seed, "progress": progress, **limits}
            probed[source] = measure(model, source.corpus, **options)
            left_out |= probed[source].left_out
        except InputError as error:
            if model.tokenizer is None:
                raise
            for corpus in (source.corpus, source.held_out):
                for _ in corpus or ():  # raises if the text itself is faulty
                    pass
            left_out |= dict.fromkeys(tasks, str(error))
    if not probed:
        reasons = dict.fromkeys(left_out.values())
        texts = (f"{', '.join(task for task in left_out if left_out[task] == why)}: {why}" for why in reasons)
        raise InputError(f"nothing to probe: {'; '.join(texts)}")
    order = {task: source for task in TASKS for source, run in probed.items() if task in run.scores}
    whole = replace(next(iter(probed.values())), scores={task: probed[order[task]].scores[task] for task in order})
    layers, depths, deepest = whole.layers, whole.depths, whole.config.n_layers
    rows = {task: layers.loc[layers["task"] == task] for task in order}
    best = {task: best_sentence(rows[task], TASKS[task], deepest) for task in order}
    answer = verdict(depths)
    question = _TEXTS["syntax and coreference" if answer else "how deep"]
    compared: list[doc.Block] = [(doc.bold(answer),)] if answer else []
    compared += [_TEXTS["not alone"]] * (len(order) == 1)
    compared += [SCHEMAS["depths"].page(depths.to_dict("records"), "task measure value interval n", _TEXTS["depths"])]
    compared += [doc.caveat(_TEXTS["apart"])] * (len(probed) > 1)
    blocks: list[doc.Block] = [
        _TEXTS["introduction"],
        doc.drawing("probes_by_layer", probes_by_layer(layers)),
        Section(question, [*compared, doc.remark(_TEXTS["intervals"])], "probes-depths"),
    ]
    records: dict[str, dict[str, Any]] = {}
    for task, source in order.items():
        scores, tested_on = whole.scores[task], source.held_out.name if source.held_out else "held-out documents"
        records[task] = {"trained_on": source.corpus.name, "tested_on": tested_on, "documents": scores.documents}
        records[task] |= {"trained": scores.n_train, "tested": len(scores.groups)}
        ambiguous = "ambiguous ambiguous_gain " * bool((rows[task]["ambiguous_n"] > 0).any())
        streams = rows[task].loc[rows[task]["head"].isna()].to_dict("records")
        task_blocks: list[doc.Block] = [
            (f"{TASKS[task].question} ", doc.soft(_trained_on(source, scores))),
            *map(doc.caveat, _caveats(TASKS[task], source, probed[source], held_out)),
            best[task],
            SCHEMAS["layers"].page(streams, _COLUMNS.format(ambiguous), _TEXTS["streams"]),
        ]
        blocks.append(Section(TASKS[task].title, task_blocks, f"probes-{task}"))
    refusals = {TASKS[task].title: left_out[task] for task in TASKS if task in left_out}
    blocks += [doc.caveat(f"{title}: not probed: {why}.") for title, why in refusals.items()]
    short: list[tuple[Text, Text]] = []
    short += [(doc.link(TASKS[task].title, f"probes-{task}"), text) for task, text in best.items()]
    short += [(doc.link(question, "probes-depths"), answer)] if answer else []
    counts = pd.DataFrame([run.counts for run in probed.values()]).fillna(0).astype(int).to_dict("records")
    return Part(
        sections=[Section("Probes of every layer", [*blocks, doc.remark(_TEXTS["chosen"])], "probes")],
        short=[*short, *((title, f"Not probed: {why}.") for title, why in refusals.items())],
        counted=doc.counts_table(counts, [source.name for source in probed], counts[0].keys()),
        definitions=[*WORDS["definitions"].items()],
        tables={"layers": layers, "depths": depths},
        facts={
            "tasks": records,
            "left_out": {source.name: run.counts for source, run in probed.items()},
            "not_probed": {task: left_out[task] for task in TASKS if task in left_out},
        },
    )


def _sources(corpora: Sequence[Corpus], held_out: Sequence[Corpus]) -> tuple[dict[Source, list[str]], dict[str, str]]:
    sources: dict[Source, list[str]] = {}
    left_out = {}
    for name, task in TASKS.items():
        annotated = ((text for text in texts if task.needs in text.annotates) for texts in (corpora, held_out))
        corpus, test = (next(texts, None) for texts in annotated)
        if corpus is None:
            left_out[name] = f"no {task.annotation} in {', '.join(text.name for text in corpora)}"
        else:
            sources.setdefault(Source(corpus, test), []).append(name)
    return sources, left_out


def _trained_on(source: Source, scores: Scores) -> str:
    origin = f"of {source.held_out.title}" if source.held_out else "of the same corpus, held out"
    train, test = (number(scores.documents[split]) for split in ("train", "test"))
    return (
        f"Trained on {number(scores.n_train)} items of {source.corpus.title} ({train} documents), "
        f"tested on {number(len(scores.groups))} {origin} ({test} documents)."
    )


def _caveats(task: Task, source: Source, probed: Probed, held_out: Sequence[Corpus]) -> list[str]:
    scores, names = probed.scores[task.name], ", ".join(text.name for text in held_out)
    documents, n = scores.documents["test"], len(scores.groups)
    unknown, tokens = probed.counts.get("unknown tokens", 0), probed.counts.get("tokens", 0)
    untested = f"No {task.annotation} in {names}, so documents of the same corpus were kept for the test."
    share = f"{unknown / max(1, tokens):.0%} of the tokens of {source.name} are unknown to the model."
    caveats = {
        untested: bool(held_out and not source.held_out),
        _TEXTS["stopped"]: scores.n_train >= task.limit,
        f"Only {documents} documents to test on: intervals are rough.": documents < FEW_DOCUMENTS,
        f"Only {n} items to test on: such shares are rough.": n < FEW_ITEMS,
        share: unknown > UNKNOWN * tokens,
    }
    return [text for text, holds in caveats.items() if holds]


def best_sentence(rows: pd.DataFrame, task: Task, deepest: int) -> str:
    """Which layer reads a task best, how well, and what the simplest rivals reach."""
    streams = rows.loc[rows["head"].isna()]
    best = streams.loc[streams["accuracy"].idxmax()].to_dict()  # the first of equals
    depth = f"after {best['depth']} of {counted(deepest, 'block')}" if best["depth"] else "before the first block"
    rivals = []
    for columns, name in ((RULE, f"{WORDS['rule']} “{best['baseline_name']}” gets"), (UNTRAINED, WORDS["untrained"])):
        _, rival, _, low, high = (best[column] for column in columns)
        doubt = "" if direction(low, high) == "more" else " (the probe is not clearly better)"
        rivals.append(f"{name} {percent(rival)}{doubt}")
    right = f"{percent(best['accuracy'])} of {number(best['n'])} {'words' if task.label else 'pairs'} right"
    return f"Read best {depth}: {right}; {' and '.join(rivals)}."


def direction(low: float, high: float) -> str | None:
    """The direction of a difference by its interval: `more`, `less`, or None if it includes 0 or is undefined."""
    return "more" if low > 0 else "less" if high < 0 else None


def verdict(depths: pd.DataFrame) -> str | None:
    """Is syntax read low and coreference high? None if one of the two was not probed."""
    pairs = depths.loc[depths["task"].str.startswith("coreference - ")]
    if pairs.empty:
        return None
    answers = []
    for name in (EXPECTED, GRAVITY):
        rows = pairs.loc[pairs["measure"] == name]
        ways = [direction(low, high) for low, high in zip(rows["ci_low"], rows["ci_high"], strict=True)]
        answers.append("no" if "less" in ways else UNSURE if None in ways else "yes")
    if answers[0] == answers[1]:
        return "Unclear." if answers[0] == UNSURE else f"{answers[0].capitalize()}, by both measures."
    return f"By the {EXPECTED}: {answers[0]}. By the {GRAVITY}: {answers[1]}."
