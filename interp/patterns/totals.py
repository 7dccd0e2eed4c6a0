"""Sums of measures over a corpus by group of documents, so that memory does not grow with the text."""

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

N_GROUPS = 128
AnySums = TypeVar("AnySums", bound="GroupSums")


def group_of(document: str) -> int:
    """The group, 0-127, that a document's totals are added to; the same in every process."""
    return blake2b(document.encode(), digest_size=1).digest()[0] % N_GROUPS


@dataclass
class GroupSums:
    """Sums of each head by group of documents, `group head measure` each; those of one shape add up."""

    @classmethod
    def empty(cls: type[AnySums], n_heads: int, n_measures: int) -> AnySums:
        """Nothing read yet."""
        return cls(*(torch.zeros(N_GROUPS, n_heads, n_measures, dtype=torch.float64) for _ in fields(cls)))

    def add(self, groups: Int[Tensor, " prompt"], *parts: Float[Tensor, "prompt head measure"]) -> None:
        """Add what each prompt has to its group."""
        for total, part in zip(vars(self).values(), parts, strict=True):
            total.index_add_(0, groups.cpu(), part.to("cpu", torch.float64))

    def of(self: AnySums, groups: Bool[Tensor, " group"]) -> AnySums:
        """The sums of some groups; the others are empty."""
        return type(self)(*(part * groups[:, None, None] for part in vars(self).values()))

    def filled(self: AnySums) -> AnySums:
        """The same as sparse tensors, `group measure head`, of those measures of a group that have something."""
        return type(self)(*(part.transpose(1, 2).to_sparse(2) for part in vars(self).values()))

    def __iadd__(self: AnySums, other: AnySums) -> AnySums:
        for total, part in zip(vars(self).values(), vars(other).values(), strict=True):
            if part.is_sparse:
                add_sparse(total.transpose(1, 2), part)
            else:
                total.add_(part)
        return self


def add_sparse(total: Float[Tensor, "*any"], part: Float[Tensor, "*any"]) -> None:
    """Add a sparse tensor in place, without a copy of the dense one."""
    total[tuple(part.indices())] += part.values()


@dataclass
class Totals(GroupSums):
    """Each head's scores.

    A measure's value is sum(scores) / sum(weights): for a mean over rows a row weighs 1; `rows` counts them.
    """

    scores: Float[Tensor, "group head measure"]
    weights: Float[Tensor, "group head measure"]
    rows: Float[Tensor, "group head measure"]

    def add(self, groups: Int[Tensor, " prompt"], *parts: Float[Tensor, "prompt head measure"]) -> None:
        """Add each prompt's scores and weights, which count its rows."""
        scores, weights = parts
        super().add(groups, scores, weights, weights)

    def finish(self) -> "Totals":
        """Itself: a mean over rows needs nothing but its sums."""
        return self
