"""Where does a head attend, in positions? Previous token, fixed offsets, the first token, copies, distance.

Each measure is a mean over eligible rows; definitions and baselines are in the table of `docs/measures/position.md`.
Offsets are key - query, so the previous token is -1.

Both readings come from one set of values a row: without the first position's attention f, a row's mass is divided by
1 - f, and so is all that is linear in it; its entropy follows from the same sum of -A log A.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.rows import CHUNK, REAL, TINY, Pattern, Rows, Sink, argmax, entropies
from interp.patterns.totals import Totals

OFFSETS = (-5, -4, -3, -2, -1, 1, 2, 3)
MODE_RANGE = 16  # the fixed offset of a positional head is looked for among -16..16

Scores = Float[Tensor, "prompt head measure"]


def offset_name(offset: int) -> str:
    """The measure's name: the nearest neighbours have their own."""
    return {-1: "previous-token", 1: "next-token"}.get(offset, f"offset:{offset}")


def offsets(causal: bool) -> tuple[int, ...]:
    """The offsets that a stack can show: a causal one sees no key after the query."""
    return tuple(offset for offset in OFFSETS if offset < 0 or not causal)


_OTHERS = ("first-token", "self", "duplicate-token", "distance", "entropy")  # behind the offsets


def measures(causal: bool) -> list[str]:
    """Names of the measures in the order in which `score` returns them."""
    return [*map(offset_name, offsets(causal)), *_OTHERS]


FIRST, SELF, COPIES, DISTANCE, ENTROPY = (at - len(_OTHERS) for at in range(len(_OTHERS)))
"""The columns of the measures that are no offset, from the end."""


@dataclass(frozen=True)
class Sums:
    """Sums over eligible rows, how many rows they are, and the sums' mean and variance under permuted keys."""

    scores: Scores
    counts: Scores
    null_mean: Scores
    null_variance: Scores


def score(pattern: Pattern, rows: Rows, *, causal: bool, sink_removed: bool = False) -> tuple[Scores, Scores]:
    """Sums over eligible rows, and how many rows they are, for each prompt, head and measure.

    With `sink_removed` the first position is taken off and the rest renormalised; rows that keep less than 0.01 of
    their mass, and rows whose key would be the first position, are not eligible.
    """
    sums = Questions(rows, causal=causal).read(pattern)["removed" if sink_removed else "kept"]
    return sums.scores, sums.counts


class Questions:
    """What every measure reads of a batch's rows: worked out once, applied to any number of patterns."""

    def __init__(self, rows: Rows, *, causal: bool):
        self.rows, self.offsets = rows, offsets(causal)
        key, query = (torch.arange(n, device=rows.ids.device) for n in rows.visible.shape[:0:-1])
        self.distance = (query[:, None] - key).abs()
        self.real = rows.visible.any(1)
        special = (self.real & ~rows.content)[:, None, 1:]  # behind the first position
        self.special = (
            bool((rows.visible[..., 1:] & special & rows.scored[..., None]).any()) if special.any() else False
        )
        copies = (rows.ids[:, :, None] == rows.ids[:, None, :]) & rows.content[:, None, :] & rows.visible
        self.pairs = copies.tril_(-1).nonzero(as_tuple=True)  # few: looked up one by one
        self.of_first = copies[..., 0]  # whether the first position is a copy
        self.seen = _Seen.from_rows(rows, self.distance)
        self.asked = {sink: _Asked.from_questions(self, sink == "removed") for sink in ("kept", "removed")}

    def read(self, pattern: Pattern, sink: Sink | None = None) -> dict[str, Sums]:
        """The sums of both readings; `sink` is the pattern's own, where it is known."""
        sink = Sink.of(pattern) if sink is None else sink
        values, far, inner, outer = self._values(pattern, sink)
        raw = self.asked["kept"].sums(values, inner.add_first(sink.first), outer.add_first(sink.first), None)
        self._remove_sink(values, far, sink)
        removed = self.asked["removed"].sums(values, inner.scaled(sink.scale), outer.scaled(sink.scale), sink.kept)
        return {"kept": raw, "removed": removed}

    def _values(
        self, pattern: Pattern, sink: Sink
    ) -> tuple[Float[Tensor, "measure prompt head query"], Float[Tensor, "prompt head query"], "_Moments", "_Moments"]:
        """What every row says on every measure (of entropy -sum A log A); its distances without the first key.

        And each row's mass and squares over content keys, and over all keys, the first position apart.
        """
        by_row = pattern.shape[:-1]
        values, far = pattern.new_zeros(len(self.offsets) + len(_OTHERS), *by_row), pattern.new_empty(by_row)
        squares, inner_mass, inner_squares = (pattern.new_empty(by_row) for _ in range(3))
        matrices, size = pattern.flatten(0, 1), max(1, CHUNK // pattern[0, 0].numel())
        for begin in range(0, len(matrices), size):
            chunk = slice(begin, begin + size)
            self._near(matrices[chunk], values.flatten(1, 2)[:, chunk])
            values[ENTROPY].flatten(0, 1)[chunk] = entropies(matrices[chunk])
            far.flatten(0, 1)[chunk] = self._distances(matrices[chunk])
            squares.flatten(0, 1)[chunk] = _squares(matrices[chunk, :, 1:])
            if self.special:
                content = self._content(matrices[chunk], begin, pattern.shape[1])
                inner_mass.flatten(0, 1)[chunk], inner_squares.flatten(0, 1)[chunk] = content.sum(-1), _squares(content)
        values[FIRST], values[COPIES] = sink.first, self._on_copies(pattern)
        values[DISTANCE] = far + sink.first * self.distance[:, 0]
        outer = _Moments(sink.rest, squares, self.real[:, 0])
        first = self.rows.content[:, 0]
        inner = _Moments(inner_mass, inner_squares, first) if self.special else replace(outer, first=first)
        return values, far, inner, outer

    def _near(self, matrices: Float[Tensor, "matrix query key"], values: Float[Tensor, "measure matrix query"]) -> None:
        """Fill in attention at fixed offsets."""
        for offset, value in zip((*self.offsets, 0), (*values[:FIRST], values[SELF]), strict=True):
            diagonal, start = matrices.diagonal(offset, -2, -1), max(0, -offset)
            value[..., start : start + diagonal.shape[-1]] = diagonal

    def _distances(self, matrices: Float[Tensor, "matrix query key"]) -> Float[Tensor, "matrix query"]:
        """sum A·distance without the first key: taking it off a sum that it makes up would leave rounding."""
        by_query, distance = matrices.transpose(0, 1), self.distance.to(matrices)
        distance[:, 0] = 0
        return torch.bmm(by_query, distance[..., None])[..., 0].T

    def _content(
        self, matrices: Float[Tensor, "matrix query key"], first: int, n_heads: int
    ) -> Float[Tensor, "matrix query rest"]:
        """Attention to content keys behind the first position; `first` is the number of the first matrix."""
        number = torch.arange(first, first + len(matrices), device=matrices.device)
        return matrices[..., 1:] * self.rows.content[number // n_heads, None, 1:]

    def _on_copies(self, pattern: Pattern) -> Float[Tensor, "prompt head query"]:
        """Mass on earlier copies of each token."""
        prompt, query, key = self.pairs
        n_prompts, n_heads, n_queries, _ = pattern.shape
        mass = pattern.new_zeros(n_prompts * n_queries, n_heads)
        mass.index_add_(0, prompt * n_queries + query, pattern[prompt, :, query, key])
        return mass.view(n_prompts, n_queries, n_heads).transpose(1, 2)

    def _remove_sink(
        self, values: Float[Tensor, "measure prompt head query"], far: Float[Tensor, "prompt head query"], sink: Sink
    ) -> None:
        """Turn the rows' values into those without the first position, the rest renormalised."""
        first, scale, entropy = sink.first, sink.scale, values[ENTROPY]
        values[COPIES] -= first * self.of_first[:, None]
        values[DISTANCE] = far
        entropy -= first.clamp(min=TINY).log().mul_(-first)
        values *= scale
        # -sum (A/m) log (A/m) = (-sum A log A) / m + log m, where m = 1 / scale
        entropy -= torch.where(scale > 0, scale, 1).log()


@dataclass(frozen=True)
class _Moments:
    """Sum and sum of squares of each row's attention, over some keys."""

    mass: Float[Tensor, "prompt head query"]
    squares: Float[Tensor, "prompt head query"]
    first: Bool[Tensor, " prompt"]  # whether the first position, not summed here, is such a key

    def add_first(self, attention: Float[Tensor, "prompt head query"]) -> "_Moments":
        counted = attention * self.first[:, None, None]
        return _Moments(self.mass + counted, self.squares + counted.square(), self.first)

    def scaled(self, scale: Float[Tensor, "prompt head query"]) -> "_Moments":
        return _Moments(self.mass * scale, self.squares * scale.square(), self.first)


@dataclass(frozen=True)
class _Seen:
    """What a row sees: how many content keys, how many keys, and these keys' distances and squared distances added up.

    Each is `prompt query`; with the first position among the keys, and without.
    """

    every: tuple[Float[Tensor, "prompt query"], ...]
    without_first: tuple[Float[Tensor, "prompt query"], ...]

    @staticmethod
    def from_rows(rows: Rows, distance: Int[Tensor, "query key"]) -> "_Seen":
        visible, content = (each.to(REAL) for each in (rows.visible, rows.content))
        far = distance.to(visible)
        of_key = torch.stack([torch.ones_like(far), far, far.square()], -1)  # query key sum
        of_first = torch.cat(
            [content[:, :1, None].expand(-1, len(far), 1), of_key[:, 0].expand(len(content), -1, 3)], 2
        )
        rest = visible[..., 1:]
        n = rest @ content[:, 1:, None]
        sums = torch.cat([n, torch.bmm(rest.transpose(0, 1), of_key[:, 1:]).transpose(0, 1)], -1)
        return _Seen((sums + visible[..., :1] * of_first).unbind(-1), sums.unbind(-1))


@dataclass(frozen=True)
class _Asked:
    """One reading's eligible rows, and what a row's sums count for; axes `prompt query measure`.

    eligible        1 where a row counts in a measure
    weight          what its value is multiplied by: eligible, for entropy over the logarithm of the visible keys
    mean, variance  what permuted keys take of the row's mass and of its spread
    n, n_visible    prompt query: how many content keys a row sees, and how many keys
    """

    eligible: Float[Tensor, "prompt query measure"]
    weight: Float[Tensor, "prompt query measure"]
    mean: Float[Tensor, "prompt query measure"]
    variance: Float[Tensor, "prompt query measure"]
    n: Float[Tensor, "prompt query"]
    n_visible: Float[Tensor, "prompt query"]

    @staticmethod
    def from_questions(questions: Questions, sink_removed: bool) -> "_Asked":
        rows = questions.rows
        content, first = rows.content.clone(), rows.scored.clone()
        first[:, 0] = False
        prompt, query, key = questions.pairs
        if sink_removed:  # the first position is no longer there
            content[:, 0], first[:] = False, False
            prompt, query = prompt[key > 0], query[key > 0]
        n_prompts, n_queries, _ = rows.visible.shape
        n, n_visible, far, farther = questions.seen.without_first if sink_removed else questions.seen.every
        n_copies = torch.bincount(prompt * n_queries + query, minlength=n_prompts * n_queries)
        n_copies = n_copies.view(n_prompts, n_queries).to(REAL)
        near = [_eligible(rows.scored, content, offset) for offset in (*questions.offsets, 0)]
        others = [first, near.pop(), (n_copies > 0) & rows.scored, rows.scored, rows.scored & (n_visible >= 2)]
        eligible = torch.stack([*near, *others], -1).to(REAL)
        weight = eligible.clone()
        weight[..., ENTROPY] /= n_visible.clamp(min=2).log()
        mean, variance = _null_factors(eligible, n_copies, (n, n_visible, far, farther))
        return _Asked(eligible, weight, mean, variance, n, n_visible)

    def sums(self, values: Tensor, inner: _Moments, outer: _Moments, is_kept: Tensor | None) -> Sums:
        """Sums over rows; without the sink, over the rows that are kept, in which alone values are not 0.

        `values` are `measure prompt head query`, `inner` and `outer` the rows' moments over content keys and over all.
        """
        weight = self.weight.to(values)
        scores = (values @ weight.permute(2, 0, 1)[..., None])[..., 0].permute(1, 2, 0)
        eligible = self.eligible.to(values)
        counts = eligible.sum(1)[:, None].expand_as(scores) if is_kept is None else is_kept.to(values) @ eligible
        (mean, variance), around = self._permuted(inner, self.n), self._permuted(outer, self.n_visible)
        for moments, outside in zip((mean, variance), around, strict=True):
            for column in (FIRST, DISTANCE):  # to which special tokens are keys as others are
                moments[..., column] = outside[..., column]
            moments[..., ENTROPY] = torch.nan
        return Sums(scores, counts, mean, variance)

    def _permuted(self, moments: _Moments, n: Tensor) -> tuple[Scores, Scores]:
        mean, variance = self.mean.to(moments.mass), self.variance.to(moments.mass)
        return moments.mass @ mean, nulls.spread(moments.mass, moments.squares, n[:, None]) @ variance


def _eligible(
    scored: Bool[Tensor, "prompt query"], content: Bool[Tensor, "prompt key"], offset: int
) -> Bool[Tensor, "prompt query"]:
    """Rows whose key at the offset is there and no special token."""
    eligible = torch.zeros_like(scored)
    start, stop = max(0, -offset), min(scored.shape[1], content.shape[1] - offset)
    if start < stop:
        eligible[:, start:stop] = scored[:, start:stop] & content[:, start + offset : stop + offset]
    return eligible


def _null_factors(eligible: Tensor, n_copies: Tensor, counts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """What permuted keys take of each row's mass and spread; of entropy, which no order changes, nothing is said."""
    n, n_visible, far, farther = counts
    mean, variance = (each[..., None] * eligible for each in nulls.on_set(torch.ones_like(n), n))
    for column, factors in (
        (FIRST, nulls.on_set(torch.ones_like(n), n_visible)),
        (COPIES, nulls.on_set(n_copies, n)),
        (DISTANCE, nulls.weighted(far, farther, n_visible)),
    ):
        mean[..., column], variance[..., column] = (each * eligible[..., column] for each in factors)
    return mean, variance


def _squares(matrices: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    return torch.linalg.vector_norm(matrices, dim=-1).square_()


class Modes:
    """How many rows of each head look hardest at each offset; `finish` counts those at the head's favourite one."""

    def __init__(self, totals: Totals):
        self.totals = totals

    @staticmethod
    def empty(n_heads: int) -> "Modes":
        """Nothing read yet."""
        return Modes(Totals.empty(n_heads, 2 * MODE_RANGE + 1))

    def add(self, groups: Int[Tensor, " prompt"], pattern: Pattern, rows: Rows) -> None:
        """Add a batch of patterns."""
        self.totals.add(groups, *argmax_offsets(pattern, rows))

    def of(self, groups: Bool[Tensor, " group"]) -> "Modes":
        """The counts of some groups, whose favourite offset is then these groups' own."""
        return Modes(self.totals.of(groups))

    def finish(self) -> Totals:
        """One measure: the rows at the favourite offset, of all rows."""
        best = self.totals.scores.sum(0).argmax(-1)
        pick = best[None, :, None].expand(len(self.totals.scores), -1, 1)
        return Totals(self.totals.scores.gather(-1, pick), self.totals.weights[..., :1], self.totals.rows[..., :1])


def argmax_offsets(pattern: Pattern, rows: Rows) -> tuple[Scores, Scores]:
    """How many rows look hardest at each offset in -16..16, and how many rows there are (Voita 2019)."""
    offset = argmax(pattern) - torch.arange(pattern.shape[-2], device=pattern.device)
    near = (offset.abs() <= MODE_RANGE) & rows.scored[:, None]
    bins = (offset + MODE_RANGE).clamp(0, 2 * MODE_RANGE)
    counts = pattern.new_zeros(*pattern.shape[:2], 2 * MODE_RANGE + 1)
    counts.scatter_add_(-1, bins, near.to(pattern.dtype))
    n_rows = rows.scored.sum(-1).to(pattern.dtype)[:, None, None].expand_as(counts)
    return counts, n_rows
