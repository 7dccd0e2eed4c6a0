"""Which tasks do probes solve, on which items, and how well does a rule that reads no sentence do?

Items are words with a tag or relation, and pronouns with two mentions. They depend on the texts alone, before any model
runs, so a model and its untrained copy answer the same ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.reading.windows import Window, windows
from analyses.scoring.antecedents import RIVALS, AntecedentItem, items_and_left_out
from analyses.wording import plain_words
from interp import AnnotatedText, InputError, Model, StackConfig
from interp.patterns import group_of
from interp.probes import commonest_labels, control_labels

SPLITS = ("train", "test")


def probed_stack(model: Model) -> tuple[str, StackConfig]:
    """The stack to probe: the only one, or the encoder, which reads the text unchanged."""
    return next(iter(model.config.stacks.items()))


class Edge(NamedTuple):
    """A pronoun and an earlier mention: do they belong to one chain?"""

    pronoun: int  # word indices in the text
    mention: int
    forms: str  # both words in lower case: the type of the pair
    corefers: bool
    rules: tuple[float, ...]  # each rule of `RIVALS`: the probability that it gets this edge right


class WindowItems(NamedTuple):
    """The items of one window: words with labels, and edges."""

    window: Window
    words: tuple[int, ...]
    edges: tuple[Edge, ...]

    @property
    def ends(self) -> dict[str, Sequence[int]]:
        """The words that the items need vectors of."""
        pronouns, mentions = ([getattr(edge, end) for edge in self.edges] for end in ("pronoun", "mention"))
        return {"words": self.words, "pronouns": pronouns, "mentions": mentions}


@dataclass
class Items:
    """All items of both splits; their order does not depend on the documents' order."""

    windows: dict[str, list[WindowItems]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    counts: Counter[str] = field(default_factory=Counter)
    documents: dict[str, set[str]] = field(default_factory=lambda: {split: set() for split in SPLITS})


def choose(
    model: Model,
    corpus: Iterable[AnnotatedText],
    held_out: Iterable[AnnotatedText] | None,
    *,
    words: int,
    edges: int,
    test: float = 0.5,
    progress: Callable[[int], object] | None = None,
) -> Items:
    """Items of a corpus: at most `words` and `edges` for training, and `test` times as many for the test.

    Without `held_out`, a quarter of the documents, by a hash of their names, is kept for the test. Reading stops once
    there are enough items.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus: give its directory a tokenizer.json")
    items = Items()
    parts = zip(SPLITS, (1.0, test), strict=True)
    room = {split: Counter(words=int(words * part), edges=int(edges * part)) for split, part in parts}
    for texts, filled in ((corpus, SPLITS[:1] if held_out is not None else SPLITS), (held_out or (), SPLITS[1:])):
        for text in texts:
            if all(count <= 0 for split in filled for count in room[split].values()):
                items.counts["corpora not read to their end: enough words and pronouns"] += 1
                break
            split = filled[-1] if len(filled) == 1 or _is_test(text.document) else filled[0]
            items.counts["texts"] += 1
            items.documents[split].add(text.document)
            items.windows[split] += _window_items(model, text, room[split], items.counts)
            if progress is not None:
                progress(items.counts["texts"])
    train, tested = (items.documents[split] for split in SPLITS)
    if common := train & tested:
        name = sorted(common)[0]
        raise InputError(f"{name!r} is a document of both corpora: keep them apart")
    if not train or len(tested) < 2:
        documents = f"{len(train)} to train on and {len(tested)} to test on"
        hashed = ", of which a hash of the name keeps a quarter for the test" if held_out is None else ""
        raise InputError(f"a probe needs documents to train on and two others to test on{hashed}; got {documents}")
    for group in items.windows.values():
        group.sort(key=lambda e: (len(e.window.ids), e.window.text.document, e.window.start, e.window.ids))
    return items


def _is_test(document: str) -> bool:  # not the hash that groups documents for intervals
    return blake2b(document.encode(), digest_size=1, person=b"probe").digest()[0] % 4 == 0


def _window_items(model: Model, text: AnnotatedText, room: Counter[str], counts: Counter[str]) -> Iterator[WindowItems]:
    assert model.tokenizer is not None
    labelled = (text.tags or text.relations) is not None and room["words"] > 0
    referring, why_not = items_and_left_out(text) if room["edges"] > 0 else ([], [])
    if not (labelled or referring or why_not):
        counts["texts passed over: nothing to ask of them"] += 1
        return
    for window in windows(text, model.tokenizer, probed_stack(model)[1].n_ctx, counts):
        words = tuple(word for word in range(window.start, window.stop) if labelled and window.scores(word))
        edges = tuple(edge for item in referring if room["edges"] > 0 for edge in _edges(item, window, counts))
        counts.update(reason for word, reason in why_not if window.scores(word))
        if words or edges:
            room.subtract({"words": len(words), "edges": len(edges)})
            yield WindowItems(window, words, edges)


def _edges(item: AntecedentItem, window: Window, counts: Counter[str]) -> Iterator[Edge]:
    """The nearest mention of the pronoun's chain and the nearest of another, so half of the edges are right."""
    if not window.scores(item.pronoun):
        return
    starts = enumerate(item.candidates)
    visible = [i for i, word in starts if word >= window.start and window.pieces[word - window.start] > 0]
    latest = {item.correct[i]: i for i in visible}  # ascending, so the nearest overwrites
    if len(latest) < 2:
        counts["pronouns left out: no right and wrong candidate within the window"] += 1
        return
    pair = item.keeping(sorted(latest.values()))
    verdicts = [rule(pair) for rule in RIVALS]
    for i, (mention, corefers, form) in enumerate(zip(pair.candidates, pair.correct, pair.forms, strict=True)):
        right = tuple(verdict[i] if corefers else 1 - verdict[i] for verdict in verdicts)
        yield Edge(item.pronoun, mention, f"{item.form} {form}", corefers, right)


_AMBIGUOUS = ("NOUN", "VERB")
WORDS: dict[str, Any] = plain_words.WORDS["probe"]


@dataclass(frozen=True)
class Task:
    """A name in tables, and its texts in `words.toml`; `label` returns a word's class, or None if it has none.

    A task without `label` asks about pairs of words.
    """

    name: str
    title: str
    question: str
    needs: str
    annotation: str
    lacking: str
    limit: int
    label: Callable[[AnnotatedText, int], str | None] | None = None


_LABELS: dict[str, Callable[[AnnotatedText, int], str | None]] = {
    "tag": lambda text, word: None if text.tags is None else text.tags[word],
    # without the subtype: `nmod:poss` is `nmod`
    "relation": lambda text, word: None if text.relations is None else text.relations[word].split(":")[0],
}
TASKS = {name: Task(name=name, label=_LABELS.get(name), **said) for name, said in WORDS["tasks"].items()}


@dataclass(frozen=True)
class Split:
    """A task's items in one split: their types, labels and documents; `rows` are their indices among the vectors."""

    rows: list[int]
    types: list[str]
    labels: list[str]
    groups: Int[Tensor, " item"]
    documents: int
    rules: Float[Tensor, "item rule"] | None = None


@dataclass(frozen=True)
class TaskItems:
    """A task's items in both splits, with the classes of the task and of its control task as numbers."""

    task: Task
    train: Split
    test: Split
    n_classes: int
    classes: dict[str, tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]  # "label", "control": train, test


def task_windows(task: Task, windows: Sequence[WindowItems]) -> list[WindowItems]:
    """The windows with items of a task, reduced to these items."""
    if task.label is None:
        return [each._replace(words=()) for each in windows if each.edges]
    return [each._replace(edges=()) for each in windows if each.words]


def task_split(task: Task, windows: Sequence[WindowItems]) -> Split:
    """A task's items in one split."""
    rules = None
    if task.label is None:
        edges = [(edge, each.window.text.document) for each in windows for edge in each.edges]
        items = [(row, edge.forms, str(edge.corefers), document) for row, (edge, document) in enumerate(edges)]
        rules = torch.tensor([edge.rules for edge, _ in edges]).reshape(-1, len(RIVALS))
    else:
        words = enumerate((each.window.text, word) for each in windows for word in each.words)
        labelled = ((n, text, word, task.label(text, word)) for n, (text, word) in words)
        items = [(n, text.words[i].lower(), tag, text.document) for n, text, i, tag in labelled if tag is not None]
    groups = {document: group_of(document) for document in {document for *_, document in items}}
    return Split(
        rows=[row for row, *_ in items],
        types=[form for _, form, *_ in items],
        labels=[label for _, _, label, _ in items],
        groups=torch.tensor([groups[document] for *_, document in items], dtype=torch.long),
        documents=len(groups),
        rules=rules,
    )


def with_control(task: Task, train: Split, test: Split, seed: int) -> TaskItems:
    """The task's items, with a control task drawn from `seed`."""
    classes = {label: index for index, label in enumerate(sorted(set(train.labels)))}
    types = len(set(train.types))
    if len(classes) < 2 or types < len(classes):
        needed = "needs at least two classes and as many word types as classes to train on"
        got = f"got {len(classes)} classes and {types} types: give more text"
        raise InputError(f"probing for {task.name} {needed}; {got}")
    labels = [[classes.get(label, -1) for label in each.labels] for each in (train, test)]  # -1 is never predicted
    classes_of = control_labels([*train.types, *test.types], labels[0], seed=seed)
    control = [[classes_of[form] for form in each.types] for each in (train, test)]
    kinds = {"label": labels, "control": control}
    tensors = {kind: (torch.tensor(train), torch.tensor(test)) for kind, (train, test) in kinds.items()}
    return TaskItems(task, train, test, len(classes), tensors)


def baseline(items: TaskItems) -> tuple[Float[Tensor, " item"], str]:
    """Which items the strictest rule that reads no sentence gets right, and its name."""
    rules = items.test.rules
    if rules is not None:
        best = int(rules.mean(0).argmax())
        return rules[:, best], RIVALS[best].name
    labels, test_labels = items.classes["label"]
    of_type, commonest = commonest_labels(items.train.types, labels.tolist())
    guesses = [of_type.get(name, commonest) for name in items.test.types]
    return (torch.tensor(guesses) == test_labels).float(), "the word’s most frequent label"


def ambiguous(items: TaskItems) -> Float[Tensor, " item"] | None:
    """1 for test words whose type is both noun and verb in training; None if the task is not about tags."""
    if items.task.name != "tag":
        return None
    pairs = set(zip(items.train.types, items.train.labels, strict=True))
    return torch.tensor([all((name, tag) in pairs for tag in _AMBIGUOUS) for name in items.test.types]).float()
