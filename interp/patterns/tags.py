"""Do heads look from words of one tag to words of another, more than their distances alone would make them?

Lift x -> y is the mass that goes from words tagged x to words tagged y, over the mass that would go there if, within
each bin of distances, attention fell on the visible pieces alike: sum over bins of (mass in the bin x share of y among
the pieces in the bin). 1 means that the tag makes no difference; a uniform head has lift 1 exactly.
"""

from collections.abc import Sequence
from copy import copy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns.totals import N_GROUPS, Totals

# Distances within a bin count alike; before and after are told apart, so that a head which looks at the next token,
# whatever it is, shows no preference in a bidirectional stack.
_EDGES = (1, 2, 3, 4, 5, 7, 10, 16, 32)
_N_BINS = 2 * len(_EDGES) + 1

# Rows that see few keys stand at the beginning of a text, where words are not like those further on. A uniform head
# gives each key of such a row more than it gives the keys of a long one; so shares weigh a row's keys as that head
# does, and rows that see about as many keys are compared with each other, which keeps heads at a fixed offset near 1.
_STRATA = (8, 16, 64)
_N_STRATA = len(_STRATA) + 1


class TagTotals:
    """What lifts are made of, by group of documents; `finish` gives the ratio's two sides."""

    def __init__(self, n_heads: int, pairs: Sequence[tuple[int, int]]):
        """Start from nothing. `pairs` are (from, to) tag indices."""
        self.pairs, self.n_tags = list(pairs), 1 + max(tag for pair in pairs for tag in pair)
        self.sources = sorted({x for x, _ in pairs})
        n_rows = len(self.sources) * _N_STRATA
        self.observed = torch.zeros(N_GROUPS, n_heads, len(pairs), dtype=torch.float64)
        self.rows = torch.zeros(N_GROUPS, 1, len(pairs), dtype=torch.float64)
        self.mass = torch.zeros(N_GROUPS, n_heads, n_rows, _N_BINS, dtype=torch.float64)
        self.keys = torch.zeros(N_GROUPS, n_rows, _N_BINS, dtype=torch.float64)
        self.keys_of_tag = torch.zeros(N_GROUPS, n_rows, _N_BINS, self.n_tags, dtype=torch.float64)

    def add(
        self,
        groups: Int[Tensor, " prompt"],
        pattern: Float[Tensor, "prompt head query key"],
        tags: Int[Tensor, "prompt position"],
        words: Int[Tensor, "prompt position"],
        allowed: Bool[Tensor, "prompt query key"],
    ) -> None:
        """Add a batch of patterns between pieces.

        Args:
            groups: the documents' groups.
            pattern: attention.
            tags: each piece's tag as an index, -1 for none (special tokens, padding).
            words: each piece's word, -1 for none; the rows of a word's pieces are averaged.
            allowed: keys that could receive the mass: visible, and not a removed first position.
        """
        tagged = tags >= 0
        n_seen = allowed.sum(-1)  # prompt query: the keys among which a uniform head spreads its attention
        other_word = words[:, :, None] != words[:, None, :]
        allowed = allowed & other_word & tagged[:, None, :] & tagged[:, :, None]
        of_tag = torch.stack([tags == tag for tag in range(self.n_tags)], -1).to(pattern.dtype)
        pieces = (words[:, :, None] == words[:, None, :]).sum(-1)
        source = (of_tag[..., self.sources] / pieces[..., None]).transpose(1, 2)  # a word's rows add up to one
        stratum = torch.bucketize(n_seen, torch.tensor(_STRATA, device=tags.device))
        in_stratum = torch.stack([stratum == number for number in range(_N_STRATA)], 1)
        stratified = (source[:, :, None] * in_stratum[:, None]).flatten(1, 2)  # prompt source-and-stratum query
        inside = _bin_membership(pattern.shape[-1]).to(pattern)  # query key bin
        counted = pattern * allowed[:, None]
        x = torch.tensor([self.sources.index(x) for x, _ in self.pairs], device=tags.device)
        y = torch.tensor([y for _, y in self.pairs], device=tags.device)
        uniform = allowed / n_seen.clamp(min=1)[..., None]  # prompt query key
        near = [(uniform * inside[..., bin]) @ of_tag for bin in range(_N_BINS)]  # prompt query tag
        shown = source @ (allowed.to(pattern) @ of_tag > 0).to(pattern)  # words that see a key of the tag at all
        parts = [
            (self.observed, (source[:, None] @ (counted @ of_tag[:, None]))[..., x, y]),
            (self.rows, shown[:, None, x, y]),
            (self.mass, stratified[:, None] @ torch.einsum("phqk,qkb->phqb", counted, inside)),
            (self.keys, stratified @ torch.einsum("pqk,qkb->pqb", uniform.to(pattern), inside)),
            (self.keys_of_tag, torch.stack([stratified @ each.to(pattern) for each in near], 2)),
        ]
        for total, part in parts:
            total.index_add_(0, groups, part.to("cpu", torch.float64))

    def of(self, groups: Bool[Tensor, " group"]) -> "TagTotals":
        """The sums of some groups, whose shares are then counted over these groups alone."""
        some = copy(self)
        for name in ("observed", "rows", "mass", "keys", "keys_of_tag"):
            part = getattr(self, name)
            setattr(some, name, part * groups.reshape(-1, *[1] * (part.dim() - 1)))
        return some

    def finish(self) -> Totals:
        """Observed and expected mass, by group. Shares are the whole corpus's.

        A group's expected mass also holds, to first order, what the group's own keys did to the shares; over all
        groups that adds up to nothing, and it makes intervals honest about the shares being measured too.
        """
        columns = []
        for x, y in self.pairs:
            first = self.sources.index(x) * _N_STRATA
            rows = slice(first, first + _N_STRATA)
            keys, of_tag = self.keys[:, rows], self.keys_of_tag[:, rows, :, y]  # group stratum bin
            all_keys = keys.sum(0).clamp(min=1e-30)
            share = of_tag.sum(0) / all_keys
            drift = (of_tag - share * keys) / all_keys
            mass = self.mass[:, :, rows]  # group head stratum bin
            own = torch.einsum("ghsb,sb->gh", mass, share)
            columns.append(own + torch.einsum("hsb,gsb->gh", mass.sum(0), drift))
        expected = torch.stack(columns, -1)
        return Totals(self.observed, expected, self.rows.expand_as(expected))


def _bin_membership(n: int) -> Bool[Tensor, "query key bin"]:
    at = torch.arange(n)
    offset = at - at[:, None]
    bin = torch.bucketize(offset.abs(), torch.tensor(_EDGES), right=True) * offset.sign() + len(_EDGES)
    return bin[..., None] == torch.arange(_N_BINS)
