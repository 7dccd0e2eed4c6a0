"""Which properties of a key decide how much attention it gets? A conditional logit of attention over visible keys.

McFadden (1974): in each row p(key) is a softmax of scores, and a score adds up one weight for each mark of the key.
Without any weight p is uniform attention.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.patterns.totals import N_GROUPS
from interp.patterns.visible_keys import VisibleKeys
from interp.probes.lbfgs import minimise

PENALTY, TOLERANCE = 1e-4, 5e-4  # half the penalty a squared weight; nats a row
_LARGEST = 80.0  # of a score: its exponential is still a number in float32
Weights = Float[Tensor, "mark head"]


class _Rows(NamedTuple):
    """Some rows of one group, and exp(score) of their keys: uniform attention times the exponential of all weights."""

    marks: Float[Tensor, "pair mark"]
    score: Float[Tensor, "pair head"]
    risen: Float[Tensor, "pair head"]
    total: Float[Tensor, "row head"]
    row: Int[Tensor, " pair"]
    pairs: slice
    group: int


def _scored(seen: VisibleKeys, weights: Weights) -> Iterator[_Rows]:
    for pairs, rows, group in seen.stretches():
        marks, row = seen.marks[pairs].to(weights), seen.row[pairs] - rows.start
        score = (marks @ weights).clamp_(-_LARGEST, _LARGEST)
        risen = score.exp() * seen.uniform[pairs, None]
        total = risen.new_zeros(rows.stop - rows.start, risen.shape[1]).index_add_(0, row, risen)
        yield _Rows(marks, score, risen, total, row, pairs, group)


def fit(
    seen: VisibleKeys, *, start: Weights | None = None, penalty: float = PENALTY, tolerance: float = TOLERANCE
) -> Weights:
    """One conditional logit a head: the minimum of mean cross-entropy a row + penalty / 2 x sum of squared weights.

    Args:
        seen: rows that count alike.
        start: where to begin; 0 by default.
        penalty: keeps finite the weight of a key that gets all attention.
        tolerance: a head rests once a step promises to lower its value by less, in nats.
    """
    n_rows, attention = len(seen.group), seen.attention
    start = attention.new_zeros(seen.marks.shape[1], attention.shape[1]) if start is None else start
    wanted = sum((seen.marks[pairs].to(attention).T @ attention[pairs] for pairs, *_ in seen.stretches()), 0 * start)

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        weights = point.T.contiguous()
        value, given = torch.zeros_like(weights[0], dtype=torch.float64), torch.zeros_like(weights)
        for rows in _scored(seen, weights):
            value += rows.total.log().sum(0)
            given += rows.marks.T @ (rows.risen * rows.total.reciprocal()[rows.row])
        value = (value - (wanted * weights).sum(0)) / n_rows + penalty / 2 * weights.square().sum(0)
        return value.to(point), ((given - wanted) / n_rows + penalty * weights).T

    inverse = _inverse_curvature(seen, penalty)
    return minimise(objective, start.T.contiguous(), lambda gradient: gradient @ inverse, tolerance=tolerance).T


def _inverse_curvature(seen: VisibleKeys, penalty: float) -> Float[Tensor, "mark mark"]:
    """Of the loss at weights of 0, which is the same for all heads."""
    none = seen.attention.new_zeros(seen.marks.shape[1], 1)
    found = none.new_zeros(len(none), len(none), dtype=torch.float64)
    for rows in _scored(seen, none):
        given = rows.marks * rows.risen
        mean = given.new_zeros(len(rows.total), len(none)).index_add_(0, rows.row, given)
        found += rows.marks.T @ given - mean.T @ mean
    found = found / len(seen.group) + penalty * torch.eye(len(none)).to(found)
    return torch.linalg.inv(found).to(none)


def closer(seen: VisibleKeys, weights: Weights) -> Float[Tensor, "group head"]:
    """Each group's sum of KL(attention || uniform) - KL(attention || p), in nats."""
    found = weights.new_zeros(N_GROUPS, weights.shape[1], dtype=torch.float64)
    for rows in _scored(seen, weights):
        found[rows.group] += (seen.attention[rows.pairs] * (rows.score - rows.total.log()[rows.row])).sum(0)
    return found
