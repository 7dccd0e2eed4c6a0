"""Sums of measures over a corpus by group of documents, so that memory does not grow with the text."""

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

N_GROUPS = 128
AnySums = TypeVar("AnySums", bound="GroupSums")
Filled = tuple[Int[Tensor, " row"], Float[Tensor, "row ..."]]


def group_of(document: str) -> int:
    """The group, 0-127, that a document's totals are added to; the same in every process."""
    return blake2b(document.encode(), digest_size=1).digest()[0] % N_GROUPS


def filled(total: Float[Tensor, "all_rows ..."]) -> Filled:
    """The nonzero rows' indices and contents: one lot fills few rows. `index_add_` adds them back."""
    rows = total.reshape(len(total), -1).any(1).nonzero()[:, 0]
    return rows, total[rows]


@dataclass
class GroupSums:
    """Each head's sums by group of documents, `group head measure` each; sums of one shape can be added."""

    @classmethod
    def empty(cls: type[AnySums], n_heads: int, n_measures: int) -> AnySums:
        """Zero sums; heads are contiguous in memory, as in a `state`."""
        shape = N_GROUPS, n_measures, n_heads
        return cls(*(torch.zeros(shape, dtype=torch.float64).transpose(1, 2) for _ in fields(cls)))

    def add(self, groups: Int[Tensor, " prompt"], *parts: Float[Tensor, "prompt head measure"]) -> None:
        """Add each prompt's values to its group."""
        for total, part in zip(vars(self).values(), parts, strict=True):
            total.index_add_(0, groups.cpu(), part.to("cpu", torch.float64))

    def of(self: AnySums, groups: Bool[Tensor, " group"]) -> AnySums:
        """The sums of some groups; the others are empty."""
        return type(self)(*(part * groups[:, None, None] for part in vars(self).values()))

    def state(self) -> Filled:
        """All sums, `filled`; a row is one measure in one group."""
        return filled(torch.stack([part.mT.flatten(0, 1) for part in vars(self).values()], 1))

    def merge(self, state: Filled) -> None:
        """Add the sums of other texts."""
        rows, values = state
        for total, part in zip(vars(self).values(), values.unbind(1), strict=True):
            total.mT.view(-1, total.shape[1]).index_add_(0, rows, part)


@dataclass
class Totals(GroupSums):
    """Each head's scores.

    A measure's value is sum(scores) / sum(weights); for a mean over rows each weighs 1. `rows` counts rows.
    """

    scores: Float[Tensor, "group head measure"]
    weights: Float[Tensor, "group head measure"]
    rows: Float[Tensor, "group head measure"]

    def add(self, groups: Int[Tensor, " prompt"], *parts: Float[Tensor, "prompt head measure"]) -> None:
        """Add each prompt's scores and weights; the weights are also its row counts."""
        scores, weights = parts
        super().add(groups, scores, weights, weights)

    def finish(self) -> "Totals":
        """Itself: a mean over rows needs nothing but its sums."""
        return self
