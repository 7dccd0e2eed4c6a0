"""What do heads choose, item by item, and what do simple rules?"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch

from interp.patterns import N_GROUPS
from interp.statistics import Estimate, estimate

NO_CHOICE = -(1 << 15)
NO_WORD_FOR_IT = NO_CHOICE + 1  # a rule's word where it has none: no head chooses it
Array = Any  # torch's of one batch, numpy's where batches are joined
N_KINDS = 20 * 3 * 33  # of words: by tag, none and foreign ones too; order; side and distance


@dataclass(frozen=True)
class Outcomes:
    """Items with the choices of heads and rules. Words are offsets from the query."""

    measure: Array  # item: its number among the measures
    groups: Array  # item: of its document
    rules: Array  # item rule
    hits: Array  # item rule: whether the rule's word is right
    sought: Array  # item rule: whether it is right for any item with the same query and measure
    words: Array  # item head: NO_CHOICE where several words tie
    right: Array  # item head
    mass: Array  # item head: the attention on the chosen word
    kinds: Array  # item head: the kind of the word that it chooses (`Items.kinds`), -1 where several tie
    rule_kinds: Array  # item rule: the same
    target: Array  # item: the last of several
    target_kind: Array  # item
    first: Array  # item: whether it is the first of its query: one choice is right for no other

    @staticmethod
    def joined(parts: "Sequence[Outcomes]") -> "Outcomes":
        """The items of all parts, as numpy arrays."""
        return Outcomes(*(torch.cat([getattr(part, each.name) for part in parts]).numpy() for each in fields(Outcomes)))

    def subset(self, index: np.ndarray) -> "Outcomes":
        """Some of the items."""
        return Outcomes(*(getattr(self, each.name)[index] for each in fields(self)))

    @cached_property
    def strictest(self) -> int:
        """The rule that is right for most items."""
        return int(self.sought.mean(0).argmax())

    @cached_property
    def chose(self) -> np.ndarray:
        """Whether a head chose one word (item head)."""
        return np.asarray(self.words != NO_CHOICE)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The share of each head's choices that each rule predicts (rule head)."""
        hits = np.stack([(self.words == rule[:, None]).sum(0) for rule in np.asarray(self.rules).T])
        return hits / np.maximum(self.chose.sum(0), 1)

    @cached_property
    def in_group(self) -> np.ndarray:
        """1 if an item is in a group of documents (group item)."""
        in_group = np.zeros((N_GROUPS, len(self.groups)))
        in_group[self.groups, np.arange(len(self.groups))] = 1
        return in_group

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums of item x any over groups of documents."""
        return np.asarray(self.in_group @ values)

    def over_groups(self, values: np.ndarray, weights: np.ndarray, seed: int) -> Estimate:
        """A mean of item x head, with its interval over groups of documents."""
        return estimate(self.by_group(values * weights), self.by_group(weights), seed=seed)
