"""Attention over visible keys, to which models of attention are fitted: an entry for each row and key, unpadded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from interp.patterns.rows import TINY
from interp.patterns.totals import N_GROUPS

_TOGETHER = 2048  # pairs that are read at once: what a hundred heads have of them stays in the processor's cache


class Named(NamedTuple):
    """Sparse marks in the form that `embedding_bag` adds up: of a hundred marks a key has four."""

    which: Int[Tensor, " named"]
    begins: Int[Tensor, " one"]
    share: Float[Tensor, " named"] | None = None  # by which each counts; alike by default

    def sums(self, values: Float[Tensor, "many head"]) -> Float[Tensor, "one head"]:
        """Of what is named."""
        return embedding_bag(self.which, values.contiguous(), self.begins, mode="sum", per_sample_weights=self.share)


def named(marks: Bool[Tensor, "pair mark"], shares: Float[Tensor, "pair mark"] | None = None) -> tuple[Named, Named]:
    """The marks of each pair and the pairs of each mark; with `shares`, by how much each counts."""
    pair, mark = marks.nonzero(as_tuple=True)
    share, by_mark = None if shares is None else shares[pair, mark], mark.argsort(stable=True)
    begins = [count.cumsum(0) - count for count in (marks.sum(1), marks.sum(0))]
    marked = Named(pair[by_mark], begins[1], None if share is None else share[by_mark])
    return Named(mark, begins[0], share), marked


@dataclass(frozen=True)
class VisibleKeys:
    """Every pair of a row and a key that it sees, with what each head gives it.

    row        pair         the number of its row; ascending
    group      row          the group of documents that a row belongs to; ascending
    uniform    pair         what a head gives that looks at all tokens alike; above 0, adds up to 1 in a row
    attention  pair head    adds up to 1 in a row
    marks      pair mark    the keys that a rule names: the last verb, every noun
    """

    row: Int[Tensor, " pair"]
    group: Int[Tensor, " row"]
    uniform: Float[Tensor, " pair"]
    attention: Float[Tensor, "pair head"]
    marks: Bool[Tensor, "pair mark"]

    @staticmethod
    def of(
        row: Int[Tensor, " pair"],
        group: Int[Tensor, " row"],
        uniform: Float[Tensor, " pair"],
        attention: Float[Tensor, "pair head"],
        marks: Bool[Tensor, "pair mark"],
    ) -> "VisibleKeys":
        """Pairs in any order; rows without any are left out, `uniform` and `attention` are made to add up to 1."""
        place, order = (group[row] * len(group) + row).sort(stable=True)
        present, row = place.unique_consecutive(return_inverse=True)
        parts = (uniform[order][:, None], attention[order])
        uniform_share, attention_shares = (
            part / _summed(part, row, len(present)).clamp(min=TINY)[row] for part in parts
        )
        return VisibleKeys(row, present // max(len(group), 1), uniform_share[:, 0], attention_shares, marks[order])

    def half(self, which: int) -> "VisibleKeys":
        """The rows of even (0) or odd (1) groups."""
        in_half = (self.group % 2 == which)[self.row]
        parts = (self.uniform, self.attention, self.marks)
        return VisibleKeys.of(self.row[in_half], self.group, *(part[in_half] for part in parts))

    def having(self, marks: Sequence[int]) -> "VisibleKeys":
        """With some of the marks."""
        return replace(self, marks=self.marks[:, [*marks]])

    def stretches(self) -> "Iterator[VisibleKeys]":
        """Neighbouring rows of one group, so few at a time that what is read of them stays in the processor's cache."""
        ends = torch.bincount(self.row, minlength=len(self.group)).cumsum(0).tolist()
        groups = self.group.tolist()
        first = begin = 0
        for row, end in enumerate(ends):
            last = row + 1 == len(ends)
            if last or groups[row + 1] != groups[row] or ends[row + 1] - begin > _TOGETHER:
                pairs, group = slice(begin, end), self.group[first : row + 1]
                parts = (part[pairs] for part in (self.uniform, self.attention, self.marks))
                yield VisibleKeys(self.row[pairs] - first, group, *parts)
                begin, first = end, row + 1

    def by_row(self, values: Float[Tensor, "pair any"]) -> Float[Tensor, "row any"]:
        """Sums over each row's keys."""
        return _summed(values, self.row, len(self.group))

    def over_groups(self, values: Float[Tensor, "row head"]) -> Float[Tensor, "group head"]:
        """The sum of each group's rows."""
        return _summed(values.double(), self.group, N_GROUPS)

    def rows(self) -> Float[Tensor, " group"]:
        """How many rows each group has."""
        return torch.bincount(self.group, minlength=N_GROUPS).double()

    def below_uniform(self) -> Float[Tensor, "group head"]:
        """Each group's sum of KL(attention || uniform), in nats."""
        ratio = (self.attention / self.uniform[:, None]).clamp(min=TINY).log()
        return self.over_groups(self.by_row(self.attention * ratio))


def _summed(values: Float[Tensor, "pair any"], to: Int[Tensor, " pair"], count: int) -> Float[Tensor, "row any"]:
    return values.new_zeros(count, values.shape[1]).index_add_(0, to, values)
