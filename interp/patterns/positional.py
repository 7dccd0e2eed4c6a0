"""Where does a head look, counted in positions? Previous token, fixed offsets, the first token, copies, distance.

Each measure is a mean over eligible rows; definitions and baselines are in the table of `docs/measures.md`.
Offsets are key - query, so the previous token is -1.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns.rows import Rows, remove_sink
from interp.patterns.totals import Totals

OFFSETS = (-5, -4, -3, -2, -1, 1, 2, 3)
MODE_RANGE = 16  # the fixed offset of a positional head is looked for among -16..16

Pattern = Float[Tensor, "prompt head query key"]
Scores = Float[Tensor, "prompt head measure"]


def offset_name(offset: int) -> str:
    """The measure's name: the nearest neighbours have their own."""
    return {-1: "previous-token", 1: "next-token"}.get(offset, f"offset:{offset}")


def offsets(causal: bool) -> tuple[int, ...]:
    """The offsets that a stack can show: a causal one sees no key after the query."""
    return tuple(offset for offset in OFFSETS if offset < 0 or not causal)


def measures(causal: bool) -> list[str]:
    """Names of the measures in the order in which `score` returns them."""
    return [*map(offset_name, offsets(causal)), "first-token", "self", "duplicate-token", "distance", "entropy"]


def score(pattern: Pattern, rows: Rows, *, causal: bool, sink_removed: bool = False) -> tuple[Scores, Scores]:
    """Sums over eligible rows, and how many rows they are, for each prompt, head and measure.

    With `sink_removed` the first position is taken off and the rest renormalised; rows that keep less than 0.01 of
    their mass, and rows whose key would be the first position, are not eligible.
    """
    kept = None
    if sink_removed:
        pattern, kept = remove_sink(pattern)
    # key_ok: what may be looked at; the first position is no longer there once it is removed
    key_ok = rows.content.clone()
    visible = rows.visible.clone()
    if sink_removed:
        key_ok[:, 0] = False
        visible[..., 0] = False
    found = [_offset(pattern, rows.scored, key_ok, k) for k in offsets(causal)]
    found += [_first(pattern, rows, sink_removed), _offset(pattern, rows.scored, key_ok, 0)]
    found += [_duplicates(pattern, rows, key_ok), _distance(pattern, rows), _entropy(pattern, rows, visible)]
    sums, counts = [], []
    for each, eligible in found:
        counted = eligible[:, None].expand(each.shape) if kept is None else eligible[:, None] & kept
        sums.append((each * counted).sum(-1))
        counts.append(counted.sum(-1).to(each.dtype))
    return torch.stack(sums, -1), torch.stack(counts, -1)


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


Row = tuple[Float[Tensor, "prompt head query"], Bool[Tensor, "prompt query"]]


def _offset(pattern: Pattern, query_ok: Tensor, key_ok: Tensor, offset: int) -> Row:
    """Mass on the key at `offset` from each query; eligible where that key is there."""
    n = pattern.shape[-1]
    diagonal = pattern.diagonal(offset, -2, -1)
    start = max(0, -offset)
    value = pattern.new_zeros(pattern.shape[:-1])
    eligible = torch.zeros_like(query_ok)
    stop = start + diagonal.shape[-1]
    value[..., start:stop] = diagonal
    eligible[:, start:stop] = query_ok[:, start:stop] & key_ok[:, start + offset : min(stop + offset, n)]
    return value, eligible


def _first(pattern: Pattern, rows: Rows, sink_removed: bool) -> Row:
    eligible = rows.scored.clone()
    eligible[:, 0] = False
    return pattern[..., 0], eligible & (not sink_removed)


def _duplicates(pattern: Pattern, rows: Rows, key_ok: Tensor) -> Row:
    """Mass on earlier copies of the query's own token; eligible where there is one."""
    copies = (rows.ids[:, :, None] == rows.ids[:, None, :]) & key_ok[:, None, :] & rows.visible
    copies = copies.tril(-1)
    return (pattern * copies[:, None]).sum(-1), copies.any(-1) & rows.scored


def _distance(pattern: Pattern, rows: Rows) -> Row:
    at = torch.arange(pattern.shape[-1], device=pattern.device, dtype=pattern.dtype)
    return (pattern * (at[:, None] - at).abs()).sum(-1), rows.scored


def _entropy(pattern: Pattern, rows: Rows, visible: Tensor) -> Row:
    """-sum A log A over the logarithm of how many keys the query sees: 1 for a uniform row."""
    n_visible = visible.sum(-1)
    entropy = torch.special.entr(pattern).sum(-1)
    return entropy / n_visible.clamp(min=2).log()[:, None], rows.scored & (n_visible >= 2)


def argmax_offsets(pattern: Pattern, rows: Rows) -> tuple[Scores, Scores]:
    """How many rows look hardest at each offset in -16..16, and how many rows there are (Voita 2019)."""
    at = torch.arange(pattern.shape[-1], device=pattern.device)
    offset = pattern.argmax(-1) - at
    near = (offset.abs() <= MODE_RANGE) & rows.scored[:, None]
    bins = (offset + MODE_RANGE).clamp(0, 2 * MODE_RANGE)
    counts = pattern.new_zeros(*pattern.shape[:2], 2 * MODE_RANGE + 1)
    counts.scatter_add_(-1, bins, near.to(pattern.dtype))
    n_rows = rows.scored.sum(-1).to(pattern.dtype)[:, None, None].expand_as(counts)
    return counts, n_rows
