"""Which simple rules make up a head's attention, and which properties of a key decide how much attention it gets?

We fit two models to attention over visible keys, one entry per row and key, unpadded. In a mixture, a rule attends to
the keys it names as uniform attention would, and the first part attends to all keys. If a rule names no key of a row,
the other parts share its weight in proportion to their own. In a conditional logit (McFadden 1974) attention is a
softmax of scores, and a score sums one weight per mark of the key; with zero weights it is uniform.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from interp.patterns.rows import TINY
from interp.patterns.totals import N_GROUPS
from interp.probes.lbfgs import minimise

_FARTHEST, _SHRINKAGE, _LEAST = 32.0, 0.1, 1e-9
_LARGEST = 80.0  # largest score: its exponential is still finite in float32
_STRETCH = 2048  # pairs read at once: for a hundred heads they fit in the CPU's cache
PartWeights = Float[Tensor, "part head"]
MarkWeights = Float[Tensor, "mark head"]


class Named(NamedTuple):
    """Sparse marks in the form that `embedding_bag` sums; a key has about four of a hundred marks."""

    entries: Int[Tensor, " named"]
    begins: Int[Tensor, " one"]
    share: Float[Tensor, " named"] | None = None  # each entry's weight; equal by default

    def sums(self, values: Float[Tensor, "many head"]) -> Float[Tensor, "one head"]:
        """The values' sums over each bag of named entries."""
        return embedding_bag(self.entries, values.contiguous(), self.begins, mode="sum", per_sample_weights=self.share)


def named(marks: Bool[Tensor, "pair mark"], shares: Float[Tensor, "pair mark"] | None = None) -> tuple[Named, Named]:
    """The marks of each pair and the pairs of each mark, weighted by `shares`, if given."""
    pair, mark = marks.nonzero(as_tuple=True)
    share, by_mark = None if shares is None else shares[pair, mark], mark.argsort(stable=True)
    begins = [count.cumsum(0) - count for count in (marks.sum(1), marks.sum(0))]
    marked = Named(pair[by_mark], begins[1], None if share is None else share[by_mark])
    return Named(mark, begins[0], share), marked


@dataclass(frozen=True)
class VisibleKeys:
    """Every pair of a row and a key that it sees, with each head's attention."""

    row: Int[Tensor, " pair"]  # its row's index; ascending
    group: Int[Tensor, " row"]  # the group of documents that a row belongs to; ascending
    uniform: Float[Tensor, " pair"]  # a uniform head's attention; above 0, sums to 1 in a row
    attention: Float[Tensor, "pair head"]  # sums to 1 in a row
    marks: Bool[Tensor, "pair mark"]  # whether a rule names the key: the last verb, every noun

    @staticmethod
    def from_pairs(
        row: Int[Tensor, " pair"],
        group: Int[Tensor, " row"],
        uniform: Float[Tensor, " pair"],
        attention: Float[Tensor, "pair head"],
        marks: Bool[Tensor, "pair mark"],
    ) -> "VisibleKeys":
        """From pairs in any order; drops rows without pairs, and makes `uniform` and `attention` sum to 1 in a row."""
        place, order = (group[row] * len(group) + row).sort(stable=True)
        present, row = place.unique_consecutive(return_inverse=True)
        parts = (uniform[order][:, None], attention[order])
        uniform_share, attention_shares = (
            part / _summed(part, row, len(present)).clamp(min=TINY)[row] for part in parts
        )
        return VisibleKeys(row, present // max(len(group), 1), uniform_share[:, 0], attention_shares, marks[order])

    def half(self, parity: int) -> "VisibleKeys":
        """The rows of even (0) or odd (1) groups."""
        in_half = (self.group % 2 == parity)[self.row]
        parts = (self.uniform, self.attention, self.marks)
        return VisibleKeys.from_pairs(self.row[in_half], self.group, *(part[in_half] for part in parts))

    def having(self, marks: Sequence[int]) -> "VisibleKeys":
        """The same pairs with only these marks."""
        return replace(self, marks=self.marks[:, [*marks]])

    def stretches(self) -> "Iterator[VisibleKeys]":
        """Neighbouring rows of one group, few enough at a time to fit in the CPU's cache."""
        ends = torch.bincount(self.row, minlength=len(self.group)).cumsum(0).tolist()
        groups = self.group.tolist()
        first = begin = 0
        for row, end in enumerate(ends):
            last = row + 1 == len(ends)
            if last or groups[row + 1] != groups[row] or ends[row + 1] - begin > _STRETCH:
                pairs, group = slice(begin, end), self.group[first : row + 1]
                parts = (part[pairs] for part in (self.uniform, self.attention, self.marks))
                yield VisibleKeys(self.row[pairs] - first, group, *parts)
                begin, first = end, row + 1

    def by_row(self, values: Float[Tensor, "pair any"]) -> Float[Tensor, "row any"]:
        """Sums over each row's keys."""
        return _summed(values, self.row, len(self.group))

    def over_groups(self, values: Float[Tensor, "row head"]) -> Float[Tensor, "group head"]:
        """Sums over each group's rows."""
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


class _MixtureRows(NamedTuple):
    """Some rows of one group: each part's attention to each key, the parts of each row, and the heads' attention."""

    keys: VisibleKeys
    parts: Named  # the parts of each pair
    pairs: Named  # the pairs of each part
    has: Float[Tensor, "row part"]
    attention: Float[Tensor, "pair head"]

    def masses(self, weights: PartWeights) -> tuple[PartWeights, PartWeights]:
        """Each part's attention divided by its weight, and the divisor of the EM step (see `fit_mixture`)."""
        mixed = self.attention / self.parts.sums(weights)
        return self.pairs.sums(mixed), self.has.T @ (self.has @ weights).reciprocal_()


def fit_mixture(visible: VisibleKeys, *, tolerance: float = 5e-4, steps: int = 300) -> PartWeights:
    """Weights of the parts for each head, by EM (Dempster, Laird & Rubin 1977); the first part is uniform attention.

    They maximise sum A log(sum_k w_k p_k / sum_k w_k), with inner sums over the parts that a row has, and sum to 1.
    Because of the divisor the M step is a minorisation (Hunter 2004): w_k is the attention of part k, divided by the
    sum over its rows of 1 / (the weights of the row's parts). Every third step starts from an extrapolation of the two
    before (Varadhan & Roland 2008). A head is done once no part's share moves by more than `tolerance` in three steps.
    """
    n_parts, n_heads = visible.marks.shape[1] + 1, visible.attention.shape[1]
    fitted = visible.attention.new_full((n_parts, n_heads), 1 / n_parts)
    rows, going = [*_mixture_rows(visible)], torch.arange(n_heads, device=fitted.device)
    previous = torch.full_like(fitted, torch.inf)
    for _ in range(0, steps, 3):
        weights = fitted[:, going]
        once, share = _step(rows, weights)
        moving = (share - previous).abs().amax(0) > tolerance
        fitted[:, going] = once
        if not moving.all():
            going, weights, once, share = going[moving], weights[:, moving], once[:, moving], share[:, moving]
            rows = [some._replace(attention=some.attention[:, moving]) for some in rows]
        if not len(going):
            break
        previous = share
        twice, _ = _step(rows, once)
        fitted[:, going], _ = _step(rows, _farther(weights, once, twice))
    return fitted


def _step(rows: Sequence[_MixtureRows], weights: PartWeights) -> tuple[PartWeights, PartWeights]:
    """The next weights, and each part's share of the attention with the present ones."""
    had, could = torch.zeros_like(weights), torch.full_like(weights, _LEAST)
    for part in rows:
        gained, over = part.masses(weights)
        had, could = had.add_(gained), could.add_(over)
    new = (weights * had / could).clamp(min=_LEAST)
    return new / new.sum(0), weights * had / sum(len(part.has) for part in rows)


def _farther(start: PartWeights, once: PartWeights, twice: PartWeights) -> PartWeights:
    """Extrapolate two steps: where many more like them would lead (Varadhan & Roland 2008)."""
    way, turn = once - start, twice - 2 * once + start
    length = (way.norm(dim=0) / turn.norm(dim=0).clamp(min=_LEAST)).clamp(1, _FARTHEST)
    ahead = (start + 2 * length * way + length**2 * turn).maximum(_SHRINKAGE * twice)
    return ahead / ahead.sum(0)


def mixture_shares(visible: VisibleKeys, weights: PartWeights) -> Float[Tensor, "group part head"]:
    """Each group's attention by part, in rows: responsibilities summed over the group's attention."""
    totals = visible.attention.new_zeros(N_GROUPS, *weights.shape, dtype=torch.float64)
    for part in _mixture_rows(visible):
        totals[part.keys.group[0]] += weights * part.masses(weights)[0]
    return totals


def mixture_gain(visible: VisibleKeys, weights: PartWeights) -> Float[Tensor, "group head"]:
    """Each group's sum of KL(attention || uniform) - KL(attention || mixture), in nats."""
    gains = visible.attention.new_zeros(N_GROUPS, weights.shape[1], dtype=torch.float64)
    for part in _mixture_rows(visible):
        mixed = part.parts.sums(weights) / (part.has @ weights)[part.keys.row]
        gains[part.keys.group[0]] += (part.attention * (mixed / part.keys.uniform[:, None]).log()).sum(0)
    return gains


def _mixture_rows(visible: VisibleKeys) -> Iterator[_MixtureRows]:
    """Rows with the parts of a mixture: uniform attention, and each mark's."""
    for keys in visible.stretches():
        uniform = keys.uniform[:, None]
        parts = torch.cat([uniform, keys.marks * uniform], 1)
        total = keys.by_row(parts)
        has = (total > 0).to(parts)
        yield _MixtureRows(
            keys, *named(parts > 0, parts / torch.where(total > 0, total, 1)[keys.row]), has, keys.attention
        )


class _LogitRows(NamedTuple):
    """Some rows of one group, and the marks of their keys."""

    keys: VisibleKeys
    marks: Named  # the marks of each pair
    marked: Named  # the pairs of each mark

    @staticmethod
    def from_keys(visible: VisibleKeys) -> "list[_LogitRows]":
        return [_LogitRows(keys, *named(keys.marks)) for keys in visible.stretches()]

    def scored(self, weights: MarkWeights) -> tuple[Float[Tensor, "pair head"], ...]:
        """Each pair's score, exp(score) x uniform attention, and the sums of the latter by row."""
        score = self.marks.sums(weights).clamp_(-_LARGEST, _LARGEST)
        risen = score.exp().mul_(self.keys.uniform[:, None])
        return score, risen, self.keys.by_row(risen)


def fit_logit(
    visible: VisibleKeys, *, start: MarkWeights | None = None, penalty: float = 1e-4, tolerance: float = 5e-4
) -> MarkWeights:
    """One conditional logit per head: minimises mean cross-entropy per row + penalty / 2 x sum of squared weights.

    The penalty keeps the weights finite if a mark's keys get all attention. The fit begins at `start`, 0 by default. A
    head is done once a step promises to lower its value by less than `tolerance`, in nats per row.
    """
    n_rows, attention, parts = len(visible.group), visible.attention, _LogitRows.from_keys(visible)
    start = attention.new_zeros(visible.marks.shape[1], attention.shape[1]) if start is None else start
    targets = sum((rows.marked.sums(rows.keys.attention) for rows in parts), 0 * start)

    def objective(point: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        weights, target = point[active].T.contiguous(), targets[:, active]
        value, expected = torch.zeros_like(weights[0], dtype=torch.float64), torch.zeros_like(weights)
        for rows in parts:
            _, risen, total = rows.scored(weights)
            value += total.log().sum(0)
            expected += rows.marked.sums(risen.mul_(total.reciprocal_()[rows.keys.row]))
        value = (value - (target * weights).sum(0)) / n_rows + penalty / 2 * weights.square().sum(0)
        values, gradients = point.new_zeros(len(point)), torch.zeros_like(point)
        values[active] = value.to(point)
        gradients[active] = ((expected - target) / n_rows + penalty * weights).T
        return values, gradients

    inverse = _inverse_curvature(visible, parts, penalty)
    return minimise(objective, start.T.contiguous(), lambda gradient: gradient @ inverse, tolerance=tolerance).T


def _inverse_curvature(visible: VisibleKeys, parts: Sequence[_LogitRows], penalty: float) -> Float[Tensor, "mark mark"]:
    """The inverse curvature of the loss at weights of 0, the same for all heads."""
    n_marks = visible.marks.shape[1]
    none = visible.attention.new_zeros(n_marks, 1)
    curvature = none.new_zeros(n_marks, n_marks, dtype=torch.float64)
    for rows in parts:
        _, risen, _ = rows.scored(none)
        weighted = rows.keys.marks * risen
        mean = rows.keys.by_row(weighted)
        curvature += rows.marked.sums(weighted) - mean.T @ mean
    curvature = curvature / len(visible.group) + penalty * torch.eye(n_marks).to(curvature)
    return torch.cholesky_inverse(torch.linalg.cholesky(curvature)).to(none)


def logit_gain(visible: VisibleKeys, weights: MarkWeights) -> Float[Tensor, "group head"]:
    """Each group's sum of KL(attention || uniform) - KL(attention || p), in nats."""
    gains = weights.new_zeros(N_GROUPS, weights.shape[1], dtype=torch.float64)
    for rows in _LogitRows.from_keys(visible):
        score, _, total = rows.scored(weights)
        gains[rows.keys.group[0]] += (rows.keys.attention * (score - total.log()[rows.keys.row])).sum(0)
    return gains
