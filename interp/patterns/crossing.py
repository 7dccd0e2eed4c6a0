"""Where does a head of cross-attention look in the source, while the decoder writes the target?

Queries are positions of the target, keys of the source, so there are no offsets. Each measure is a mean over eligible
rows, but `monotonicity`, which is a number a text; definitions and baselines: `docs/measures/position.md`.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patterns.rows import REAL, Pattern, Sink, argmax, entropies

MEASURES = ("first-token", "entropy", "diagonal", "monotonicity")
_FEWEST = 3  # rows of a text below which a rank correlation says nothing


@dataclass(frozen=True)
class Crossing:
    """What is known about the queries and keys of a batch of cross-attention patterns.

    scored   prompt query    True at the target's content tokens whose rows are counted here
    target   prompt query    True at the target's real tokens
    source   prompt key      True at the source's real tokens, which every query sees; padding stands behind them
    """

    scored: Bool[Tensor, "prompt query"]
    target: Bool[Tensor, "prompt query"]
    source: Bool[Tensor, "prompt key"]

    @property
    def uniform(self) -> Float[Tensor, "prompt 1 query key"]:
        """The pattern of a head that looks at all of the source alike: the baseline, through the same scorer."""
        real = self.source.to(REAL)
        return (real / real.sum(-1, keepdim=True))[:, None, None].expand(-1, 1, self.scored.shape[1], -1)

    @cached_property
    def off_diagonal(self) -> Float[Tensor, "prompt query key"]:
        """|key / last key - query / last query|: 0 where both have come as far through their text, at most 1."""
        return (_progress(self.target)[..., None] - _progress(self.source)[:, None]).abs()


def _progress(real: Bool[Tensor, "prompt position"]) -> Float[Tensor, "prompt position"]:
    """How far through its text each token stands, from 0 to 1."""
    place = (real.cumsum(-1) - 1).clamp(min=0).to(REAL)
    return place / (real.sum(-1, keepdim=True) - 1).clamp(min=1)


def score(
    pattern: Pattern, crossing: Crossing, *, sink_removed: bool = False
) -> tuple[Float[Tensor, "prompt head measure"], Float[Tensor, "prompt head measure"]]:
    """Sums over eligible rows, and how many rows (for monotonicity: texts) they are.

    With `sink_removed` the source's first position is taken off and the rest renormalised; rows that keep less than
    0.01 of their mass are left out.
    """
    source, rows = crossing.source, crossing.scored[:, None].expand(pattern.shape[:-1])
    if sink_removed:
        sink = Sink.of(pattern)
        rows = rows & sink.kept
        pattern = torch.cat([torch.zeros_like(pattern[..., :1]), pattern[..., 1:] * sink.scale[..., None]], -1)
    n_keys = source[:, int(sink_removed) :].sum(-1)[:, None, None]
    has_choice = rows & (n_keys >= 2)
    entropy = entropies(pattern) / n_keys.clamp(min=2).log()
    diagonal = (pattern * crossing.off_diagonal[:, None].to(pattern)).sum(-1)
    eligible = [rows & (not sink_removed), has_choice, has_choice]
    sums = [(value * rows).sum(-1) for value, rows in zip((pattern[..., 0], entropy, diagonal), eligible, strict=True)]
    correlation, defined = _rank_correlation(pattern, rows)
    scores = torch.stack([*sums, correlation], -1)
    return scores, torch.stack([*(rows.sum(-1) for rows in eligible), defined], -1).to(scores)


def _rank_correlation(
    pattern: Pattern, rows: Bool[Tensor, "prompt head query"]
) -> tuple[Float[Tensor, "prompt head"], Bool[Tensor, "prompt head"]]:
    """Spearman's correlation of the favourite key with the query over a text's rows, and whether it is defined.

    It is not where a text has fewer than three rows, or where all of them favour one key.
    """
    key = argmax(pattern)
    query = torch.arange(key.shape[-1], device=key.device).expand_as(key)
    first, second = _ranks(key, rows), _ranks(query, rows)
    n = rows.sum(-1)
    spread = (first.square().sum(-1) * second.square().sum(-1)).sqrt()
    defined = (n >= _FEWEST) & (spread > 0)
    return torch.where(defined, (first * second).sum(-1) / spread.clamp(min=1e-12), 0.0).to(pattern), defined


def _ranks(value: Tensor, rows: Bool[Tensor, "prompt head query"]) -> Float[Tensor, "prompt head query"]:
    """Ranks among the rows that count, equal values sharing theirs, less their mean; 0 elsewhere."""
    candidates = rows[..., None, :]
    below = ((value[..., None, :] < value[..., None]) & candidates).sum(-1)
    level = ((value[..., None, :] == value[..., None]) & candidates).sum(-1)
    rank = below + (level + 1) / 2
    mean = (rank * rows).sum(-1, keepdim=True) / rows.sum(-1, keepdim=True).clamp(min=1)
    return (rank - mean) * rows
