"""Do heads attend from words of one tag to words of another more than distances alone predict?

Lift x -> y is the mass from words tagged x to words tagged y, divided by the mass expected if attention were uniform
over the visible pieces within each bin of distances: sum over bins of (mass in the bin x share of y among the pieces
in the bin). 1 means that the tag makes no difference; a uniform head has lift 1 exactly.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.nulls import Null
from interp.patterns.rows import CHUNK, REAL, Pattern, rows_at
from interp.patterns.totals import N_GROUPS, Totals, filled

# Bins begin at these distances. Before and after are separate bins, so that a head that attends to the next token,
# whatever it is, shows no preference in a bidirectional stack.
_EDGES = (1, 2, 3, 4, 5, 7, 10, 16, 32)
# The null uses the bins of `nulls.distance_bin`; these finer bins can be merged into either.
_FINE = (1, 2, 3, 4, 5, 7, 8, 10, 16, 32, 64, 128)

# A uniform head gives each key more in a row with few keys, so shares weight a row's keys as that head does; a head at
# a fixed offset weights all rows equally. The two agree only among rows that see equally many keys. So we compare rows
# with rows that see about as many.
_COARSE = (10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 256)
_COARSE_BOTH = (16, 32, 64, 128)  # in a bidirectional stack: all rows of a text see the same number
_EDGE = 8  # rows this near to an end of their text form their own groups: heads attend differently there
_NOTHING = 1e-6  # least expected mass per word
_SUMS = {"given": 1, "rows": 1, "mass": 3, "keys": 3}  # of `TagTotals`, and how many of its axes are `filled` together
_MOST_ODDS, _STEPS = 20.0, 40  # bounds of log-odds, and bisection steps


def stratum_of(visible: Bool[Tensor, "prompt query key"], *, causal: bool) -> Int[Tensor, "prompt query"]:
    """The group of rows that each row is compared with: by number of visible keys, exact near either end of a text.

    A bidirectional stack's first and last rows see as many keys as others, but none on one side.
    """
    n_seen = visible.sum(-1)
    edges = torch.tensor(_COARSE if causal else _COARSE_BOTH, device=visible.device)
    stratum = torch.bucketize(n_seen, edges) + (_EDGE if causal else 2 * _EDGE)
    n_before = n_seen
    if not causal:
        n_after, n_before = visible.triu().sum(-1), visible.tril().sum(-1)
        stratum = torch.where(n_after <= _EDGE, n_after.clamp(min=1) + _EDGE - 1, stratum)
    return torch.where(n_before <= _EDGE, n_before.clamp(min=1) - 1, stratum)


class Bins:
    """Bins of distances on either side of the query; a causal stack has one side."""

    def __init__(self, *, causal: bool):
        sides = (-1,) if causal else (-1, 1)
        self.fine = [(side, at) for side in sides for at in _FINE]
        self.lift = _grouping([(side, sum(at >= edge for edge in _EDGES)) for side, at in self.fine])
        self.null = _grouping([(side, int(nulls.distance_bin(torch.tensor(min(at, 128))))) for side, at in self.fine])


def _grouping(labels: Sequence[tuple[int, int]]) -> Float[Tensor, "fine bin"]:
    """A matrix that sums fine bins with one label."""
    names = list(dict.fromkeys(labels))
    return torch.tensor([[label == name for name in names] for label in labels], dtype=REAL)


@dataclass(frozen=True)
class Asking:
    """The rows of a batch whose words have one of the source tags."""

    prompt: Int[Tensor, " row"]
    query: Int[Tensor, " row"]
    source: Int[Tensor, " row"]  # index of the word's tag among the sources
    weight: Float[Tensor, " row"]  # 1 / pieces of the word: averages its rows
    n_tags: int  # how many tags are measured


@dataclass(frozen=True)
class Sides:
    """The two sides of lifts, row by row, over keys that are pieces of other words."""

    to_tag: Float[Tensor, "row head tag"]
    in_bin: Float[Tensor, "row head fine"]
    squares: Float[Tensor, "row head null"]  # sums of squared attention in the null's bins
    keys: Float[Tensor, "row any_tag fine"]  # how many keys of each tag; the last entry is all tags
    group: Float[Tensor, "fine null"]  # maps fine bins to the null's bins

    def permuted(self) -> tuple[Float[Tensor, "row head tag"], Float[Tensor, "row head tag"]]:
        """Mean and variance of `to_tag` when each row's keys are permuted within their bins."""
        mass, keys = self.in_bin @ self.group, self.keys @ self.group
        n, of_tag = keys[:, -1:], keys[:, :-1]
        of_mass, of_spread = nulls.on_set(of_tag, n)
        return mass @ of_mass.transpose(1, 2), nulls.spread(mass, self.squares, n) @ of_spread.transpose(1, 2)


def tag_sides(
    bins: Bins,
    pattern: Pattern,
    allowed: Bool[Tensor, "prompt query key"],
    tags: Int[Tensor, "prompt key"],
    asking: Asking,
) -> tuple[Sides, Sides]:
    """Rows' attention to `allowed` keys, by tag (-1 for none) and distance: with the first position, and without.

    We add the first position to the reading with it, instead of subtracting it from the other.
    """
    query, key = (torch.arange(n, device=tags.device) for n in allowed.shape[1:])
    offset = key - query[:, None]
    nearest = torch.bucketize(offset.abs(), torch.tensor(_FINE, device=tags.device), right=True) - 1
    fine, group = nearest + len(_FINE) * (offset > 0), bins.null.to(pattern)  # query key; -1 for the query itself
    inside, of_tag = one_hot(fine, len(bins.fine), pattern), one_hot(tags, asking.n_tags, pattern)
    rest, of_tag_behind = inside.clone(), of_tag.clone()
    rest[:, 0], of_tag_behind[:, 0] = 0, 0
    rest_null, sums = rest @ group, []
    size = max(1, CHUNK // pattern[0, :, 0].numel())
    for begin in range(0, max(1, len(asking.prompt)), size):
        prompt, query = (part[begin : begin + size] for part in (asking.prompt, asking.query))
        rows = rows_at(pattern, prompt, query).mul_(allowed[prompt, query][:, None])  # row head key
        first = rows[..., 0].clone()
        products = rows @ torch.cat([of_tag_behind[prompt], rest[query]], -1)
        to_tag, in_bin = products.split([of_tag.shape[-1], rest.shape[-1]], -1)
        sums.append((to_tag, in_bin, rows.square_() @ rest_null[query], first))
    to_tag, in_bin, squares, first = (torch.cat(parts) for parts in zip(*sums, strict=True))
    behind = Sides(to_tag, in_bin, squares, _counts(fine, len(bins.fine), allowed, tags, asking).to(to_tag), group)
    prompt, query, attention = asking.prompt, asking.query, first[..., None]  # row head 1
    first_allowed = allowed[prompt, query, 0]
    if not first_allowed.any():
        return behind, behind
    bin, tag = inside[query, 0], of_tag[prompt, 0]  # row fine; row tag
    any_tag = torch.cat([tag, torch.ones_like(tag[:, :1])], -1)
    with_first = Sides(
        to_tag + attention * tag[:, None],
        in_bin + attention * bin[:, None],
        squares + attention.square() * (bin @ group)[:, None],
        behind.keys + any_tag[..., None] * first_allowed[:, None, None] * bin[:, None],
        group,
    )
    return with_first, behind


def _counts(
    fine: Int[Tensor, "query key"],
    n_fine: int,
    allowed: Bool[Tensor, "prompt query key"],
    tags: Int[Tensor, "prompt key"],
    asking: Asking,
) -> Int[Tensor, "row any_tag fine"]:
    """How many allowed keys after the first position are in each bin, by tag; the last entry is all tags."""
    row, key = allowed[asking.prompt, asking.query, 1:].nonzero(as_tuple=True)
    tag = torch.where((tags < 0) | (tags >= asking.n_tags), asking.n_tags, tags)[:, 1:]
    place = (row * (asking.n_tags + 1) + tag[asking.prompt[row], key]) * n_fine + fine[:, 1:][asking.query[row], key]
    shape = (len(asking.prompt), asking.n_tags + 1, n_fine)
    counts = torch.bincount(place, minlength=math.prod(shape)).view(shape)
    counts[:, -1] = counts.sum(1)
    return counts


def one_hot(index: Int[Tensor, "*any"], n: int, like: Tensor) -> Float[Tensor, "*any n"]:
    """1 at the index; all 0 if it is outside 0..n-1."""
    return (index[..., None] == torch.arange(n, device=index.device)).to(like)


class TagTotals:
    """Sums for lifts, by group of documents; `finish` gives the ratio's two sides."""

    def __init__(self, n_heads: int, pairs: Sequence[tuple[int, int]], *, causal: bool):
        """Start from nothing. `pairs` are (from, to) tag indices."""
        self.pairs, self.n_tags = list(pairs), 1 + max(tag for pair in pairs for tag in pair)
        self.causal, self.bins = causal, Bins(causal=causal)
        self.sources = sorted({x for x, _ in pairs})
        n_strata = _EDGE + len(_COARSE) + 1 if causal else 2 * _EDGE + len(_COARSE_BOTH) + 1
        n_bins, rows = self.bins.lift.shape[1], (N_GROUPS, len(self.sources), n_strata)
        self.given = torch.zeros(N_GROUPS, n_heads, len(self.sources), self.n_tags, dtype=torch.float64)
        self.rows = torch.zeros(N_GROUPS, 1, len(pairs), dtype=torch.float64)
        # rows: a group's words of one tag that see about as many keys. These are the largest sums, hence float32, and
        # numpy's zeros, which take memory only when written to
        self.mass = torch.from_numpy(np.zeros((*rows, n_heads, n_bins), dtype=np.float32))
        self.keys = torch.from_numpy(np.zeros((*rows, self.n_tags + 1, n_bins)))
        self.null = Null.empty(n_heads, len(pairs))

    @property
    def observed(self) -> Float[Tensor, "group head pair"]:
        """The mass that went from each pair's first tag to its second."""
        return self._of_pairs(self.given)

    def _of_pairs(self, values: Float[Tensor, "group head source tag"]) -> Float[Tensor, "group head pair"]:
        return values[:, :, [self.sources.index(x) for x, _ in self.pairs], [y for _, y in self.pairs]]

    def asking(self, tags: Int[Tensor, "prompt query"], n_pieces: Int[Tensor, "prompt query"]) -> Asking:
        """The rows with source tags; `tags` are indices, -1 for none and for rows that are not scored."""
        is_source = tags[..., None] == torch.tensor(self.sources, device=tags.device)
        prompt, query, source = is_source.nonzero(as_tuple=True)
        return Asking(prompt, query, source, 1 / n_pieces[prompt, query].to(REAL), self.n_tags)

    def add(
        self,
        groups: Int[Tensor, " prompt"],
        sides: Sides,
        asking: Asking,
        visible: Bool[Tensor, "prompt query key"],
        scale: Float[Tensor, "prompt head query"] | None = None,
    ) -> None:
        """Add one reading of a batch; `scale` multiplies each row's attention; a uniform head covers all `visible`."""
        weight = asking.weight.to(sides.to_tag)[:, None]  # row head
        if scale is not None:
            weight = weight * rows_at(scale, asking.prompt, asking.query)
        mean, variance = sides.permuted()
        sees = (sides.keys[:, None, :-1].sum(-1) > 0).to(weight)  # words that see any key with the tag
        values = (sides.to_tag, weight), (mean, weight), (variance, weight.square()), (sees, asking.weight[:, None])
        observed, *sums = (self._by_prompt(*each, asking, len(groups)) for each in values)
        mean, variance, rows = map(self._of_pairs, sums)
        self.given.index_add_(0, groups, observed.to("cpu", torch.float64))
        self.rows.index_add_(0, groups, rows.to("cpu", torch.float64))
        self.null.add(groups, mean, variance)
        self._add_shares(groups, sides, asking, weight, visible)

    def _by_prompt(self, values: Tensor, weight: Tensor, asking: Asking, n_prompts: int) -> Tensor:
        """Rows (row head tag), weighted and summed by prompt and source: prompt head source tag."""
        total = values.new_zeros(n_prompts * len(self.sources), *values.shape[1:])
        total.index_add_(0, asking.prompt * len(self.sources) + asking.source, values * weight[..., None])
        return total.unflatten(0, (n_prompts, -1)).transpose(1, 2)

    def _add_shares(self, groups: Tensor, sides: Sides, asking: Asking, weight: Tensor, visible: Tensor) -> None:
        """Add each row to the sums of its group, tag and stratum."""
        stratum, n_seen = (
            each[asking.prompt, asking.query] for each in (stratum_of(visible, causal=self.causal), visible.sum(-1))
        )
        source = groups.to(stratum)[asking.prompt] * len(self.sources) + asking.source
        row, lift = (source * self.mass.shape[2] + stratum).cpu(), self.bins.lift.to(sides.in_bin)
        by_row = (sides.in_bin @ lift) * weight[..., None]  # row head bin
        even = (sides.keys @ lift) * (asking.weight.to(lift) / n_seen.clamp(min=1))[:, None, None]  # row tag bin
        for total, part in ((self.mass, by_row), (self.keys, even)):
            total.flatten(0, 2).index_add_(0, row, part.to("cpu", total.dtype))

    def state(self) -> list[Any]:
        """All sums, as plain values."""
        return [*map(filled, self._by_row()), self.null.state()]

    def merge(self, state: list[Any]) -> None:
        """Add the sums of other texts."""
        *sums, null = state
        for total, part in zip(self._by_row(), sums, strict=True):
            total.index_add_(0, *part)
        self.null.merge(null)

    def _by_row(self) -> list[Tensor]:
        return [getattr(self, name).flatten(0, n_axes - 1) for name, n_axes in _SUMS.items()]

    def of(self, groups: Bool[Tensor, " group"]) -> "TagTotals":
        """The sums of some groups, with these groups' own shares."""
        subset = copy(self)
        for name in _SUMS:
            part = getattr(self, name)
            setattr(subset, name, part * groups.view(-1, *[1] * (part.dim() - 1)))
        subset.null = self.null.of(groups)
        return subset

    def finish(self) -> Totals:
        """Observed and expected mass by group, with the shares of the whole corpus.

        A group's expected mass includes, to first order, its keys' influence on the shares. This sums to 0 over all
        groups, and makes intervals account for the shares' own sampling error.
        """
        expected = torch.zeros_like(self.observed)
        for source in self.sources:  # all pairs of one tag together: its mass is the largest sum
            columns = [column for column, (x, _) in enumerate(self.pairs) if x == source]
            expected[..., columns] = self._expected(source, [self.pairs[column][1] for column in columns])
        # a head that never attends near such words has only rounding on both sides, so it gets no lift
        has_mass = expected.sum(0) > _NOTHING * self.rows.sum(0)
        return Totals(self.observed * has_mass, expected * has_mass, self.rows.expand_as(expected))

    def of_other_queries(self) -> Totals:
        """For each pair, the two sides of the lift that words of the *other* sources would have in its place.

        Lifts are not comparable: a head that attends only to nouns has lift 5 if a fifth of the keys are nouns, and 2
        if half are. So we fit the others' odds of attending to the second tag, equal at every distance, and apply them
        to the keys of the pair's own rows. A head that prefers nouns from everywhere has the same odds from verbs as
        from all others. Rows are the pair's own.
        """
        sides = [self._of_others(x, y) for x, y in self.pairs]
        observed, expected = (torch.stack(side, -1) for side in zip(*sides, strict=True))
        return Totals(observed, expected, self.rows.expand_as(expected))

    def _of_others(self, x: int, y: int) -> tuple[Float[Tensor, "group head"], Float[Tensor, "group head"]]:
        """The others' observed mass, and the expected mass that makes their ratio a lift of the pair's own rows."""
        other_sources = [source for source in self.sources if source != x]
        observed = self.given[:, :, [self.sources.index(source) for source in other_sources], y].sum(-1)
        expected = sum((self._expected(source, [y])[..., 0] for source in other_sources), torch.zeros_like(observed))
        if not other_sources:
            return observed, expected
        looked, of_others = observed.sum(0), [self._even(source, y) for source in other_sources]
        low, high = (observed.new_full(observed.shape[1:], sign * _MOST_ODDS) for sign in (-1, 1))
        for _ in range(_STEPS):
            middle = (low + high) / 2
            too_low = sum(_at_odds(*each, middle) for each in of_others) < looked
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        pair = self._even(x, y)
        lift = _at_odds(*pair, low) / _at_odds(*pair, torch.zeros_like(low))
        scale = looked / expected.sum(0) / lift
        return observed, expected * torch.where(scale.isfinite() & (scale > 0), scale, torch.ones_like(scale))

    def _even(self, x: int, y: int) -> tuple[Float[Tensor, "stratum head bin"], Float[Tensor, "stratum bin"]]:
        """The mass from words of one tag, by bin, and the share of each bin's keys that have another tag."""
        source = self.sources.index(x)
        mass, counts = (each[:, source].sum(0, dtype=torch.float64) for each in (self.mass, self.keys))
        return mass, counts[..., y, :] / counts[..., -1, :].clamp(min=1e-30)

    def _expected(self, x: int, tags: Sequence[int]) -> Float[Tensor, "group head tag"]:
        """The mass that would go from one tag to each of `tags` if attention were uniform within each bin."""
        source = self.sources.index(x)
        mass, counts = self.mass[:, source], self.keys[:, source]  # group stratum head bin; group stratum any_tag bin
        present = counts[..., -1, :].any((1, 2))
        mass, counts = mass[present], counts[present]
        keys, of_tag = counts[..., -1, :], counts[..., tags, :]  # group stratum bin; group stratum tag bin
        all_keys = keys.sum(0).clamp(min=1e-30)[:, None]
        share = of_tag.sum(0) / all_keys
        drift = (of_tag - share * keys[:, :, None]) / all_keys
        expected = torch.zeros(len(present), mass.shape[2], len(tags), dtype=torch.float64)
        expected[present] = torch.einsum("gshb,stb->ght", mass.double(), share)
        expected[present] += torch.einsum("shb,gstb->ght", mass.sum(0, dtype=torch.float64), drift)
        return expected


def _at_odds(
    mass: Float[Tensor, "stratum head bin"], share: Float[Tensor, "stratum bin"], log_odds: Float[Tensor, " head"]
) -> Float[Tensor, " head"]:
    """The mass on a tag's keys if each weighs e^log_odds times as much as the bin's other keys."""
    tilted = share[:, None] * log_odds.exp()[:, None]  # stratum head bin
    return (mass * tilted / (1 - share[:, None] + tilted).clamp(min=1e-30)).sum((0, 2))
