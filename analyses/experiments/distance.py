"""Near heads in early layers, far heads late: how far away does attention look, layer by layer?

The mean distance between a token and what it attends to, beside that of uniform attention over the same tokens.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from analyses.experiments.prompts import finish, tokenizer_of, with_interval
from analyses.reading.collectors import refuse_unread
from analyses.reading.windows import Reading
from interp import AnnotatedText, Transformer
from interp.patterns import Totals, positional
from interp.statistics import estimate
from models.stories import stories

NAME, COMMAND = "distance", "position"
TITLE = "Near heads and far heads"
QUESTION = "Do later layers look farther away?"
CAPTION = "A dot is a head; distances are counted in tokens."

_STORIES = 60
LAYER = -1  # the head of rows that hold a layer's mean


def measure(model: Transformer, corpus: Iterable[AnnotatedText] | None = None, *, seed: int = 0) -> pd.DataFrame:
    """Mean attention distance of every head, in tokens; `head` -1 is the mean of its layer.

    Columns: layer, head, distance, uniform, ci_low, ci_high (of the distance, over documents), n (tokens);
    `attrs["contrast"]` is the last layer's distance less the first's, with its interval; missing in a single layer.

    Raises:
        InputError: an empty corpus, one that is unknown to the model's tokenizer, or no tokenizer.
    """
    tokenizer_of(model, unfinished=False)
    causal = model.config.last.causal
    layers, heads = model.config.n_layers, model.config.n_heads
    totals = Totals.empty(layers * heads + 1, 1)
    reading = Reading(model, list(stories(_STORIES, seed + 2)) if corpus is None else corpus)
    at = positional.measures(causal=causal).index("distance")
    for batch in reading:
        both = torch.cat([batch.pattern, batch.rows.uniform], 1)  # uniform attention is one more head
        scores, rows = positional.score(both, batch.rows, causal=causal)
        totals.add(batch.groups, scores[..., at, None], rows[..., at, None])
    refuse_unread(reading.counts, "the generated stories" if corpus is None else "the corpus")
    scores, rows = totals.scores[..., 0].numpy(), totals.weights[..., 0].numpy()
    table = _table(scores, rows, (layers, heads), seed)
    unread = {name: count for name, count in reading.counts.items() if "left out" in name}
    table = finish(table, Counter(unread), {"stories" if corpus is None else "corpus": len(reading.documents)})
    table.attrs["documents"] = len(reading.documents)
    table.attrs["contrast"] = _contrast(scores, rows, (layers, heads), seed)
    return table


def _table(scores: NDArray[np.float64], rows: NDArray[np.float64], shape: tuple[int, int], seed: int) -> pd.DataFrame:
    """Distances of heads and of layers; totals are group x head, uniform attention last."""
    layers, heads = shape
    by_layer = [each[:, :-1].reshape(-1, layers, heads).sum(-1) for each in (scores, rows)]
    columns = [np.concatenate([each[:, :-1], layer], 1) for each, layer in zip((scores, rows), by_layer, strict=True)]
    nothing = np.zeros_like(columns[0])
    found = estimate(columns[0], columns[1], nothing, nothing + 1, seed=seed)
    layer, head = np.unravel_index(np.arange(layers * heads), shape)
    return pd.DataFrame(
        {
            "layer": [*layer, *range(layers)],
            "head": [*head, *[LAYER] * layers],
            "distance": found.value,
            "uniform": scores[:, -1].sum() / rows[:, -1].sum(),
            "ci_low": found.low,
            "ci_high": found.high,
            "n": [*[int(rows[:, -1].sum())] * (layers * heads + layers)],
        }
    )


def _contrast(
    scores: NDArray[np.float64], rows: NDArray[np.float64], shape: tuple[int, int], seed: int
) -> tuple[float, float, float] | None:
    layers, _ = shape
    if layers == 1:
        return None
    by_layer = [each[:, :-1].reshape(-1, *shape).sum(-1) for each in (scores, rows)]
    ends = [each[:, [at]] for at in (-1, 0) for each in by_layer]
    found = estimate(*ends, seed=seed)
    return float(found.gain[0]), float(found.low[0]), float(found.high[0])


def sentence(table: pd.DataFrame) -> str:
    """The first and the last layer's mean distance, and the difference."""
    layers = table.loc[table["head"] == LAYER].sort_values("layer").to_dict("records")
    first, last = layers[0], layers[-1]
    said = (
        f"Attention looks {with_interval(first['distance'], first['ci_low'], first['ci_high'])} tokens away in layer 0"
    )
    if table.attrs.get("contrast"):
        low, high = table.attrs["contrast"][1:]
        farther = (
            "farther" if low > 0 else "nearer" if high < 0 else "neither surely nearer nor farther, the difference"
        )
        said += (
            f" and {with_interval(last['distance'], last['ci_low'], last['ci_high'])} in layer {last['layer']}: "
            f"{farther} by {with_interval(*table.attrs['contrast'])}"
        )
    texts = table.attrs["documents"]
    return f"{said}, where uniform attention would look {last['uniform']:.2f} ({last['n']:,} tokens, {texts} texts)."
