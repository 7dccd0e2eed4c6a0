"""Attention as a mixture of simple rules.

A rule attends to the keys it names as uniform attention would; the first part attends to all keys. In a row in which a
rule names no key, the others share its weight in proportion to their own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from interp.patterns.totals import N_GROUPS
from interp.patterns.visible_keys import Named, VisibleKeys, named

TOLERANCE, STEPS = 5e-4, 300  # of a head's attention; steps of EM
_FARTHEST, _KEPT, _LEAST = 32.0, 0.1, 1e-9
Weights = Float[Tensor, "part head"]


class _Rows(NamedTuple):
    """Some rows of one group, what each part gives each key, which parts a row has, and the heads' attention."""

    keys: VisibleKeys
    parts: Named  # of a pair
    pairs: Named  # of a part
    has: Float[Tensor, "row part"]
    attention: Float[Tensor, "pair head"]

    def taken(self, weights: Weights) -> tuple[Weights, Weights]:
        """What attention each part has, over its weight; and in how many rows it could have had it."""
        mixed = self.attention / self.parts.sums(weights)
        return self.pairs.sums(mixed), self.has.T @ (self.has @ weights).reciprocal_()


def fit(visible: VisibleKeys, *, tolerance: float = TOLERANCE, steps: int = STEPS) -> Weights:
    """Weights of the parts for each head, by EM (Dempster, Laird & Rubin 1977); the first part is uniform attention.

    They maximise sum A log(sum_k w_k p_k / sum_k w_k), with inner sums over the parts that a row has, and add up to 1.
    The divisor makes the second step a minorisation (Hunter 2004): w_k is the attention of part k, divided by the sum
    over its rows of 1 / (the weights of the row's parts). Two of each three steps extrapolate the third (Varadhan &
    Roland 2008). A head is done once no part's share of its attention moves by more than `tolerance` in three steps.
    """
    n_parts, n_heads = visible.marks.shape[1] + 1, visible.attention.shape[1]
    fitted = visible.attention.new_full((n_parts, n_heads), 1 / n_parts)
    rows, going = [*_parts(visible)], torch.arange(n_heads, device=fitted.device)
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


def _step(rows: Sequence[_Rows], weights: Weights) -> tuple[Weights, Weights]:
    """The next weights, and what share of the attention each part has with these."""
    had, could = torch.zeros_like(weights), torch.full_like(weights, _LEAST)
    for part in rows:
        gained, over = part.taken(weights)
        had, could = had.add_(gained), could.add_(over)
    new = (weights * had / could).clamp(min=_LEAST)
    return new / new.sum(0), weights * had / sum(len(part.has) for part in rows)


def _farther(start: Weights, once: Weights, twice: Weights) -> Weights:
    """Where two steps lead to, if many more go on as they do."""
    way, turn = once - start, twice - 2 * once + start
    length = (way.norm(dim=0) / turn.norm(dim=0).clamp(min=_LEAST)).clamp(1, _FARTHEST)
    ahead = (start + 2 * length * way + length**2 * turn).maximum(_KEPT * twice)
    return ahead / ahead.sum(0)


def shares(visible: VisibleKeys, weights: Weights) -> Float[Tensor, "group part head"]:
    """Each group's attention, part by part: of how many rows each part has all (mean responsibilities, summed)."""
    totals = visible.attention.new_zeros(N_GROUPS, *weights.shape, dtype=torch.float64)
    for part in _parts(visible):
        totals[part.keys.group[0]] += weights * part.taken(weights)[0]
    return totals


def closer(visible: VisibleKeys, weights: Weights) -> Float[Tensor, "group head"]:
    """Each group's sum of KL(attention || uniform) - KL(attention || mixture), in nats."""
    gains = visible.attention.new_zeros(N_GROUPS, weights.shape[1], dtype=torch.float64)
    for part in _parts(visible):
        mixed = part.parts.sums(weights) / (part.has @ weights)[part.keys.row]
        gains[part.keys.group[0]] += (part.attention * (mixed / part.keys.uniform[:, None]).log()).sum(0)
    return gains


def _parts(visible: VisibleKeys) -> Iterator[_Rows]:
    """Uniform attention and every mark's, row by row."""
    for keys in visible.stretches():
        uniform = keys.uniform[:, None]
        parts = torch.cat([uniform, keys.marks * uniform], 1)
        total = keys.by_row(parts)
        has = (total > 0).to(parts)
        yield _Rows(keys, *named(parts > 0, parts / torch.where(total > 0, total, 1)[keys.row]), has, keys.attention)
