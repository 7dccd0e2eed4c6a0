"""Of which simple rules is a head's attention a mixture?

A rule looks at the keys it names, each as uniform attention would; the first part looks at all of them. In a row in
which a rule names no key the others take its place in proportion to their weights, as a softmax lets them.
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
    """Some rows of one group: what each part gives each key, which parts a row has, and the heads' attention."""

    parts: Named  # of a pair
    pairs: Named  # of a part
    has: Float[Tensor, "row part"]
    attention: Float[Tensor, "pair head"]
    group: int

    def taken(self, weights: Weights) -> tuple[Weights, Weights]:
        """What attention each part has, over its weight; and in how many rows it could have had it."""
        mixed = self.attention / self.parts.sums(weights)
        return self.pairs.sums(mixed), self.has.T @ (self.has @ weights).reciprocal_()


def fit(seen: VisibleKeys, *, tolerance: float = TOLERANCE, steps: int = STEPS) -> Weights:
    """Weights of the parts for each head, by EM (Dempster, Laird & Rubin 1977); the first part is uniform attention.

    They maximise sum A log(sum_k w_k p_k / sum_k w_k), the inner sums over the parts that a row has, and add up to 1.
    The divisor makes the second step a minorisation (Hunter 2004): w_k is the attention that part k has, by the sum
    over its rows of 1 / (the weights of what the row has). Of each three steps the first two say how far the third
    goes ahead (Varadhan & Roland 2008).

    Args:
        seen: rows that count alike.
        tolerance: a head rests once no part's share of its attention moves more than this in three steps.
        steps: at most.
    """
    n_parts, n_heads = seen.marks.shape[1] + 1, seen.attention.shape[1]
    found = seen.attention.new_full((n_parts, n_heads), 1 / n_parts)
    rows, going = [*_parts(seen)], torch.arange(n_heads, device=found.device)
    before = torch.full_like(found, torch.inf)
    for _ in range(0, steps, 3):
        weights = found[:, going]
        once, share = _step(rows, weights)
        moving = (share - before).abs().amax(0) > tolerance
        found[:, going] = once
        if not moving.all():
            going, weights, once, share = going[moving], weights[:, moving], once[:, moving], share[:, moving]
            rows = [some._replace(attention=some.attention[:, moving]) for some in rows]
        if not len(going):
            break
        before = share
        twice, _ = _step(rows, once)
        found[:, going], _ = _step(rows, _farther(weights, once, twice))
    return found


def _step(rows: Sequence[_Rows], weights: Weights) -> tuple[Weights, Weights]:
    """The next weights, and what share of the attention each part has with these."""
    had, could = torch.zeros_like(weights), torch.full_like(weights, _LEAST)
    for some in rows:
        of, over = some.taken(weights)
        had, could = had.add_(of), could.add_(over)
    new = (weights * had / could).clamp(min=_LEAST)
    return new / new.sum(0), weights * had / sum(len(some.has) for some in rows)


def _farther(start: Weights, once: Weights, twice: Weights) -> Weights:
    """Where two steps lead to, if many more go on as they do."""
    way, turn = once - start, twice - 2 * once + start
    length = (way.norm(dim=0) / turn.norm(dim=0).clamp(min=_LEAST)).clamp(1, _FARTHEST)
    found = (start + 2 * length * way + length**2 * turn).maximum(_KEPT * twice)
    return found / found.sum(0)


def shares(seen: VisibleKeys, weights: Weights) -> Float[Tensor, "group part head"]:
    """Each group's attention, part by part: of how many rows each part has all (mean responsibilities, summed)."""
    found = seen.attention.new_zeros(N_GROUPS, *weights.shape, dtype=torch.float64)
    for some in _parts(seen):
        found[some.group] += weights * some.taken(weights)[0]
    return found


def closer(seen: VisibleKeys, weights: Weights) -> Float[Tensor, "group head"]:
    """Each group's sum of KL(attention || uniform) - KL(attention || mixture), in nats."""
    found = seen.attention.new_zeros(N_GROUPS, weights.shape[1], dtype=torch.float64)
    for (pairs, rows, group), some in zip(seen.stretches(), _parts(seen), strict=True):
        row = seen.row[pairs] - rows.start
        mixed = some.parts.sums(weights) / (some.has @ weights)[row]
        found[group] += (some.attention * (mixed / seen.uniform[pairs, None]).log()).sum(0)
    return found


def _parts(seen: VisibleKeys) -> Iterator[_Rows]:
    """Uniform attention and every mark's, row by row."""
    for pairs, rows, group in seen.stretches():
        uniform, row = seen.uniform[pairs, None], seen.row[pairs] - rows.start
        parts = torch.cat([uniform, seen.marks[pairs] * uniform], 1)
        total = parts.new_zeros(rows.stop - rows.start, parts.shape[1]).index_add_(0, row, parts)
        has = (total > 0).to(parts)
        yield _Rows(*named(parts > 0, parts / torch.where(total > 0, total, 1)[row]), has, seen.attention[pairs], group)
