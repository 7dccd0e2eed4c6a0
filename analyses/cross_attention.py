"""Where does cross-attention look in the source while the decoder writes: at the start, everywhere, or along with it?

Beside position in the stacks' own attention. Queries and keys stand in different texts, so there are no offsets.
"""

import torch

from analyses.measures.definitions import BEHAVIOURS, Behaviour, Rival, declared
from analyses.measures.head_tables import Heads, Scored
from analyses.reading.windows import Batch
from analyses.scoring.collectors import Scoring
from interp import InputError, Model
from interp.patterns import Totals
from interp.patterns.crossing import MEASURES, score
from interp.patterns.rows import SINKS

_UNIFORM, _NO_ORDER = Rival("uniform", lambda crossing: crossing.uniform), Rival("no order", 0.0)
_MEASURES = tuple(  # in the order of `MEASURES`; the last is a number a text
    declared("crossing", name, rivals=(_NO_ORDER if name == "monotonicity" else _UNIFORM,), of_words=False)
    for name in MEASURES
)


class Collector(Scoring):
    """Adds up the measures of cross-attention."""

    def __init__(self, model: Model, *, seed: int = 0, heads: Heads | None = None):
        """Start from nothing.

        Raises:
            InputError: the heads are not those of cross-attention.
        """
        crossing = [kind for kind in Heads.every(model) if kind.attention == "cross"]
        if heads is None and not crossing:
            raise InputError("this model has no cross-attention: expected an encoder and a decoder")
        super().__init__(model, BEHAVIOUR.name, heads or crossing[0])
        self.totals = {sink: Totals.empty(self.heads.count + 1, len(MEASURES)) for sink in SINKS}

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        if batch.crossing is None:
            raise InputError(f"expected patterns of cross-attention: these are of {self.heads.title}")
        patterns = batch.pattern, batch.crossing.uniform.to(batch.pattern)
        for sink in SINKS:
            sums = [score(pattern, batch.crossing, sink_removed=sink == "removed") for pattern in patterns]
            self.totals[sink].add(batch.groups, *(torch.cat(parts, 1) for parts in zip(*sums, strict=True)))

    def scored(self) -> list[Scored]:
        """What was added up. The order of keys that a text's rows favour by chance has no correlation with theirs."""
        scored = []
        for sink in SINKS:
            totals = self.totals[sink]
            parts = totals.scores, totals.weights, totals.rows
            rows, order = Totals(*(part[..., :-1] for part in parts)), Totals(*(part[:, :-1, -1:] for part in parts))
            scored.append(Scored(rows, _MEASURES[:-1], sink))
            scored.append(Scored(order, _MEASURES[-1:], sink))
        return scored


BEHAVIOUR = Behaviour(**BEHAVIOURS["crossing"], measures=_MEASURES, collector=Collector)
