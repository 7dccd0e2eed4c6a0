"""Do heads look from words of one tag to words of another, more than their distances alone would make them?

Lift x -> y is the mass that goes from words tagged x to words tagged y, over the mass that would go there if, within
each bin of distances, attention fell on the visible pieces alike: sum over bins of (mass in the bin x share of y among
the pieces in the bin). 1 means that the tag makes no difference; a uniform head has lift 1 exactly.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.nulls import Null
from interp.patterns.rows import REAL, Pattern, parts, rows_at
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
_MOST_ODDS, _STEPS = 20.0, 40  # logarithms of odds are sought between these, halving so often


class Bins:
    """Distances as bins that keep the sides of the query apart; a causal stack has one side."""

    def __init__(self, *, causal: bool):
        sides = (-1,) if causal else (-1, 1)
        self.fine = [(side, at) for side in sides for at in _FINE]
        self.lift = _grouping([(side, sum(at >= edge for edge in _EDGES)) for side, at in self.fine])
        self.null = _grouping([(side, int(nulls.distance_bin(torch.tensor(min(at, 128))))) for side, at in self.fine])

    def fine_of(self, n_queries: int, n_keys: int) -> Int[Tensor, "query key"]:
        """The number of the fine bin that a key's distance from a query is in; -1 for the query itself."""
        offset = torch.arange(n_keys) - torch.arange(n_queries)[:, None]
        nearest = torch.bucketize(offset.abs(), torch.tensor(_FINE), right=True) - 1
        return nearest + len(_FINE) * (offset > 0)


def _grouping(labels: Sequence[tuple[int, int]]) -> Float[Tensor, "fine bin"]:
    """Adds fine bins of one label up."""
    names = list(dict.fromkeys(labels))
    return torch.tensor([[label == name for name in names] for label in labels], dtype=REAL)


@dataclass(frozen=True)
class Asking:
    """The rows of a batch that ask: those of words of a tag from which lifts are wanted."""

    prompt: Int[Tensor, " row"]
    query: Int[Tensor, " row"]
    source: Int[Tensor, " row"]  # the number of the word's tag among the sources
    weight: Float[Tensor, " row"]  # 1 / pieces of the word, whose rows are averaged
    n_tags: int  # how many tags are asked for


@dataclass(frozen=True)
class Sides:
    """The two sides of lifts, row by row: what one reading of a batch adds to `TagTotals`.

    Attention is counted on keys that are pieces of other words.
    """

    to_tag: Float[Tensor, "row head tag"]
    in_bin: Float[Tensor, "row head fine"]
    squares: Float[Tensor, "row head null"]  # of attention, in the bins whose keys change places
    keys: Float[Tensor, "row any_tag fine"]  # how many keys of each tag; of any in the last
    group: Float[Tensor, "fine null"]  # fine bins to bins whose keys change places

    @cached_property
    def permuted(self) -> tuple[Float[Tensor, "row head tag"], Float[Tensor, "row head tag"]]:
        """Mean and variance of `to_tag` when each row's keys change places within their bins."""
        mass, keys = self.in_bin @ self.group, self.keys @ self.group
        n, of_tag = keys[:, -1:], keys[:, :-1]
        of_mass, of_spread = nulls.on_set(of_tag, n)
        spread = nulls.spread(mass, self.squares, n)
        return mass @ of_mass.transpose(1, 2), spread @ of_spread.transpose(1, 2)


class TagRows:
    """What rows look at, by tag and by distance: worked out once for both readings."""

    def __init__(
        self,
        bins: Bins,
        pattern: Pattern,
        allowed: Bool[Tensor, "prompt query key"],
        tags: Int[Tensor, "prompt key"],
        asking: Asking,
    ):
        """Sum each row up.

        Args:
            bins: of distances.
            pattern: attention, of which only that on allowed keys counts.
            allowed: pieces of other words, seen from pieces of words.
            tags: each piece's tag as an index, -1 for none.
            asking: the rows.
        """
        self.asking, self.allowed, self.tags = asking, allowed, tags
        self.fine, self.group = bins.fine_of(*allowed.shape[1:]).to(tags.device), bins.null.to(pattern)
        self.inside, self.of_tag = one_hot(self.fine, len(bins.fine), pattern), one_hot(tags, asking.n_tags, pattern)
        self._sums = self._summed(pattern)

    def _summed(self, pattern: Pattern) -> tuple[Tensor, ...]:
        """Attention to tags, in bins, squared in bins, all behind the first position; and to that."""
        rest, of_tag = self.inside.clone(), self.of_tag.clone()
        rest[:, 0], of_tag[:, 0] = 0, 0  # the first position is added where it is read, not taken off where it is not
        rest_null = rest @ self.group
        found, (n_heads, n_queries) = [], pattern.shape[1:3]
        for some in parts(pattern):
            counted = pattern[some] * self.allowed[some, None]
            begin, end = torch.searchsorted(self.asking.prompt, self.asking.prompt.new_tensor([some.start, some.stop]))
            prompt, query = self.asking.prompt[begin:end] - some.start, self.asking.query[begin:end]
            by_query = counted.flatten(0, 1).transpose(0, 1)  # query prompt-and-head key
            in_bin, squares = (
                torch.bmm(each, into).view(-1, n_heads, into.shape[-1]).index_select(0, query * len(counted) + prompt)
                for each, into in ((by_query, rest), (by_query.square(), rest_null))
            )
            to_tag = (counted.flatten(1, 2) @ of_tag[some]).unflatten(1, (n_heads, n_queries))
            found.append((rows_at(to_tag, prompt, query), in_bin, squares, rows_at(counted[..., 0], prompt, query)))
        return tuple(torch.cat(each) for each in zip(*found, strict=True))

    @cached_property
    def without_first(self) -> Sides:
        """The first position left out."""
        to_tag, in_bin, squares, _ = self._sums
        return Sides(to_tag, in_bin, squares, self._keys.to(to_tag), self.group)

    @property
    def _keys(self) -> Int[Tensor, "row any_tag fine"]:
        """How many allowed keys behind the first position, of each tag and of any in the last, are in each bin."""
        prompt, query = self.asking.prompt, self.asking.query
        n_tags, n_fine = self.asking.n_tags, self.inside.shape[-1]
        row, key = self.allowed[prompt, query, 1:].nonzero(as_tuple=True)
        tag = torch.where((self.tags < 0) | (self.tags >= n_tags), n_tags, self.tags)[:, 1:]
        place = (row * (n_tags + 1) + tag[prompt[row], key]) * n_fine + self.fine[:, 1:][query[row], key]
        shape = (len(prompt), n_tags + 1, n_fine)
        found = torch.bincount(place, minlength=math.prod(shape)).view(shape)
        found[:, -1] = found.sum(1)
        return found

    @cached_property
    def with_first(self) -> Sides:
        """With the first position among the keys."""
        plain, attention = self.without_first, self._sums[-1][..., None]  # row head 1
        allowed = self.allowed[self.asking.prompt, self.asking.query, 0]
        if not allowed.any():
            return plain
        bin, tag = self.inside[self.asking.query, 0], self.of_tag[self.asking.prompt, 0]  # row fine; row tag
        any_tag = torch.cat([tag, torch.ones_like(tag[:, :1])], -1)
        return Sides(
            plain.to_tag + attention * tag[:, None],
            plain.in_bin + attention * bin[:, None],
            plain.squares + attention.square() * (bin @ plain.group)[:, None],
            plain.keys + any_tag[..., None] * allowed[:, None, None] * bin[:, None],
            plain.group,
        )


def one_hot(index: Int[Tensor, "*any"], n: int, like: Tensor) -> Float[Tensor, "*any n"]:
    """1 at the index; nothing at one outside 0..n-1."""
    return (index[..., None] == torch.arange(n, device=index.device)).to(like)


class TagTotals:
    """What lifts are made of, by group of documents; `finish` gives the ratio's two sides."""

    def __init__(self, n_heads: int, pairs: Sequence[tuple[int, int]], *, causal: bool):
        """Start from nothing. `pairs` are (from, to) tag indices."""
        self.pairs, self.n_tags = list(pairs), 1 + max(tag for pair in pairs for tag in pair)
        self.causal, self.bins = causal, Bins(causal=causal)
        self.sources = sorted({x for x, _ in pairs})
        self.n_strata = _n_strata(causal)
        n_bins, n_rows = self.bins.lift.shape[1], N_GROUPS * len(self.sources) * self.n_strata
        self.given = torch.zeros(N_GROUPS, n_heads, len(self.sources), self.n_tags, dtype=torch.float64)
        self.rows = torch.zeros(N_GROUPS, 1, len(pairs), dtype=torch.float64)
        # rows: a group's words of one tag that see about as many keys; the largest of all sums, so in half the bytes
        self.mass = torch.zeros(n_rows, n_heads, n_bins, dtype=REAL)
        self.keys = torch.zeros(n_rows, self.n_tags + 1, n_bins, dtype=torch.float64)
        self.null = Null.empty(n_heads, len(pairs))

    @property
    def observed(self) -> Float[Tensor, "group head pair"]:
        """The mass that went from each pair's first tag to its second."""
        return self._of_pairs(self.given)

    def _of_pairs(self, values: Float[Tensor, "group head source tag"]) -> Float[Tensor, "group head pair"]:
        return values[:, :, [self.sources.index(x) for x, _ in self.pairs], [y for _, y in self.pairs]]

    def asking(self, tags: Int[Tensor, "prompt query"], n_pieces: Int[Tensor, "prompt query"]) -> Asking:
        """The rows that ask.

        Args:
            tags: each query's tag as an index, -1 for none and for rows that are not scored.
            n_pieces: of the query's word.
        """
        is_source = tags[..., None] == torch.tensor(self.sources, device=tags.device)
        prompt, query, source = is_source.nonzero(as_tuple=True)
        weight = 1 / n_pieces[prompt, query].to(REAL)
        return Asking(prompt, query, source, weight, self.n_tags)

    def add(
        self,
        groups: Int[Tensor, " prompt"],
        sides: Sides,
        asking: Asking,
        seen: Bool[Tensor, "prompt query key"],
        scale: Float[Tensor, "prompt head query"] | None = None,
    ) -> None:
        """Add one reading of a batch.

        Args:
            groups: the documents' groups.
            sides: what the rows look at.
            asking: the rows.
            seen: the keys over which a uniform head spreads its attention.
            scale: what each row's attention is multiplied by.
        """
        weight = asking.weight.to(sides.to_tag)[:, None]  # row head
        if scale is not None:
            weight = weight * rows_at(scale, asking.prompt, asking.query)
        mean, variance = sides.permuted
        sees = (sides.keys[:, None, :-1].sum(-1) > 0).to(weight)  # words that see a key of the tag at all
        values = (sides.to_tag, weight), (mean, weight), (variance, weight.square()), (sees, asking.weight[:, None])
        observed, *others = (self._by_prompt(*each, asking, len(groups)) for each in values)
        mean, variance, shown = map(self._of_pairs, others)
        self.given.index_add_(0, groups, observed.to("cpu", torch.float64))
        self.rows.index_add_(0, groups, shown.to("cpu", torch.float64))
        self.null.add(groups, mean, variance)
        self._add_shares(groups, sides, asking, weight, seen)

    def _by_prompt(self, values: Tensor, weight: Tensor, asking: Asking, n_prompts: int) -> Tensor:
        """Rows (row head tag), weighted and added up by prompt and source: prompt head source tag."""
        total = values.new_zeros(n_prompts * len(self.sources), *values.shape[1:])
        total.index_add_(0, asking.prompt * len(self.sources) + asking.source, values * weight[..., None])
        return total.unflatten(0, (n_prompts, -1)).transpose(1, 2)

    def _add_shares(self, groups: Tensor, sides: Sides, asking: Asking, weight: Tensor, seen: Tensor) -> None:
        """Add each row to those of its group and tag that see about as many keys."""
        stratum, n_seen = (
            each[asking.prompt, asking.query] for each in (stratum_of(seen, causal=self.causal), seen.sum(-1))
        )
        source = groups.to(stratum)[asking.prompt] * len(self.sources) + asking.source
        into, lift = (source * self.n_strata + stratum).cpu(), self.bins.lift.to(sides.in_bin)
        by_row = (sides.in_bin @ lift) * weight[..., None]  # row head bin
        self.mass.index_add_(0, into, by_row.to("cpu", self.mass.dtype))
        even = (sides.keys @ lift) * (asking.weight.to(lift) / n_seen.clamp(min=1))[:, None, None]  # row tag bin
        self.keys.index_add_(0, into, even.to("cpu", torch.float64))

    def of(self, groups: Bool[Tensor, " group"]) -> "TagTotals":
        """The sums of some groups, whose shares are then counted over these groups alone."""
        some = copy(self)
        for name in ("given", "rows", "mass", "keys"):
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
        expected = torch.stack([self._expected(x, y) for x, y in self.pairs], -1)
        # a head that never looks where such words are has rounding on both sides: no lift, rather than any
        there = expected.sum(0) > _NOTHING * self.rows.sum(0)
        return Totals(self.observed * there, expected * there, self.rows.expand_as(expected))

    def of_other_queries(self) -> Totals:
        """For each pair the two sides of the lift that words of the *other* sources would have in its place.

        Lifts themselves do not compare: where a fifth of the keys are nouns, a head that looks at nothing else has lift
        5, and where half are, 2. So the others' odds of looking at the second tag, the same at every distance, are
        fitted to what they look at, and put to the keys that the pair's own rows have. A head that likes nouns whoever
        asks has the same odds from verbs as from all others. Rows are the pair's own.
        """
        sides = [self._of_others(x, y) for x, y in self.pairs]
        observed, expected = (torch.stack(side, -1) for side in zip(*sides, strict=True))
        return Totals(observed, expected, self.rows.expand_as(expected))

    def _of_others(self, x: int, y: int) -> tuple[Float[Tensor, "group head"], Float[Tensor, "group head"]]:
        """What others look at, and what they would if tags made no difference, in units of the pair's own lift."""
        others = [source for source in self.sources if source != x]
        observed = self.given[:, :, [self.sources.index(source) for source in others], y].sum(-1)
        expected = sum((self._expected(source, y) for source in others), torch.zeros_like(observed))
        if not others:
            return observed, expected
        looked, of_others = observed.sum(0), [self._even(source, y) for source in others]
        low, high = (observed.new_full(observed.shape[1:], sign * _MOST_ODDS) for sign in (-1, 1))
        for _ in range(_STEPS):
            middle = (low + high) / 2
            more = sum(_at_odds(*each, middle) for each in of_others) < looked
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        own = self._even(x, y)
        lift = _at_odds(*own, low) / _at_odds(*own, torch.zeros_like(low))
        scale = looked / expected.sum(0) / lift
        return observed, expected * torch.where(scale.isfinite() & (scale > 0), scale, torch.ones_like(scale))

    def _even(self, x: int, y: int) -> tuple[Float[Tensor, "stratum head bin"], Float[Tensor, "stratum bin"]]:
        """The mass of the words of one tag, and the share of the keys in each bin that are of another."""
        mass, counts = (each.sum(0) for each in self._by_source(x))
        return mass, counts[..., y, :] / counts[..., -1, :].clamp(min=1e-30)

    def _by_source(
        self, x: int
    ) -> tuple[Float[Tensor, "group stratum head bin"], Float[Tensor, "group stratum any bin"]]:
        """Mass and keys of the words of one tag."""
        shape, source = (N_GROUPS, len(self.sources), self.n_strata), self.sources.index(x)
        mass, counts = (each.unflatten(0, shape)[:, source] for each in (self.mass, self.keys))
        return mass.double(), counts

    def _expected(self, x: int, y: int) -> Float[Tensor, "group head"]:
        """The mass that would go from one tag to another if attention fell on the pieces of a bin alike."""
        mass, counts = self._by_source(x)
        keys, of_tag = counts[..., -1, :], counts[..., y, :]  # group stratum bin
        all_keys = keys.sum(0).clamp(min=1e-30)
        share = of_tag.sum(0) / all_keys
        drift = (of_tag - share * keys) / all_keys
        own = torch.einsum("gshb,sb->gh", mass, share)
        return own + torch.einsum("shb,gsb->gh", mass.sum(0), drift)


def _at_odds(
    mass: Float[Tensor, "stratum head bin"], share: Float[Tensor, "stratum bin"], log_odds: Float[Tensor, " head"]
) -> Float[Tensor, " head"]:
    """The mass that goes to keys each of which weighs e^log_odds as much as any other of its bin."""
    tilted = share[:, None] * log_odds.exp()[:, None]  # stratum head bin
    return (mass * tilted / (1 - share[:, None] + tilted).clamp(min=1e-30)).sum((0, 2))
