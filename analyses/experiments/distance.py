"""Near heads in early layers, far heads late: how far away does attention look, layer by layer?

The mean distance between a token and what it attends to, beside that of uniform attention over the same tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analyses.experiments.experiment import Experiment, Outcome, ends, rounded, said, with_interval
from analyses.experiments.prompts import tokenizer_of
from analyses.figures.style import GREY, INK, begin, legend, styled
from analyses.numerals import number
from analyses.reading.collectors import refuse_unread
from analyses.reading.windows import Reading
from interp import AnnotatedText, Model
from interp.patterns import Totals, positional
from interp.statistics import estimate
from models.stories import stories

_STORIES = 60
Sums = NDArray[np.float64]
LAYER = -1  # the head of rows that hold a layer's mean


@dataclass(frozen=True)
class Distances(Outcome):
    """With the last layer's distance less the first's, and its interval; None in a single layer."""

    contrast: tuple[float, float, float] | None = None


def measure(model: Model, corpus: Iterable[AnnotatedText] | None = None, *, seed: int = 0) -> Distances:
    """Mean attention distance of every head, in tokens; `head` -1 is the mean of its layer.

    Columns: layer, head, distance, uniform, ci_low, ci_high (of the distance, over documents), n (tokens).

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
    by_layer = [each[:, :-1].reshape(-1, layers, heads).sum(-1) for each in (scores, rows)]
    return Distances(
        _table(scores, rows, by_layer, seed),
        used={"stories" if corpus is None else "corpus": len(reading.documents)},
        left_out={name: count for name, count in reading.counts.items() if "left out" in name},
        contrast=_contrast(by_layer, seed),
    )


def _table(scores: Sums, rows: Sums, by_layer: Sequence[Sums], seed: int) -> pd.DataFrame:
    """Distances of heads and of layers; totals are group x head, uniform attention last, and group x layer."""
    layers = by_layer[0].shape[1]
    heads = (scores.shape[1] - 1) // layers
    columns = [np.concatenate([each[:, :-1], layer], 1) for each, layer in zip((scores, rows), by_layer, strict=True)]
    found = estimate(columns[0], columns[1], seed=seed)
    layer, head = np.unravel_index(np.arange(layers * heads), (layers, heads))
    return pd.DataFrame(
        {
            "layer": [*layer, *range(layers)],
            "head": [*head, *[LAYER] * layers],
            "distance": found.value,
            "uniform": scores[:, -1].sum() / rows[:, -1].sum(),
            "ci_low": found.low,
            "ci_high": found.high,
            "n": int(rows[:, -1].sum()),
        }
    )


def _contrast(by_layer: Sequence[Sums], seed: int) -> tuple[float, float, float] | None:
    if by_layer[0].shape[1] == 1:
        return None
    ends = [each[:, [at]] for at in (-1, 0) for each in by_layer]
    found = estimate(*ends, seed=seed)
    return float(found.gain[0]), float(found.low[0]), float(found.high[0])


def sentence(found: Distances) -> str:
    """The first and the last layer's mean distance, and the difference."""
    layers = found.table.loc[found.table["head"] == LAYER].sort_values("layer").to_dict("records")
    first, last = layers[0], layers[-1]
    text = f"Attention looks {said(first, 'distance')} tokens away in layer 0"
    if found.contrast:
        value, low, high = found.contrast
        farther = (
            "farther" if low > 0 else "nearer" if high < 0 else "neither surely nearer nor farther, the difference"
        )
        apart = (-value, -high, -low) if high < 0 else found.contrast
        text += f" and {said(last, 'distance')} in layer {last['layer']}: {farther} by {with_interval(*apart)}"
    texts = sum(found.used.values())
    return (
        f"{text}, where uniform attention would look {last['uniform']:.2f} ({number(last['n'])} tokens, {texts} texts)."
    )


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """Mean attention distance of every head, each layer's mean with its 95% interval, and uniform attention's."""
    figure = begin(title, 3.2)
    ax = figure.subplots()
    heads, layers = (
        rows.sort_values("layer") for rows in (table.loc[table["head"] >= 0], table.loc[table["head"] < 0])
    )
    ax.scatter(heads["layer"], heads["distance"], s=12, color=GREY, alpha=0.7, linewidths=0, label="a head")
    ax.plot(layers["layer"], layers["distance"], color=INK, marker="D", ms=5, label="mean of the layer, 95% interval")
    ax.vlines(layers["layer"], layers["ci_low"], layers["ci_high"], color=INK, lw=2)
    ax.axhline(table["uniform"].iloc[0], color=GREY, ls="--", lw=1, label="uniform attention")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.1)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="layer", ylabel="mean distance, in tokens")
    legend(figure, [ax])
    return figure


def seen(table: pd.DataFrame) -> str:
    """The line of the layers' means, how far its heads spread, and uniform attention's level."""
    heads, layers = table.loc[table["head"] >= 0, "distance"], table.loc[table["head"] < 0]
    spread = f"heads between {rounded(heads.min())} and {rounded(heads.max())} tokens"
    return (
        f"Means of layers {ends(layers, 'distance')}; {spread}; uniform attention {rounded(table['uniform'].iloc[0])}."
    )


DISTANCE = Experiment(
    name="distance",
    title="Near heads and far heads",
    question="Do later layers look farther away?",
    command="position",
    caption="A dot is a head; distances are counted in tokens.",
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
