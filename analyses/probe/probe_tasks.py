"""Which tasks do probes solve, what are the classes of each, and what does a rule that reads no sentence get?"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.probe.items import WindowItems
from analyses.scoring.antecedents import RIVALS
from interp import AnnotatedText, InputError
from interp.patterns import group_of
from interp.probes import commonest_labels, control_labels

_AMBIGUOUS = ("NOUN", "VERB")
WORDS: dict[str, Any] = tomllib.loads(files("analyses.probe").joinpath("words.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Task:
    """What probes are items: a name in tables, and what `words.toml` says of it.

    `label` is the class of a word, None where its text has none; without it pairs of words are asked about.
    """

    name: str
    title: str
    question: str
    needs: str
    annotation: str
    lacking: str
    most: int
    label: Callable[[AnnotatedText, int], str | None] | None = None

    @property
    def items(self) -> str:
        """What its items are called."""
        return "words" if self.label else "pairs"

    @property
    def subject(self) -> str:
        """What is read, within a sentence."""
        return self.title.lower()


_LABELS: dict[str, Callable[[AnnotatedText, int], str | None]] = {
    "tag": lambda text, word: None if text.tags is None else text.tags[word],
    # without its subtype: `nmod:poss` is `nmod`
    "relation": lambda text, word: None if text.relations is None else text.relations[word].split(":")[0],
}
TASKS = {name: Task(name=name, label=_LABELS.get(name), **said) for name, said in WORDS["tasks"].items()}
TAG, COREFERENCE = TASKS["tag"], TASKS["coreference"]


@dataclass(frozen=True)
class Split:
    """A task's items in one split: their types, labels and documents; `rows` says which of the vectors are theirs."""

    rows: list[int]
    types: list[str]
    labels: list[str]
    groups: Int[Tensor, " item"]
    documents: int
    rules: Float[Tensor, "item rule"] | None = None


@dataclass(frozen=True)
class TaskItems:
    """A task's items in both splits, with classes as numbers: the labels' own, and the control task's."""

    task: Task
    train: Split
    test: Split
    n_classes: int
    classes: dict[str, tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]  # "label", "control": train, test


def split_of(task: Task, windows: Sequence[WindowItems]) -> Split:
    """The items of a task among those of one split."""
    rules = None
    if task.label is None:
        edges = [(edge, each.window.text.document) for each in windows for edge in each.edges]
        items = [(row, edge.forms, str(edge.same), document) for row, (edge, document) in enumerate(edges)]
        rules = torch.tensor([edge.rules for edge, _ in edges]).reshape(-1, len(RIVALS))
    else:
        words = enumerate((each.window.text, word) for each in windows for word in each.words)
        labelled = ((row, text, word, task.label(text, word)) for row, (text, word) in words)
        items = [
            (row, text.words[word].lower(), tag, text.document) for row, text, word, tag in labelled if tag is not None
        ]
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
    """The task with its control task drawn.

    Raises:
        InputError: fewer than two classes, or fewer types than classes.
    """
    classes = {label: index for index, label in enumerate(sorted(set(train.labels)))}
    types = len(set(train.types))
    if len(classes) < 2 or types < len(classes):
        raise InputError(
            f"probing for {task.name} needs at least two classes and as many word types as classes to train on; got "
            f"{len(classes)} classes and {types} types: give more text"
        )
    labels = [[classes.get(label, -1) for label in each.labels] for each in (train, test)]  # -1 is never predicted
    drawn = control_labels([*train.types, *test.types], labels[0], seed=seed)
    control = [[drawn[form] for form in each.types] for each in (train, test)]
    kinds = {"label": labels, "control": control}
    tensors = {kind: (torch.tensor(train), torch.tensor(test)) for kind, (train, test) in kinds.items()}
    return TaskItems(task, train, test, len(classes), tensors)


def baseline(items: TaskItems) -> tuple[Float[Tensor, " item"], str]:
    """Where the strictest rule that reads no sentence is right, and its name."""
    rules = items.test.rules
    if rules is not None:
        best = int(rules.mean(0).argmax())
        return rules[:, best], RIVALS[best].name
    labels, wanted = items.classes["label"]
    of_type, commonest = commonest_labels(items.train.types, labels.tolist())
    guessed = [of_type.get(name, commonest) for name in items.test.types]
    return (torch.tensor(guessed) == wanted).float(), "most frequent of the type"


def ambiguous(items: TaskItems) -> Float[Tensor, " item"] | None:
    """1 at the test words whose type is both a noun and a verb in training; None where no tags are items."""
    if items.task is not TAG:
        return None
    seen = set(zip(items.train.types, items.train.labels, strict=True))
    return torch.tensor([all((name, tag) in seen for tag in _AMBIGUOUS) for name in items.test.types]).float()
