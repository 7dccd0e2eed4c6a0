"""Which properties of a key decide how much attention it gets? A conditional logit over visible keys (McFadden 1974).

In each row p(key) is a softmax of scores, and a score adds up one weight for each mark of the key. Without any weight p
is uniform attention.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from interp.patterns.totals import N_GROUPS
from interp.patterns.visible_keys import Named, VisibleKeys, named
from interp.probes.lbfgs import minimise

PENALTY, TOLERANCE = 1e-4, 5e-4  # half the penalty a squared weight; nats a row
_LARGEST = 80.0  # of a score: its exponential is still a number in float32
Weights = Float[Tensor, "mark head"]


class _Rows(NamedTuple):
    """Some rows of one group, and the marks of their keys."""

    keys: VisibleKeys
    marks: Named  # of a pair
    marked: Named  # pairs, of a mark

    def scored(self, weights: Weights) -> tuple[Float[Tensor, "pair head"], ...]:
        """Of each pair its score and exp(score) x uniform attention, and the sums of the latter by row."""
        score = self.marks.sums(weights).clamp_(-_LARGEST, _LARGEST)
        risen = score.exp().mul_(self.keys.uniform[:, None])
        return score, risen, self.keys.by_row(risen)


def _rows(visible: VisibleKeys) -> list[_Rows]:
    return [_Rows(keys, *named(keys.marks)) for keys in visible.stretches()]


def fit(
    visible: VisibleKeys, *, start: Weights | None = None, penalty: float = PENALTY, tolerance: float = TOLERANCE
) -> Weights:
    """One conditional logit a head: the minimum of mean cross-entropy a row + penalty / 2 x sum of squared weights.

    Args:
        seen: rows that count alike.
        start: where to begin; 0 by default.
        penalty: keeps finite the weight of a key that gets all attention.
        tolerance: a head rests once a step promises to lower its value by less, in nats.
    """
    n_rows, attention, parts = len(visible.group), visible.attention, _rows(visible)
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


def _inverse_curvature(visible: VisibleKeys, parts: Sequence[_Rows], penalty: float) -> Float[Tensor, "mark mark"]:
    """Of the loss at weights of 0, which is the same for all heads."""
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


def closer(visible: VisibleKeys, weights: Weights) -> Float[Tensor, "group head"]:
    """Each group's sum of KL(attention || uniform) - KL(attention || p), in nats."""
    gains = weights.new_zeros(N_GROUPS, weights.shape[1], dtype=torch.float64)
    for rows in _rows(visible):
        score, _, total = rows.scored(weights)
        gains[rows.keys.group[0]] += (rows.keys.attention * (score - total.log()[rows.keys.row])).sum(0)
    return gains
