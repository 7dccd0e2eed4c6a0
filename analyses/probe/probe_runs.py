"""Runs the probes on one corpus, task by task."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from analyses.probe.fitted import Splits, probe, right_alone
from analyses.probe.items import SPLITS, Items, choose, probed_stack
from analyses.probe.probe_tables import Probed
from analyses.probe.probe_tasks import COREFERENCE, TAG, TASKS, TaskItems, split_of, with_control
from analyses.probe.vectors import read
from analyses.scoring.collectors import refuse_unread
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number
from interp.initialisation import untrained
from interp.probes import PENALTY

Say = Callable[[str, int], object]  # what is being done, and how many texts it has read


def measure(
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    held_out: Iterable[AnnotatedText] | None = None,
    tasks: Sequence[str] | None = None,
    words: int = TAG.most,
    edges: int = COREFERENCE.most,
    penalty: float = PENALTY,
    seed: int = 0,
    progress: Say | None = None,
) -> Probed:
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

    Raises:
        InputError: an unknown task, too few documents, a text unknown to the tokenizer; for every task the corpus has
            nothing, or fewer types than classes.
    """
    if unknown := {*(tasks or ())} - {*TASKS}:
        raise InputError(f"no probe for {sorted(unknown)[0]!r}: expected {', '.join(TASKS)}")
    whole_number("seed", seed)
    say: Say = progress or (lambda stage, texts: None)
    wanted = [task for task in TASKS if task in (tasks or TASKS)]
    items = choose(
        model,
        corpus,
        held_out,
        words=words if any(TASKS[task].label for task in wanted) else 0,
        edges=edges if COREFERENCE.name in wanted else 0,
        progress=lambda texts: say("probes: choosing words", texts),
    )
    tasks_items, left_out = _task_items(items, wanted, seed)
    if not tasks_items:
        raise InputError("; ".join(dict.fromkeys(left_out.values())))
    refuse_unread(items.counts, getattr(corpus, "name", "the text"))
    fresh = _read(untrained(model, seed), items, "probes: reading, untrained", say)
    bare = {
        task: right_alone(each, fresh, penalty) for task, each in _announced(tasks_items, "the untrained model", say)
    }
    del fresh  # before as much again is read
    vectors = _read(model, items, "probes: reading", say)
    scores = {
        task: probe(each, vectors, bare[task], penalty=penalty, seed=seed)
        for task, each in _announced(tasks_items, "the model", say)
    }
    documents = sum(map(len, items.documents.values()))
    return Probed(*probed_stack(model), seed, scores, left_out, dict(items.counts), documents)


def _task_items(items: Items, wanted: Sequence[str], seed: int) -> tuple[dict[str, TaskItems], dict[str, str]]:
    """The tasks that have items, and why the others have none."""
    sides = {task: [split_of(TASKS[task], items.windows[split]) for split in SPLITS] for task in wanted}
    missing = [task for task in wanted if not all(side.labels for side in sides[task])]
    what = " or ".join(TASKS[task].lacking for task in missing)
    left_out = dict.fromkeys(missing, f"the corpus has no text with {what} both to train and to test on")
    complete = {}
    for task in (task for task in wanted if task not in missing):
        try:
            complete[task] = with_control(TASKS[task], sides[task][0], sides[task][1], seed)
        except InputError as error:
            left_out[task] = str(error)
    return complete, left_out


def _read(model: Model, items: Items, stage: str, say: Say) -> Splits:
    train, test = (read(model, items.windows[split], lambda texts: say(stage, texts)) for split in SPLITS)
    return train, test


def _announced(tasks: Mapping[str, TaskItems], which: str, say: Say) -> Iterator[tuple[str, TaskItems]]:
    """The tasks one by one, each announced."""
    for name, items in tasks.items():
        say(f"probes: fitting {which}, {name}", len(items.train.rows))
        yield name, items
