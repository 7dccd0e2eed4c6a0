"""Where does a head attend, in positions? Previous token, fixed offsets, the first token, copies, distance.

Each measure is a mean over eligible rows; definitions and baselines are in the table of `docs/measures/position.md`.
Offsets are key - query, so the previous token is -1.

Both readings come from one set of values per row: without the first position's attention f, a row's mass and all that
is linear in it are divided by 1 - f; its entropy follows from the same sum of -A log A.

In cross-attention, queries are positions of the target and keys of the source, so there are no offsets. Measures are
means over eligible rows there too, except `monotonicity`, which is one number per text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patterns import nulls
from interp.patterns.claimed import Claimed, Eligible, Exchange, Scores, Sums
from interp.patterns.rows import REAL, SINKS, TINY, Pattern, Rows, Sink, argmax, entropies
from interp.patterns.totals import Totals

OFFSETS = (-5, -4, -3, -2, -1, 1, 2, 3)
MODE_RANGE = 16  # we look for a positional head's fixed offset among -16..16
N_MODES = 2 * MODE_RANGE + 1
CROSSING = ("first-token", "entropy", "diagonal", "monotonicity")  # the measures of cross-attention
_FEWEST = 3  # fewest rows of a text for a rank correlation
SPREAD = ("distance", "entropy")  # measures that claim no keys
Claims = Bool[Tensor, "prompt query key"]
Mask = Callable[[Rows], Claims]


def offset_name(offset: int) -> str:
    """The measure's name; the nearest neighbours have special names."""
    return {-1: "previous-token", 1: "next-token"}.get(offset, f"offset:{offset}")


# Which keys satisfy a measure (`prompt query key`), whether a row sees them or not.


def near(rows: Rows, offset: int) -> Claims:
    """The key at an offset."""
    n_queries, n_keys = rows.visible.shape[1:]
    key, query = (torch.arange(n, device=rows.ids.device) for n in (n_keys, n_queries))
    return (key - query[:, None] == offset) & rows.content[:, None]


def first_token(rows: Rows) -> Claims:
    """The first position, for every other row."""
    claims = torch.zeros_like(rows.visible)
    claims[:, 1:, 0] = True
    return claims


def earlier_copies(rows: Rows) -> Claims:
    """Earlier copies of the row's token."""
    copies = (rows.ids[:, :, None] == rows.ids[:, None, :]) & rows.content[:, None, :] & rows.content[..., None]
    return copies.tril(-1)


def after_copies(rows: Rows) -> Claims:
    """The tokens after earlier copies of the row's token."""
    return earlier_copies(rows).roll(1, -1).tril(-1)  # a row's last column has no copy but itself


class Questions:
    """What every measure reads in a batch's rows: computed once, applied to any number of patterns.

    Without the first position, rows that keep less than 0.01 of their mass, and rows whose key would be the first
    position, are not eligible.
    """

    def __init__(self, rows: Rows, masks: Mapping[str, Mask]):
        """Take the measures' masks by name. For the first token, special tokens count as keys."""
        self.names = [*masks, *SPREAD]
        self.order, self.parts = [], []
        for special in (False, True):
            names = [name for name, mask in masks.items() if (mask is first_token) == special]
            self.order += names
            if names:
                self.parts.append(Claimed(rows, [masks[name](rows) for name in names], content=not special))
        self.order += SPREAD
        self.parts.append(_Spread(rows))

    def read(self, pattern: Pattern, sink: Sink | None = None) -> dict[str, Sums]:
        """The sums of both readings, measures in the order of `names`; `sink` is the pattern's own, if known."""
        sink = Sink.from_pattern(pattern) if sink is None else sink
        parts, order = [part.read(pattern, sink) for part in self.parts], [*map(self.order.index, self.names)]
        return {name: Sums.joined([part[name] for part in parts], order) for name in parts[0]}


class _Spread:
    """How far away, and how evenly, each row attends. Permuting keys does not change the second."""

    def __init__(self, rows: Rows):
        key, query = (torch.arange(n, device=rows.ids.device) for n in rows.visible.shape[:0:-1])
        self.distance, self.exchange = (query[:, None] - key).abs().to(REAL), Exchange(rows, rows.visible)
        self.eligible, self.logarithms = [], []
        for visible in (rows.visible, rows.visible & (key > 0)):
            n, visible_keys = visible.sum(-1), visible.to(REAL)
            far, square = ((visible_keys * power).sum(-1) for power in (self.distance, self.distance.square()))
            eligible = torch.stack([rows.scored & (n >= least) for least in (1, 2)], -1).to(REAL)
            mean, variance = (torch.stack([part * eligible[..., 0], torch.full_like(part, torch.nan)], -1)
                       for part in nulls.weighted(far, square, n.to(REAL)))  # fmt: skip
            self.eligible.append(Eligible(eligible, mean, variance, n.to(REAL)))
            self.logarithms.append(n.clamp(min=2).log())

    def read(self, pattern: Pattern, sink: Sink) -> dict[str, Sums]:
        """Distance and entropy."""
        behind = self.distance.clone()  # subtracting a first key that dominates the sum would leave rounding
        behind[:, 0] = 0
        far = torch.stack([(part * behind.to(part)).sum(-1) for part in pattern])
        entropy = torch.stack([entropies(part) for part in pattern])
        rest = (entropy + sink.first.clamp(min=TINY).log() * sink.first) * sink.scale
        # -sum (A/m) log (A/m) = (-sum A log A) / m + log m, where m = 1 / scale
        rest = rest - torch.where(sink.has_rest, sink.scale, 1).log()
        values = (far + sink.first * self.distance[:, 0], entropy), (far * sink.scale, rest)
        parts = zip(self.eligible, values, self.logarithms, self.exchange.moments(sink), (None, sink), strict=True)
        sums = []
        for rows, (distance, evenness), logarithm, *moments in parts:
            values_of_rows = torch.stack([distance, evenness / logarithm[:, None]], -1)
            sums.append(rows.sums((values_of_rows * rows.eligible[:, None]).sum(2), *moments))
        return dict(zip(SINKS, sums, strict=True))


class Modes(Totals):
    """How many rows of each head attend most to each offset (`argmax_offsets`); `finish` counts the rows at its most
    frequent offset. For a subset of groups, that offset is the subset's own."""

    def finish(self) -> Totals:
        """One measure: the share of rows at the most frequent offset."""
        best = self.scores.sum(0).argmax(-1)
        pick = best[None, :, None].expand(len(self.scores), -1, 1)
        return Totals(self.scores.gather(-1, pick), self.weights[..., :1], self.rows[..., :1])


def argmax_offsets(pattern: Pattern, rows: Rows) -> tuple[Scores, Scores]:
    """How many rows attend most to each offset in -16..16, and how many rows there are (Voita 2019)."""
    offset = argmax(pattern) - torch.arange(pattern.shape[-2], device=pattern.device)
    counted = (offset.abs() <= MODE_RANGE) & rows.scored[:, None]
    bins = (offset + MODE_RANGE).clamp(0, N_MODES - 1)
    counts = pattern.new_zeros(*pattern.shape[:2], N_MODES)
    counts.scatter_add_(-1, bins, counted.to(pattern.dtype))
    return counts, rows.scored.sum(-1).to(pattern.dtype)[:, None, None].expand_as(counts)


# Cross-attention: where does a head look in the source, while the decoder writes the target?


@dataclass(frozen=True)
class Crossing:
    """Which queries and keys of a batch of cross-attention patterns count."""

    scored: Bool[Tensor, "prompt query"]  # True at the target's content tokens whose rows are counted here
    target: Bool[Tensor, "prompt query"]  # True at the target's real tokens
    source: Bool[Tensor, "prompt key"]  # True at the source's real tokens, which every query sees; right-padded

    @property
    def uniform(self) -> Float[Tensor, "prompt 1 query key"]:
        """The pattern of a head that attends to the whole source uniformly: the baseline, for the same scorer."""
        real = self.source.to(REAL)
        return (real / real.sum(-1, keepdim=True))[:, None, None].expand(-1, 1, self.scored.shape[1], -1)


def _progress(real: Bool[Tensor, "prompt position"]) -> Float[Tensor, "prompt position"]:
    """How far through its text each token is, from 0 to 1."""
    place = (real.cumsum(-1) - 1).clamp(min=0).to(REAL)
    return place / (real.sum(-1, keepdim=True) - 1).clamp(min=1)


def score_crossing(
    pattern: Pattern, crossing: Crossing, *, sink_removed: bool = False
) -> tuple[Float[Tensor, "prompt head measure"], Float[Tensor, "prompt head measure"]]:
    """Sums over eligible rows, and the number of rows (for monotonicity: texts).

    With `sink_removed` the source's first position is removed and the rest renormalised; rows that keep less than 0.01
    of their mass are left out.
    """
    source, rows = crossing.source, crossing.scored[:, None].expand(pattern.shape[:-1])
    if sink_removed:
        sink = Sink.from_pattern(pattern)
        rows = rows & sink.has_rest
        pattern = torch.cat([torch.zeros_like(pattern[..., :1]), pattern[..., 1:] * sink.scale[..., None]], -1)
    n_keys = source[:, int(sink_removed) :].sum(-1)[:, None, None]
    has_choice = rows & (n_keys >= 2)
    entropy = entropies(pattern) / n_keys.clamp(min=2).log()
    # |key / last key - query / last query|: 0 if both are equally far through their text, at most 1
    off_diagonal = (_progress(crossing.target)[..., None] - _progress(source)[:, None]).abs()
    diagonal = (pattern * off_diagonal[:, None].to(pattern)).sum(-1)
    eligible = [rows & (not sink_removed), has_choice, has_choice]
    sums = [(value * rows).sum(-1) for value, rows in zip((pattern[..., 0], entropy, diagonal), eligible, strict=True)]
    correlation, defined = _rank_correlation(pattern, rows)
    scores = torch.stack([*sums, correlation], -1)
    return scores, torch.stack([*(rows.sum(-1) for rows in eligible), defined], -1).to(scores)


def _rank_correlation(
    pattern: Pattern, rows: Bool[Tensor, "prompt head query"]
) -> tuple[Float[Tensor, "prompt head"], Bool[Tensor, "prompt head"]]:
    """Spearman's correlation of the most attended key with the query over a text's rows, and whether it is defined.

    It is undefined if a text has fewer than three rows, or if all of them attend most to one key.
    """
    key = argmax(pattern)
    query = torch.arange(key.shape[-1], device=key.device).expand_as(key)
    first, second = _ranks(key, rows), _ranks(query, rows)
    n = rows.sum(-1)
    spread = (first.square().sum(-1) * second.square().sum(-1)).sqrt()
    defined = (n >= _FEWEST) & (spread > 0)
    return torch.where(defined, (first * second).sum(-1) / spread.clamp(min=1e-12), 0.0).to(pattern), defined


def _ranks(value: Tensor, rows: Bool[Tensor, "prompt head query"]) -> Float[Tensor, "prompt head query"]:
    """Ranks among the rows that count (ties share their mean rank), minus their mean; 0 elsewhere."""
    candidates = rows[..., None, :]
    below = ((value[..., None, :] < value[..., None]) & candidates).sum(-1)
    level = ((value[..., None, :] == value[..., None]) & candidates).sum(-1)
    rank = below + (level + 1) / 2
    mean = (rank * rows).sum(-1, keepdim=True) / rows.sum(-1, keepdim=True).clamp(min=1)
    return (rank - mean) * rows
