"""Sums of measures over a corpus by group of documents, so that memory does not grow with the text."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

N_GROUPS = 128


def group_of(document: str) -> int:
    """The group, 0-127, that a document's totals are added to; the same in every process."""
    return blake2b(document.encode(), digest_size=1).digest()[0] % N_GROUPS


@dataclass
class Totals:
    """Each head's scores by group of documents; totals of one shape add up.

    A measure's value is sum(scores) / sum(weights): for a mean over rows a row weighs 1; `rows` counts them.
    """

    scores: Float[Tensor, "group head measure"]
    weights: Float[Tensor, "group head measure"]
    rows: Float[Tensor, "group head measure"]

    @staticmethod
    def empty(n_heads: int, n_measures: int) -> "Totals":
        """Nothing read yet."""
        return Totals(*(torch.zeros(N_GROUPS, n_heads, n_measures, dtype=torch.float64) for _ in range(3)))

    def add(
        self,
        groups: Int[Tensor, " prompt"],
        scores: Float[Tensor, "prompt head measure"],
        weights: Float[Tensor, "prompt head measure"],
        rows: Float[Tensor, "prompt head measure"] | None = None,
    ) -> None:
        """Add what each prompt scored to its group."""
        parts = (scores, weights, weights if rows is None else rows)
        for total, part in zip((self.scores, self.weights, self.rows), parts, strict=True):
            total.index_add_(0, groups.cpu(), part.to("cpu", torch.float64))

    def of(self, groups: Bool[Tensor, " group"]) -> "Totals":
        """The totals of some groups; the others are empty."""
        return Totals(*(part * groups[:, None, None] for part in (self.scores, self.weights, self.rows)))

    def finish(self) -> "Totals":
        """Itself: a mean over rows needs nothing but its sums."""
        return self

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.scores + other.scores, self.weights + other.weights, self.rows + other.rows)


@runtime_checkable
class Finishing(Protocol):
    """Sums by group of documents that give totals in the end, of all groups or of some."""

    def of(self, groups: Bool[Tensor, " group"]) -> "Finishing":
        """The sums of some groups."""
        ...

    def finish(self) -> Totals:
        """What each head scored."""
        ...
