"""Where does cross-attention look in the source while the decoder writes: at the start, everywhere, or along with it?

Beside position in the stacks' own attention. Queries and keys stand in different texts, so there are no offsets.
"""

from typing import Any

import torch

from analyses.measures import Behaviour, Measure, Rival
from analyses.reading.collectors import Scoring
from analyses.reading.windows import Batch
from analyses.tables.head_tables import Heads, Scored
from analyses.wording.plain_words import Words
from interp import InputError, Model
from interp.patterns import Totals
from interp.patterns.crossing import MEASURES, score
from interp.patterns.rows import SINKS

_UNIFORM, _NO_ORDER = Rival("uniform", lambda crossing: crossing.uniform), Rival("no order", 0.0)
_ROWS: dict[str, Any] = {"rivals": (_UNIFORM,), "of_words": False}
_ORDER: dict[str, Any] = _ROWS | {"rivals": (_NO_ORDER,), "recorded": "monotonicity"}
_FIRST = Words("first token", "rests on the first token", "words", "the first token")
_IN_ORDER = Words("source in order", "walks through the source in order")
_MEASURES = (  # in the order of `MEASURES`; the last is a number a text
    Measure("first-token", "attention to the first source token", words=_FIRST, **_ROWS),
    Measure("entropy", "how evenly attention is spread over the source", unit="entropy", **_ROWS),
    Measure("diagonal", "how far from the diagonal attention falls", unit="progress", **_ROWS),
    Measure("monotonicity", "how orderly the source is walked through", unit="correlation", words=_IN_ORDER, **_ORDER),
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
        both = batch.pattern, batch.crossing.uniform.to(batch.pattern)
        for sink in SINKS:
            read = [score(pattern, batch.crossing, sink_removed=sink == "removed") for pattern in both]
            self.totals[sink].add(batch.groups, *(torch.cat(parts, 1) for parts in zip(*read, strict=True)))

    def scored(self) -> list[Scored]:
        """What was added up. The order of keys that a text's rows favour by chance has no correlation with theirs."""
        scored = []
        for sink in SINKS:
            totals = self.totals[sink]
            parts = totals.scores, totals.weights, totals.rows
            rows, order = Totals(*(part[..., :-1] for part in parts)), Totals(*(part[:, :-1, -1:] for part in parts))
            scored.append(Scored(rows, _MEASURES[:-1], sink, [_UNIFORM.name]))
            scored.append(Scored(order, _MEASURES[-1:], sink, constant=(_NO_ORDER.name, 0.0)))
        return scored


BEHAVIOUR = Behaviour(
    "position",
    "Position",
    _MEASURES,
    Collector,
    headline=("monotonicity", "diagonal", "first-token", "entropy"),
    described=(
        "Where in the source does a head look as the target is written? Monotonicity is the rank correlation, text by "
        "text, of the most attended source token with the target’s: at 1 it walks through it. Attention to "
        "the first source token is compared with a head that looks at the whole source alike; diagonal and entropy "
        "describe."
    ),
    grids={
        "share": "Which heads look by position?",
        "entropy": "Which heads look at few tokens, and which at all alike?",
        "correlation": "Which heads walk through the source as the target is written?",
        "progress": "How far from the diagonal do heads look?",
    },
    colour="blue",
    attention="cross",
)
