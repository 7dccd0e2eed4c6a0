"""Do heads look from words of one tag to words of another, more than their distances alone would make them?

Lift x -> y is the mass that goes from words tagged x to words tagged y, over the mass that would go there if, within
each bin of distances, attention fell on the visible pieces alike: sum over bins of (mass in the bin x share of y among
the pieces in the bin). 1 means that the tag makes no difference; a uniform head has lift 1 exactly.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.nulls import Null
from interp.patterns.rows import Pattern
from interp.patterns.totals import N_GROUPS, Totals

# Distances within a bin count alike; before and after are told apart, so that a head which looks at the next token,
# whatever it is, shows no preference in a bidirectional stack. Bins begin at these distances.
_EDGES = (1, 2, 3, 4, 5, 7, 10, 16, 32)
# Under permuted keys, bins are those of `nulls.distance_bin`; these finer ones add up to either.
_FINE = (1, 2, 3, 4, 5, 7, 8, 10, 16, 32, 64, 128)

# A uniform head gives each key of a row with few keys more than it gives those of a long one, so shares weigh a row's
# keys as that head does; a head at a fixed offset weighs all rows alike. Only among rows that see equally many keys do
# the two agree, and texts begin unlike they go on. So rows are compared with rows that see about as many keys.
_COARSE = (10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 256)
_COARSE_BOTH = (16, 32, 64, 128)  # in a bidirectional stack: all rows of a text see the same number
_EDGE = 8  # rows this near to an end of their text are compared with those as near alone: heads look elsewhere there


def stratum_of(seen: Bool[Tensor, "prompt query key"], *, causal: bool) -> Int[Tensor, "prompt query"]:
    """Which rows are compared with which: by how many keys they see, at either end of a text exactly.

    A bidirectional stack's first and last rows see as many keys as others, but have none on one side.
    """
    n_seen = seen.sum(-1)
    edges = torch.tensor(_COARSE if causal else _COARSE_BOTH, device=seen.device)
    found = torch.bucketize(n_seen, edges) + (_EDGE if causal else 2 * _EDGE)
    before = n_seen
    if not causal:
        after, before = seen.triu().sum(-1), seen.tril().sum(-1)
        found = torch.where(after <= _EDGE, after.clamp(min=1) + _EDGE - 1, found)
    return torch.where(before <= _EDGE, before.clamp(min=1) - 1, found)


def _n_strata(causal: bool) -> int:
    return _EDGE + len(_COARSE) + 1 if causal else 2 * _EDGE + len(_COARSE_BOTH) + 1


_NOTHING = 1e-6  # expected mass a word
_CHUNK = 1 << 18  # elements of a pattern that are read at once


class Bins:
    """Distances as bins that keep the sides of the query apart; a causal stack has one side."""

    def __init__(self, *, causal: bool):
        sides = (-1,) if causal else (-1, 1)
        self.fine = [(side, at) for side in sides for at in _FINE]
        self.lift = _grouping([(side, sum(at >= edge for edge in _EDGES)) for side, at in self.fine])
        self.null = _grouping([(side, int(nulls.distance_bin(torch.tensor(min(at, 128))))) for side, at in self.fine])

    def membership(self, n_queries: int, n_keys: int) -> Float[Tensor, "query key bin"]:
        """1 where a key's distance from a query is in a fine bin."""
        offset = torch.arange(n_keys) - torch.arange(n_queries)[:, None]
        nearest = torch.bucketize(offset.abs(), torch.tensor(_FINE), right=True)  # 0 for the query itself
        found = [(offset.sign() == side) & (nearest == _FINE.index(at) + 1) for side, at in self.fine]
        return torch.stack(found, -1).to(torch.get_default_dtype())


def _grouping(labels: Sequence[tuple[int, int]]) -> Float[Tensor, "fine bin"]:
    """Adds fine bins of one label up."""
    names = list(dict.fromkeys(labels))
    return torch.tensor([[float(label == name) for name in names] for label in labels])


@dataclass(frozen=True)
class Sides:
    """The two sides of lifts, by prompt: what one reading of a batch adds to `TagTotals`.

    Attention is counted on keys that are pieces of other words; `first` says where the first position is one.
    """

    to_tag: Float[Tensor, "prompt head query tag"]
    in_bin: Float[Tensor, "prompt query head fine"]
    mass: Float[Tensor, "prompt head query null"]  # the same, in the bins whose keys change places
    squares: Float[Tensor, "prompt head query null"]
    keys: Float[Tensor, "prompt any_tag query fine"]  # how many keys of each tag; of any in the last
    group: Float[Tensor, "fine null"]  # fine bins to bins whose keys change places

    @cached_property
    def _null_keys(self) -> Float[Tensor, "prompt any_tag query null"]:
        return self.keys @ self.group

    @cached_property
    def _spread(self) -> Float[Tensor, "prompt head query null"]:
        return nulls.spread(self.mass, self.squares, self._null_keys[:, -1:])

    @cached_property
    def _factors(self) -> tuple[Float[Tensor, "prompt tag query null"], Float[Tensor, "prompt tag query null"]]:
        """What the keys of each tag take of mass and spread."""
        return nulls.on_set(self._null_keys[:, :-1], self._null_keys[:, -1:])

    def permuted(
        self,
        source: Float[Tensor, "prompt query source"],
        pairs: tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]],
        scale: Float[Tensor, "prompt head query"] | None,
    ) -> tuple[Float[Tensor, "prompt head pair"], Float[Tensor, "prompt head pair"]]:
        """Mean and variance of the observed mass when each row's keys change places within their bins.

        `source` weighs the rows of each tag, `pairs` are indices of sources and of tags, `scale` multiplies a row.
        """
        from_tag, to_tag = pairs
        rows = source.transpose(1, 2)[:, from_tag][..., None]  # prompt pair query 1
        moments = self.mass, self._spread
        if scale is not None:
            moments = self.mass * scale[..., None], self._spread * scale.square()[..., None]
        factors = zip(moments, self._factors, (rows, rows.square()), strict=True)
        mean, variance = (
            moment.flatten(2) @ (factor[:, to_tag] * weight).flatten(2).transpose(1, 2)
            for moment, factor, weight in factors
        )
        return mean, variance


class TagRows:
    """What the rows of a batch look at, by tag and by distance: worked out once for both readings."""

    def __init__(
        self,
        bins: Bins,
        counted: Pattern,
        allowed: Bool[Tensor, "prompt query key"],
        tags: Int[Tensor, "prompt key"],
        n_tags: int,
    ):
        """Sum each row up.

        Args:
            bins: of distances.
            counted: attention, 0 at keys that are not allowed.
            allowed: pieces of other words, seen from pieces of words.
            tags: each piece's tag as an index, -1 for none.
            n_tags: how many tags are asked for.
        """
        n_queries, n_keys = counted.shape[2:]
        self.bins, self.inside = bins, bins.membership(n_queries, n_keys).to(counted)
        self.of_tag = torch.stack([tags == tag for tag in range(n_tags)], -1).to(counted)
        self.first = (counted[..., 0], allowed[:, :, 0])
        rest, of_tag = self.inside.clone(), self.of_tag.clone()
        rest[:, 0], of_tag[:, 0] = 0, 0  # the first position is added where it is read, not taken off where it is not
        sums, keys = self._sums(counted, rest, of_tag), self._keys(allowed, rest, of_tag)
        self.without_first = Sides(*sums, keys, bins.null.to(counted))

    def _sums(self, counted: Pattern, rest: Tensor, of_tag: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The first four of `Sides`, some prompts at a time, which stay in the processor's cache meanwhile."""
        n_prompts, n_heads, n_queries, _ = counted.shape
        null = self.bins.null.to(counted)
        rest_null = rest @ null
        to_tag = counted.new_empty(n_prompts, n_heads, n_queries, of_tag.shape[-1])
        in_bin = counted.new_empty(n_prompts, n_queries, n_heads, len(null))
        mass, squares = (counted.new_empty(n_prompts, n_heads, n_queries, null.shape[1]) for _ in range(2))
        size = max(1, _CHUNK // counted[0].numel())
        for at in range(0, n_prompts, size):
            some = slice(at, at + size)
            part = counted[some]
            shape = (len(part), n_heads)
            fine = torch.bmm(part.flatten(0, 1).transpose(0, 1), rest)  # query prompt-and-head fine
            in_bin[some] = fine.unflatten(1, shape).transpose(0, 1)
            mass[some] = (fine @ null).unflatten(1, shape).permute(1, 2, 0, 3)
            squared = torch.bmm(part.square().flatten(0, 1).transpose(0, 1), rest_null)
            squares[some] = squared.unflatten(1, shape).permute(1, 2, 0, 3)
            to_tag[some] = (part.flatten(1, 2) @ of_tag[some]).unflatten(1, (n_heads, n_queries))
        return to_tag, in_bin, mass, squares

    def _keys(self, allowed: Tensor, rest: Tensor, of_tag: Tensor) -> Tensor:
        """How many allowed keys of each tag, and of any in the last, are in each bin; prompt tag query fine.

        All keys in the bins are counted, which is one matrix product, and the few that are not allowed taken off.
        """
        any_tag = torch.cat([of_tag, torch.ones_like(of_tag[..., :1])], -1)  # prompt key tag
        n_queries, n_keys, n_fine = rest.shape
        by_query = rest.transpose(0, 1).reshape(n_keys, -1)  # key query-and-fine
        keys = any_tag.transpose(1, 2) @ by_query  # prompt tag query-and-fine
        prompt, query, key = (~allowed & rest.any(-1)).nonzero(as_tuple=True)
        near = rest[query, key].argmax(-1)
        lost = keys.new_zeros(len(allowed) * n_queries * n_fine, any_tag.shape[-1])
        lost.index_add_(0, (prompt * n_queries + query) * n_fine + near, any_tag[prompt, key])
        return (keys - lost.unflatten(0, (len(allowed), -1)).transpose(1, 2)).unflatten(-1, (n_queries, n_fine))

    def with_first(self) -> Sides:
        """The sums with the first position among the keys."""
        attention, allowed = self.first
        plain = self.without_first
        if not allowed.any():
            return plain
        bin, tag = self.inside[:, 0], self.of_tag[:, 0]  # query fine; prompt tag
        null = bin @ plain.group
        by_head = attention[..., None]  # prompt head query 1
        any_tag = torch.cat([tag, torch.ones_like(tag[:, :1])], -1)
        return Sides(
            plain.to_tag + by_head * tag[:, None, None],
            plain.in_bin + attention.transpose(1, 2)[..., None] * bin[:, None],
            plain.mass + by_head * null,
            plain.squares + by_head.square() * null,
            plain.keys + any_tag[:, :, None, None] * allowed[:, None, :, None] * bin,
            plain.group,
        )


class TagTotals:
    """What lifts are made of, by group of documents; `finish` gives the ratio's two sides."""

    def __init__(self, n_heads: int, pairs: Sequence[tuple[int, int]], *, causal: bool):
        """Start from nothing. `pairs` are (from, to) tag indices."""
        self.pairs, self.n_tags = list(pairs), 1 + max(tag for pair in pairs for tag in pair)
        self.causal, self.bins = causal, Bins(causal=causal)
        self.sources = sorted({x for x, _ in pairs})
        self.n_strata = _n_strata(causal)
        n_bins, n_rows = self.bins.lift.shape[1], N_GROUPS * len(self.sources) * self.n_strata
        self.observed = torch.zeros(N_GROUPS, n_heads, len(pairs), dtype=torch.float64)
        self.rows = torch.zeros(N_GROUPS, 1, len(pairs), dtype=torch.float64)
        # rows: a group's words of one tag that see about as many keys; the largest of all sums, so in half the bytes
        self.mass = torch.zeros(n_rows, n_heads, n_bins)
        self.keys = torch.zeros(n_rows, n_bins, self.n_tags + 1, dtype=torch.float64)
        self.null = Null.empty(n_heads, len(pairs))

    def add(
        self,
        groups: Int[Tensor, " prompt"],
        sides: Sides,
        tags: Int[Tensor, "prompt query"],
        n_pieces: Int[Tensor, "prompt query"],
        seen: Bool[Tensor, "prompt query key"],
        scale: Float[Tensor, "prompt head query"] | None = None,
    ) -> None:
        """Add one reading of a batch.

        Args:
            groups: the documents' groups.
            sides: what the rows look at.
            tags: each query's tag as an index, -1 for none and for rows that are not scored.
            n_pieces: of the query's word, whose rows are averaged.
            seen: the keys over which a uniform head spreads its attention.
            scale: what each row's attention is multiplied by.
        """
        weight = 1 / n_pieces.clamp(min=1).to(sides.to_tag)
        of_source = torch.stack([tags == x for x in self.sources], -1)
        x = torch.tensor([self.sources.index(x) for x, _ in self.pairs], device=tags.device)
        y = torch.tensor([y for _, y in self.pairs], device=tags.device)
        source = of_source * weight[..., None]  # prompt query source
        to_tag = sides.to_tag if scale is None else sides.to_tag * scale[..., None]
        observed = (source.transpose(1, 2)[:, None] @ to_tag)[..., x, y]
        sees = (sides.keys.sum(-1) > 0).transpose(1, 2).to(source)  # words that see a key of the tag at all
        shown = (source.transpose(1, 2) @ sees)[:, None, x, y]
        self.observed.index_add_(0, groups, observed.to("cpu", torch.float64))
        self.rows.index_add_(0, groups, shown.to("cpu", torch.float64))
        self._add_shares(groups, sides, of_source, weight, seen, scale)
        self.null.add(groups, *sides.permuted(source, (x, y), scale))

    def _add_shares(
        self, groups: Tensor, sides: Sides, of_source: Tensor, weight: Tensor, seen: Tensor, scale: Tensor | None
    ) -> None:
        """Add each row to those of its group and tag that see about as many keys."""
        stratum, n_seen = stratum_of(seen, causal=self.causal), seen.sum(-1)
        source = groups.to(stratum)[:, None] * len(self.sources) + of_source.int().argmax(-1)
        place = source * self.n_strata + stratum
        prompt, query = of_source.any(-1).nonzero(as_tuple=True)
        into, lift = place[prompt, query].cpu(), self.bins.lift.to(sides.in_bin)
        share = weight[prompt, query]
        by_row = sides.in_bin[prompt, query] @ lift  # row head bin
        by_row *= share[:, None, None] if scale is None else (scale[prompt, :, query] * share[:, None])[..., None]
        self.mass.index_add_(0, into, by_row.to("cpu", self.mass.dtype))
        even = sides.keys[prompt, :, query] @ lift  # row tag bin
        even *= (share / n_seen[prompt, query].clamp(min=1))[:, None, None]
        self.keys.index_add_(0, into, even.transpose(1, 2).to("cpu", torch.float64))

    def of(self, groups: Bool[Tensor, " group"]) -> "TagTotals":
        """The sums of some groups, whose shares are then counted over these groups alone."""
        some = copy(self)
        for name in ("observed", "rows", "mass", "keys"):
            part = getattr(self, name)
            chosen = groups.repeat_interleave(len(part) // N_GROUPS)
            setattr(some, name, part * chosen.reshape(-1, *[1] * (part.dim() - 1)))
        some.null = self.null.of(groups)
        return some

    def finish(self) -> Totals:
        """Observed and expected mass, by group. Shares are the whole corpus's.

        A group's expected mass also holds, to first order, what the group's own keys did to the shares; over all
        groups that adds up to nothing, and it makes intervals honest about the shares being measured too.
        """
        columns = []
        by_source = (N_GROUPS, len(self.sources), self.n_strata)
        every_mass, every_key = self.mass.unflatten(0, by_source), self.keys.unflatten(0, by_source)
        for x, y in self.pairs:
            mass, counts = every_mass[:, self.sources.index(x)].double(), every_key[:, self.sources.index(x)]
            keys, of_tag = counts[..., -1], counts[..., y]  # group stratum bin
            all_keys = keys.sum(0).clamp(min=1e-30)
            share = of_tag.sum(0) / all_keys
            drift = (of_tag - share * keys) / all_keys
            own = torch.einsum("gshb,sb->gh", mass, share)
            columns.append(own + torch.einsum("shb,gsb->gh", mass.sum(0), drift))
        expected = torch.stack(columns, -1)
        # a head that never looks where such words are has rounding on both sides: no lift, rather than any
        there = expected.sum(0) > _NOTHING * self.rows.sum(0)
        return Totals(self.observed * there, expected * there, self.rows.expand_as(expected))
