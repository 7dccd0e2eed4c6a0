"""How much attention falls on the keys that measures claim? One batched product reads all measures of all heads.

A measure claims keys, `prompt query key`. A row that sees a claimed key counts; its value is the attention there. Under
the null a row's keys change places (`interp.patterns.nulls`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.rows import REAL, Pattern, Rows, Sink

Scores = Float[Tensor, "prompt head measure"]
PerRow = Float[Tensor, "prompt head query"]


@dataclass(frozen=True)
class Sums:
    """Sums over eligible rows, how many rows they are, and the sums' mean and variance under permuted keys."""

    scores: Scores
    counts: Scores
    null_mean: Scores
    null_variance: Scores

    @staticmethod
    def joined(parts: "Sequence[Sums]", order: Sequence[int]) -> "Sums":
        """The measures of all parts, put in an order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return Sums(*(torch.cat(column, -1)[..., [*order]] for column in columns))


@dataclass(frozen=True)
class Asked:
    """What the rows of a batch are asked in one reading.

    eligible        prompt query measure   1 where a row counts
    mean, variance  prompt query measure   what permuted keys take of the row's mass and of its spread
    n               prompt query           how many keys change places
    """

    eligible: Float[Tensor, "prompt query measure"]
    mean: Float[Tensor, "prompt query measure"]
    variance: Float[Tensor, "prompt query measure"]
    n: Float[Tensor, "prompt query"]

    def counts(self, sink: Sink | None, like: Tensor) -> Scores:
        """Rows of each head: all that are eligible, or (`sink`) those that are left without the first position."""
        eligible = self.eligible.to(like)
        if sink is None:
            return eligible.sum(1)[:, None].expand(-1, like.shape[1], -1)
        return sink.kept.to(like) @ eligible

    def permuted(self, mass: PerRow, squares: PerRow) -> tuple[Scores, Scores]:
        """Mean and variance of the sums over rows, from each row's mass and squares over the keys."""
        spread = nulls.spread(mass, squares, self.n[:, None].to(mass))
        return mass @ self.mean.to(mass), spread @ self.variance.to(mass)


class Claimed:
    """The claims of measures on a batch, the same for every head: made once, read with any number of patterns.

    Few keys are claimed, so attention is read there alone.
    """

    def __init__(self, rows: Rows, keys: Sequence[Bool[Tensor, "prompt query key"]], *, content: bool = False):
        """Ask each row that is scored and sees a claimed key.

        Args:
            rows: of the batch.
            keys: by measure, the keys that satisfy it; those that a row does not see are passed over.
            content: under the null keys change places with content keys alone, instead of all that are visible.
        """
        claimed = torch.stack([*keys], 1) & (rows.visible & rows.scored[..., None])[:, None]  # prompt measure query key
        self.prompt, self.query, self.key = claimed.any(1).nonzero(as_tuple=True)
        self.claims = claimed[self.prompt, :, self.query, self.key].to(REAL)  # pair measure
        among = rows.visible & rows.content[:, None] if content else rows.visible
        self.among, self.ends = Among.of(rows, among), torch.bincount(self.prompt, minlength=len(rows.ids)).tolist()
        k, n = claimed.sum(-1).transpose(1, 2), among.sum(-1)
        self.kept = self._asked(k, n)
        self.removed = self._asked(k - claimed[..., 0].long().transpose(1, 2), n - among[..., 0].long())

    @staticmethod
    def _asked(k: Tensor, n: Tensor) -> Asked:
        return Asked((k > 0).to(REAL), *nulls.on_set(k.to(REAL), n[..., None].to(REAL)), n.to(REAL))

    def read(self, pattern: Pattern, sink: Sink | None = None) -> dict[str, Sums]:
        """The sums of both readings; `sink` is the pattern's own, where it is known."""
        sink = Sink.of(pattern) if sink is None else sink
        whole, rest = self.among.moments(pattern, sink)
        kept, removed = self._scores(pattern, sink)
        return {
            "kept": Sums(kept, self.kept.counts(None, kept), *self.kept.permuted(*whole)),
            "removed": Sums(removed, self.removed.counts(sink, kept), *self.removed.permuted(*rest)),
        }

    def read_rule(self, pattern: Pattern) -> dict[str, Sums]:
        """The same of a rule: every row counts, one that looks at nothing but the first position too."""
        sink = Sink.of(pattern)
        found = self.read(pattern, replace(sink, scale=torch.where(sink.rest > 0, 1 / sink.rest, 0)))
        readings = {"kept": self.kept, "removed": self.removed}
        return {name: replace(sums, counts=readings[name].counts(None, sums.scores)) for name, sums in found.items()}

    def _scores(self, pattern: Pattern, sink: Sink) -> tuple[Scores, Scores]:
        """Attention to claimed keys, over rows: as it is, and of what is left without the first position."""
        _, n_heads, n_queries, n_keys = pattern.shape
        row = (self.prompt[:, None] * n_heads + torch.arange(n_heads, device=pattern.device)) * n_queries
        row = row + self.query[:, None]  # pair head
        kept = pattern.flatten().index_select(0, (row * n_keys + self.key[:, None]).flatten()).view(row.shape)
        removed = kept * sink.scale.flatten().index_select(0, row.flatten()).view(row.shape) * (self.key > 0)[:, None]
        of_prompt = zip(
            torch.cat([kept, removed], 1).split(self.ends), self.claims.to(kept).split(self.ends), strict=True
        )
        kept, removed = torch.stack([values.T @ claims for values, claims in of_prompt]).split(n_heads, 1)
        return kept, removed


@dataclass(frozen=True)
class Among:
    """The keys that change places: all visible ones, or some of them."""

    keys: Bool[Tensor, "prompt query key"]
    all_behind: bool  # the first position

    @staticmethod
    def of(rows: Rows, keys: Bool[Tensor, "prompt query key"]) -> "Among":
        """With what a row that is scored sees."""
        others = (rows.visible & ~keys)[..., 1:] & rows.scored[..., None]
        return Among(keys, not bool(others.any()))

    def moments(self, pattern: Pattern, sink: Sink) -> list[tuple[PerRow, PerRow]]:
        """Each row's mass and squares over these keys: as it is, and of what is left without the first position."""
        first = sink.first * self.keys[:, None, :, 0]
        if self.all_behind:
            mass, squares = sink.rest, sink.squares
        else:
            rest = pattern[..., 1:] * self.keys[:, None, :, 1:]
            mass, squares = rest.sum(-1), torch.linalg.vector_norm(rest, dim=-1).square_()
        return [(mass + first, squares + first.square()), (mass * sink.scale, squares * sink.scale.square())]
