"""What are the classes of each task, and what does a rule that reads no sentence get?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.antecedents import BASELINES
from analyses.probe.items import Asked
from interp import InputError
from interp.patterns import group_of
from interp.probes import commonest_labels, control_labels

TASKS = {"tag": "tags", "relation": "dependency relations", "coreference": "chains with pronouns that refer back"}
"""The tasks, and what a corpus must have for them."""
_AMBIGUOUS = ("NOUN", "VERB")


@dataclass(frozen=True)
class Labels:
    """A task's items in one split: their types, labels and documents; `rows` says which of the vectors are theirs."""

    rows: list[int]
    types: list[str]
    labels: list[str]
    groups: Int[Tensor, " item"]
    documents: int
    rules: Float[Tensor, "item rule"] | None = None


@dataclass(frozen=True)
class Task:
    """A task's items in both splits, with classes as numbers: the labels' own, and the control task's."""

    train: Labels
    test: Labels
    n_classes: int
    classes: dict[str, tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]  # "label", "control": train, test


def labels_of(task: str, asked: Sequence[Asked]) -> Labels:
    """What is asked for a task. A relation has no subtype: `nmod:poss` is `nmod`."""
    if task == "coreference":
        edges = [edge for each in asked for edge in each.edges]
        named = [each.window.text.document for each in asked for _ in each.edges]
        return Labels(
            [*range(len(edges))],
            [edge.forms for edge in edges],
            [str(edge.same) for edge in edges],
            _groups(named),
            len(set(named)),
            torch.tensor([edge.rules for edge in edges]).reshape(-1, len(BASELINES)),
        )
    rows, types, labels, documents = [], [], [], []
    words = ((each.window.text, word) for each in asked for word in each.words)
    for row, (text, word) in enumerate(words):
        known = text.tags if task == "tag" else text.relations
        if known is None:
            continue
        rows.append(row)
        types.append(text.words[word].lower())
        labels.append(known[word] if task == "tag" else known[word].split(":")[0])
        documents.append(text.document)
    return Labels(rows, types, labels, _groups(documents), len(set(documents)))


def _groups(documents: Sequence[str]) -> Tensor:
    known = {document: group_of(document) for document in set(documents)}
    return torch.tensor([known[document] for document in documents], dtype=torch.long)


def numbered(name: str, train: Labels, test: Labels, seed: int) -> Task:
    """The task with its control task drawn.

    Raises:
        InputError: fewer than two classes, or fewer types than classes.
    """
    classes = {label: index for index, label in enumerate(sorted(set(train.labels)))}
    types = len(set(train.types))
    if len(classes) < 2 or types < len(classes):
        raise InputError(
            f"probing for {name} needs at least two classes and as many word types as classes to train on; got "
            f"{len(classes)} classes and {types} types: give more text"
        )
    labels = [[classes.get(label, -1) for label in each.labels] for each in (train, test)]  # -1 is never predicted
    drawn = control_labels([*train.types, *test.types], labels[0], seed=seed)
    control = [[drawn[form] for form in each.types] for each in (train, test)]
    both = {"label": labels, "control": control}
    tensors = {kind: (torch.tensor(own), torch.tensor(other)) for kind, (own, other) in both.items()}
    return Task(train, test, len(classes), tensors)


def baseline(task: Task) -> tuple[Float[Tensor, " item"], str]:
    """Where the strictest rule that reads no sentence is right, and its name."""
    rules = task.test.rules
    if rules is not None:
        best = int(rules.mean(0).argmax())
        return rules[:, best], [*BASELINES][best]
    labels, wanted = task.classes["label"]
    own, other = commonest_labels(task.train.types, labels.tolist())
    guessed = [own.get(name, other) for name in task.test.types]
    return (torch.tensor(guessed) == wanted).float(), "most frequent of the type"


def ambiguous(task: Task) -> Float[Tensor, " item"]:
    """1 at the test words whose type is both a noun and a verb in training."""
    seen = set(zip(task.train.types, task.train.labels, strict=True))
    return torch.tensor([all((name, tag) in seen for tag in _AMBIGUOUS) for name in task.test.types]).float()
