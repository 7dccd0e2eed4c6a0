"""How much attention falls on the keys that measures claim? One batched product reads all measures of all heads.

A measure claims keys, `prompt query key`. A row that sees a claimed key counts; its value is the attention there. The
null permutes a row's keys (`interp.patterns.nulls`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.rows import REAL, SINKS, Pattern, Rows, Sink

Scores = Float[Tensor, "prompt head measure"]
PerRow = Float[Tensor, "prompt head query"]


@dataclass(frozen=True)
class Sums:
    """Sums over eligible rows, the number of rows, and the sums' mean and variance under permuted keys."""

    scores: Scores
    counts: Scores
    null_mean: Scores
    null_variance: Scores

    @staticmethod
    def joined(parts: "Sequence[Sums]", order: Sequence[int]) -> "Sums":
        """The measures of all parts, reordered by `order`."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return Sums(*(torch.cat(column, -1)[..., [*order]] for column in columns))


class Exchange:
    """The keys that are permuted: all visible ones, or some of them."""

    def __init__(self, rows: Rows, keys: Bool[Tensor, "prompt query key"]):
        self.first = keys[:, None, :, 0]
        unexchanged = (rows.visible & ~keys)[..., 1:] & rows.scored[..., None]
        self.behind = keys[:, None, :, 1:] if bool(unexchanged.any()) else None  # None: all that rows see

    def moments(self, sink: Sink) -> list[tuple[PerRow, PerRow]]:
        """Each row's mass and sum of squares over these keys: with the first position, and renormalised without it."""
        first, mass, squares = sink.first * self.first, sink.rest, sink.squares
        if self.behind is not None:
            rest = sink.behind * self.behind
            mass, squares = rest.sum(-1), torch.linalg.vector_norm(rest, dim=-1).square_()
        return [(mass + first, squares + first.square()), (mass * sink.scale, squares * sink.scale.square())]


@dataclass(frozen=True)
class Eligible:
    """Which rows of a batch count in one reading, and the factors of the null's mean and variance."""

    eligible: Float[Tensor, "prompt query measure"]  # 1 if a row counts
    mean: Float[Tensor, "prompt query measure"]  # the null's mean over the row's mass
    variance: Float[Tensor, "prompt query measure"]  # its variance over the row's spread
    n: Float[Tensor, "prompt query"]  # how many keys are permuted

    def sums(self, scores: Scores, moments: tuple[PerRow, PerRow], sink: Sink | None = None) -> Sums:
        """Scores with their row counts (with `sink`, each head's rows that keep enough mass without it) and null."""
        (mass, squares), eligible = moments, self.eligible.to(scores)
        counts = eligible.sum(1)[:, None].expand_as(scores) if sink is None else sink.has_rest.to(scores) @ eligible
        spread = nulls.spread(mass, squares, self.n[:, None].to(mass))
        return Sums(scores, counts, mass @ self.mean.to(mass), spread @ self.variance.to(mass))


class Claimed:
    """The claims of measures on a batch, the same for every head: built once, read with any number of patterns.

    Few keys are claimed, so only attention to these is read.
    """

    def __init__(self, rows: Rows, keys: Sequence[Bool[Tensor, "prompt query key"]], *, content: bool = False):
        """Count each scored row that sees one of the `keys` that a measure claims.

        The null permutes them among all visible keys, or among `content` keys only.
        """
        claimed = torch.stack([*keys], 1) & (rows.visible & rows.scored[..., None])[:, None]  # prompt measure query key
        self.prompt, self.query, self.key = claimed.any(1).nonzero(as_tuple=True)
        self.claims = claimed[self.prompt, :, self.query, self.key].to(REAL)  # pair measure
        exchanged = rows.visible & rows.content[:, None] if content else rows.visible
        self.exchange = Exchange(rows, exchanged)
        self.ends = torch.bincount(self.prompt, minlength=len(rows.ids)).tolist()
        self.eligible = []
        n_prompts, n_measures, n_queries, _ = claimed.shape
        for first in (0, 1):  # with the first position, then without
            counted = self.claims * (self.key >= first)[:, None]
            k = torch.zeros(n_prompts * n_queries, n_measures, device=self.key.device)
            k = k.index_add_(0, self.prompt * n_queries + self.query, counted).unflatten(0, (n_prompts, n_queries))
            n = exchanged[..., first:].sum(-1).to(REAL)
            self.eligible.append(Eligible((k > 0).to(REAL), *nulls.on_set(k, n[..., None]), n))

    def read(self, pattern: Pattern, sink: Sink | None = None) -> dict[str, Sums]:
        """The sums of both readings; `sink` is the pattern's own, if already computed."""
        sink = Sink.from_pattern(pattern) if sink is None else sink
        parts = zip(self.eligible, self._scores(pattern, sink), self.exchange.moments(sink), (None, sink), strict=True)
        return {name: rows.sums(*part) for name, (rows, *part) in zip(SINKS, parts, strict=True)}

    def read_rule(self, pattern: Pattern) -> dict[str, Sums]:
        """The same for a rule's pattern: every row counts, even one that attends only to the first position."""
        sink = Sink.from_pattern(pattern)
        readings = self.read(pattern, replace(sink, scale=torch.where(sink.rest > 0, 1 / sink.rest, 0)))
        counts = [rows.eligible.to(pattern).sum(1)[:, None] for rows in self.eligible]
        return {
            name: replace(sums, counts=count.expand_as(sums.scores))
            for (name, sums), count in zip(readings.items(), counts, strict=True)
        }

    def _scores(self, pattern: Pattern, sink: Sink) -> tuple[Scores, Scores]:
        """Attention to claimed keys, summed over rows: with the first position, and renormalised without it."""
        n_keys, claims, sums = pattern.shape[-1], self.claims.to(pattern), []
        columns = (self.query * n_keys + self.key, self.query, self.key > 0, claims)
        for prompt, (place, query, behind, measures) in enumerate(
            zip(*(each.split(self.ends) for each in columns), strict=True)
        ):
            whole = pattern[prompt].flatten(1).index_select(1, place)  # head pair
            removed = whole * sink.scale[prompt].index_select(1, query) * behind
            sums.append(torch.cat([whole, removed]).mT.contiguous().mT @ measures)
        whole, removed = torch.stack(sums).split(pattern.shape[1], 1)
        return whole, removed
