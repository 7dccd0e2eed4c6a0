"""Where does cross-attention look in the source while the decoder writes: at the start, everywhere, or along with it?

Beside position in the stacks' own attention. Queries and keys stand in different texts, so there are no offsets.
"""

from typing import Literal

import torch

from analyses.head_tables import Collected, Heads, Scored
from analyses.reading.collectors import summary
from analyses.reading.windows import Batch, Reading
from interp import InputError, Model
from interp.patterns import Totals
from interp.patterns.crossing import MEASURES, score
from interp.patterns.rows import SINKS

BEHAVIOUR = "position"
NEEDS: frozenset[str] = frozenset()
HEADLINE = ("monotonicity", "diagonal", "first-token", "entropy")
_N_OVER_ROWS = len(MEASURES) - 1  # the last, monotonicity, is a number a text


class Collector:
    """Adds up the measures of cross-attention."""

    def __init__(self, model: Model, *, seed: int = 0, heads: Heads | None = None):
        """Start from nothing.

        Raises:
            InputError: the heads are not those of cross-attention.
        """
        crossing = [each for each in Heads.every(model) if each.attention == "cross"]
        if heads is None and not crossing:
            raise InputError("this model has no cross-attention: expected an encoder and a decoder")
        self.heads = heads or crossing[0]
        self.totals = {sink: Totals.empty(self.heads.count + 1, len(MEASURES)) for sink in SINKS}

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        if batch.crossing is None:
            raise InputError(f"expected patterns of cross-attention: these are of {self.heads.title}")
        for sink in SINKS:
            removed = sink == "removed"
            read = (score(pattern, batch.crossing, sink_removed=removed) for pattern in self._read(batch))
            self.totals[sink].add(batch.groups, *(torch.cat(parts, 1) for parts in zip(*read, strict=True)))

    @staticmethod
    def _read(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        assert batch.crossing is not None
        return batch.pattern, batch.crossing.uniform.to(batch.pattern)

    def collected(self, reading: Reading) -> Collected:
        """What was added up. The order of keys that a text's rows favour by chance has no correlation with theirs."""
        scored = [part for sink in SINKS for part in self._scored(sink, self.totals[sink])]
        return Collected(self.heads, BEHAVIOUR, scored=scored, counts=dict(reading.counts), **summary(reading))

    @staticmethod
    def _scored(sink: Literal["kept", "removed"], totals: Totals) -> list[Scored]:
        rows, order = (
            Totals(*(part[..., measures] for part in (totals.scores, totals.weights, totals.rows)))
            for measures in (slice(_N_OVER_ROWS), slice(_N_OVER_ROWS, None))
        )
        alone = Totals(*(part[:, :-1] for part in (order.scores, order.weights, order.rows)))
        return [
            Scored(rows, MEASURES[:_N_OVER_ROWS], sink, ["uniform"]),
            Scored(alone, MEASURES[_N_OVER_ROWS:], sink, constant=("no order", 0.0)),
        ]
