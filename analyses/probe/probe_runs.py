"""Runs the probes on one corpus, and turns what they find into tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analyses.probe.fitted import Found, probe, right_alone
from analyses.probe.items import SPLITS, Items, choose
from analyses.probe.probe_tables import depth_table, layer_table
from analyses.probe.probe_tasks import TASKS, Task, labels_of, numbered
from analyses.probe.vectors import Read, read
from analyses.reading.collectors import refuse_unread
from interp import AnnotatedText, InputError, Transformer
from interp.initialisation import untrained
from interp.probes import PENALTY

WORDS, EDGES = 20_000, 6_000  # for training; half as many for the test
Say = Callable[[str, int], object]  # what is being done, and how many texts it has read


@dataclass(frozen=True)
class Probed:
    """What the probes of one corpus found, task by task, and what was read for it."""

    found: dict[str, Found]
    left_out: dict[str, str]  # tasks that could not be asked, and why
    counts: dict[str, int]
    documents: dict[str, int]  # of either split


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    held_out: Iterable[AnnotatedText] | None = None,
    tasks: Sequence[str] | None = None,
    words: int = WORDS,
    edges: int = EDGES,
    penalty: float = PENALTY,
    seed: int = 0,
    progress: Say | None = None,
) -> pd.DataFrame:
    """Probe every layer's stream and every head's output for each task.

    `tag`: a word's part of speech. `relation`: its relation to its head, without subtype. `coreference`: are a pronoun
    and a mention before it of one chain (the nearest of its chain and the nearest of another are asked)? A word's
    vector is the mean over its pieces; an edge's is both words' coordinates along 64 principal axes and their product.

    Args:
        model: a model with one stack and a tokenizer.
        corpus: texts to train on; without `held_out` a quarter of the documents is kept for the test.
        held_out: other documents to test on.
        tasks: of `TASKS`; by default those that the corpus is annotated for.
        words: words at most to train tags and relations on, the first of the corpus; half as many are tested. Heads and
            mixes of layers are trained on 6,000 of them.
        edges: edges at most to train coreference on; half as many are tested.
        penalty: of the probes' squared weights, see `interp.probes.fit`.
        seed: of control tasks, of the untrained model's weights, of the halves and of the resampling.
        progress: is told what is being done, and how many texts have been read.

    Returns:
        The rows of `tables/layers`. `depth` counts the blocks passed: 0 is the stream into the first. `ci_low` and
        `ci_high` bound the selectivity. `gain` is accuracy less `baseline`: the most frequent label of the type, for
        edges the strictest rule (nearest mention and the like). `learnt` is accuracy less `untrained_accuracy`, that of
        the same probe on the model with fresh weights. `ambiguous_*` are tags of the types that training shows both as
        noun and as verb. Intervals are over test documents, for the probes as trained, one draw of the control task
        and one untrained model. `attrs["depths"]` are the rows of `depths`; `attrs["left_out"]` says why tasks
        are not there.

    Raises:
        InputError: an unknown task, too few documents, a text unknown to the tokenizer; a task of `tasks`, or without
            it every task, for which the corpus has nothing, or fewer types than classes.
    """
    if unknown := {*(tasks or ())} - {*TASKS}:
        raise InputError(f"no probe for {sorted(unknown)[0]!r}: expected {', '.join(TASKS)}")
    probed = find(
        model, corpus, held_out, tasks, words=words, edges=edges, penalty=penalty, seed=seed, progress=progress
    )
    if tasks and probed.left_out:
        raise InputError("; ".join(dict.fromkeys(probed.left_out.values())))
    table = layer_table(model, probed.found, seed=seed)
    table.attrs = {
        "left_out": probed.left_out,
        "counts": probed.counts,
        "documents": sum(probed.documents.values()),
        "depths": depth_table(model, probed.found, seed=seed).to_dict("list"),
    }
    return table


def depths(table: pd.DataFrame) -> pd.DataFrame:
    """How deep each task is read, from what `measure` gave: `stack, task, measure, value, ci_low, ci_high, n`.

    The expected layer is missing where all layers together read the task no better than the embedding alone; its
    interval is a bootstrap over test documents, of the probes as trained. That of the centre of gravity comes from
    probes fitted again to halves of the training documents. A task `a - b` is the difference of two, on the same
    documents.
    """
    return pd.DataFrame(table.attrs["depths"])


def find(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    held_out: Iterable[AnnotatedText] | None,
    tasks: Sequence[str] | None,
    *,
    words: int = WORDS,
    edges: int = EDGES,
    penalty: float = PENALTY,
    seed: int,
    progress: Say | None,
) -> Probed:
    """As `measure`, before any table is made; what cannot be asked of this corpus is left out unless it is all.

    Raises:
        InputError: too few documents, a text unknown to the tokenizer, nothing to ask.
    """
    say: Say = progress or (lambda stage, texts: None)
    wanted = [task for task in TASKS if task in (tasks or TASKS)]
    items = choose(
        model,
        corpus,
        held_out,
        words=words if {"tag", "relation"} & {*wanted} else 0,
        edges=edges if "coreference" in wanted else 0,
        progress=lambda texts: say("probes: choosing words", texts),
    )
    numbers, left_out = _tasks(items, wanted, seed)
    if not numbers:
        raise InputError("; ".join(dict.fromkeys(left_out.values())))
    refuse_unread(items.counts, getattr(corpus, "name", "the text"))
    fresh = _read(untrained(model, seed), items, "probes: reading, untrained", say)
    bare = {task: right_alone(task, each, fresh, penalty) for task, each in _said(numbers, "the untrained model", say)}
    del fresh  # before as much again is read
    own = _read(model, items, "probes: reading", say)
    found = {
        task: probe(task, each, own, bare[task], penalty=penalty, seed=seed)
        for task, each in _said(numbers, "the model", say)
    }
    documents = {split: len(names) for split, names in items.documents.items()}
    return Probed(found, left_out, dict(items.counts), documents)


def _tasks(items: Items, wanted: Sequence[str], seed: int) -> tuple[dict[str, Task], dict[str, str]]:
    """The tasks that can be asked, and of the others why not."""
    asked = {task: [labels_of(task, items.asked[split]) for split in SPLITS] for task in wanted}
    missing = [task for task, sides in asked.items() if not all(side.labels for side in sides)]
    what = " or ".join(TASKS[task] for task in missing)
    left_out = dict.fromkeys(missing, f"the corpus has no text with {what} both to train and to test on")
    numbers = {}
    for task in (task for task in wanted if task not in missing):
        train, test = asked[task]
        try:
            numbers[task] = numbered(task, train, test, seed)
        except InputError as error:
            left_out[task] = str(error)
    return numbers, left_out


def _read(model: Transformer, items: Items, stage: str, say: Say) -> list[Read]:
    return [read(model, items.asked[split], lambda texts: say(stage, texts)) for split in SPLITS]


def _said(tasks: Mapping[str, Task], which: str, say: Say) -> Iterator[tuple[str, Task]]:
    """The tasks one by one, each announced."""
    for name, task in tasks.items():
        say(f"probes: fitting {which}, {name}", len(task.train.rows))
        yield name, task
