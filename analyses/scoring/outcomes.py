"""What do heads and simple rules choose, item by item?"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch

from interp.patterns import N_GROUPS
from interp.statistics import Estimate, estimate

NO_CHOICE = -(1 << 15)
NO_WORD_FOR_IT = NO_CHOICE + 1  # for rules without a word: no head chooses it
Array = Any  # torch within a batch, numpy for joined batches
N_KINDS = 20 * 3 * 33  # kinds of words: tag (or none, or foreign) x order x side and distance


@dataclass(frozen=True)
class Outcomes:
    """Items with the choices of heads and rules, as offsets from the query in words."""

    measure: Array  # item: index of the measure
    groups: Array  # item: the group of its document
    rules: Array  # item rule: the rule's word
    hits: Array  # item rule: whether the rule's word is right
    sought: Array  # item rule: whether that word is right for any item with the same query and measure
    words: Array  # item head: the chosen word, NO_CHOICE if several tie
    right: Array  # item head: whether it is right
    mass: Array  # item head: the attention on the chosen word
    kinds: Array  # item head: the kind of the chosen word (`Items.kinds`), -1 if several tie
    rule_kinds: Array  # item rule: the kind of the rule's word
    target: Array  # item: the last target, if several
    target_kind: Array  # item: its kind
    first: Array  # item: whether it is its query's first, because one choice is not right for several

    @staticmethod
    def joined(parts: "Sequence[Outcomes]") -> "Outcomes":
        """The items of all parts, as numpy arrays."""
        return Outcomes(*(torch.cat([getattr(part, each.name) for part in parts]).numpy() for each in fields(Outcomes)))

    def subset(self, index: np.ndarray) -> "Outcomes":
        """Some of the items."""
        return Outcomes(*(getattr(self, each.name)[index] for each in fields(self)))

    @cached_property
    def strictest(self) -> int:
        """The index of the rule that is right most often."""
        return int(self.sought.mean(0).argmax())

    @cached_property
    def chose(self) -> np.ndarray:
        """Whether the head chose a single word (item head)."""
        return np.asarray(self.words != NO_CHOICE)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The share of each head's choices that each rule predicts (rule head)."""
        hits = np.stack([(self.words == rule[:, None]).sum(0) for rule in np.asarray(self.rules).T])
        return hits / np.maximum(self.chose.sum(0), 1)

    @cached_property
    def in_group(self) -> np.ndarray:
        """1 if the item is in the group of documents (group item)."""
        in_group = np.zeros((N_GROUPS, len(self.groups)))
        in_group[self.groups, np.arange(len(self.groups))] = 1
        return in_group

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums of `item x any` within groups of documents."""
        return np.asarray(self.in_group @ values)

    def over_groups(self, values: np.ndarray, weights: np.ndarray, seed: int) -> Estimate:
        """The mean of `item x head`, with its interval over groups of documents."""
        return estimate(self.by_group(values * weights), self.by_group(weights), seed=seed)
