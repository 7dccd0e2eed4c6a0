"""Near heads in early layers, far heads late: how far away does attention look, layer by layer?

The mean distance between a token and what it attends to, beside that of uniform attention over the same tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from analyses.experiments.experiment import Outcome, with_interval
from analyses.experiments.prompts import tokenizer_of
from analyses.reading.windows import Reading
from analyses.scoring.collectors import refuse_unread
from analyses.wording.formats import number
from interp import AnnotatedText, Model
from interp.patterns import Totals, positional
from interp.statistics import estimate
from models.stories import stories

_STORIES = 60
LAYER = -1  # the head of rows that hold a layer's mean


@dataclass(frozen=True)
class Distances(Outcome):
    """With the last layer's distance less the first's, and its interval, as columns; None in a single layer."""

    contrast: Mapping[str, float] | None = None


def measure(model: Model, corpus: Iterable[AnnotatedText] | None = None, *, seed: int = 0) -> Distances:
    """Mean attention distance of every head, in tokens; `head` -1 is the mean of its layer.

    Raises:
        InputError: an empty corpus, one that is unknown to the model's tokenizer, or no tokenizer.
    """
    tokenizer_of(model, unfinished=False)
    causal = model.config.last.causal
    layers, heads = model.config.n_layers, model.config.n_heads
    totals = Totals.empty(layers * heads + 1, 1)
    reading = Reading(model, list(stories(_STORIES, seed + 2)) if corpus is None else corpus)
    column = positional.measures(causal=causal).index("distance")
    for batch in reading:
        both = torch.cat([batch.pattern, batch.rows.uniform], 1)  # uniform attention is one more head
        sums = positional.Questions(batch.rows, causal=causal).read(both)["kept"]
        totals.add(batch.groups, sums.scores[..., column, None], sums.counts[..., column, None])
    refuse_unread(reading.counts, "the generated stories" if corpus is None else "the corpus")
    scores, rows = totals.scores[..., 0].numpy(), totals.weights[..., 0].numpy()
    by_layer = [sums[:, :-1].reshape(-1, layers, heads).sum(-1) for sums in (scores, rows)]
    columns = (np.hstack([sums, layer]) for sums, layer in zip((scores[:, :-1], rows[:, :-1]), by_layer, strict=True))
    result = estimate(*columns, seed=seed)
    ends = estimate(*(sums[:, [layer]] for layer in (-1, 0) for sums in by_layer), seed=seed) if layers > 1 else None
    layer, head = np.unravel_index(np.arange(layers * heads), (layers, heads))
    table = {
        "layer": [*layer, *range(layers)],
        "head": [*head, *[LAYER] * layers],
        "distance": result.value,
        "uniform": scores[:, -1].sum() / rows[:, -1].sum(),
        "ci_low": result.low,
        "ci_high": result.high,
        "n": int(rows[:, -1].sum()),
    }
    return Distances(
        pd.DataFrame(table),
        used={"stories" if corpus is None else "corpus": len(reading.documents)},
        left_out={name: count for name, count in reading.counts.items() if "left out" in name},
        contrast=ends and {"gain": float(ends.gain[0]), "ci_low": float(ends.low[0]), "ci_high": float(ends.high[0])},
    )


def sentence(outcome: Distances) -> str:
    """The first and the last layer's mean distance, and the difference."""
    layers = outcome.table.loc[outcome.table["head"] == LAYER].sort_values("layer").to_dict("records")
    first, last = layers[0], layers[-1]
    text = f"Attention looks {with_interval(first, 'distance')} tokens away in layer 0"
    if outcome.contrast:
        value, low, high = outcome.contrast.values()
        way = "farther" if low > 0 else "nearer" if high < 0 else "neither surely nearer nor farther, the difference"
        bounds = (-value, -high, -low) if high < 0 else (value, low, high)
        difference = with_interval(dict(zip(outcome.contrast, bounds, strict=True)), "gain")
        text += f" and {with_interval(last, 'distance')} in layer {last['layer']}: {way} by {difference}"
    texts = sum(outcome.used.values())
    return (
        f"{text}, where uniform attention would look {last['uniform']:.2f} ({number(last['n'])} tokens, {texts} texts)."
    )
