"""The knight in shining: which head brings the knight to the last token, so that armor follows?

Every head's `z` is swapped with that of a prompt about somebody else; beside it stands what each head writes towards
the answer directly.
"""

from collections.abc import Mapping
from itertools import product
from math import isnan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.experiments.experiment import (
    ARTICLES,
    STORIES,
    Experiment,
    Outcome,
    bounded,
    each_source,
    largest,
    panelled,
    rounded,
    said,
    strongest,
)
from analyses.experiments.swaps import BothWays, Swap, by_swapping, shares_of, undone
from analyses.figures.attention_lines import literal
from analyses.figures.experiment_plots import ranges
from analyses.figures.style import GREY, INK, SOFT, legend, panels, styled
from analyses.head_names import head_name
from interp import InputError, Model, Pairs
from interp.attribution import direct_logit_attribution

_OTHERS = {"dancer": " shoes", "singer": " dress", "princess": " jewels", "queen": " gold", "driver": " car"}
_NAMES = ("Tim", "Tom", "Ben", "Max", "Sue", "Mia", "Amy", "Lily")
SWAPS = [
    *(
        Swap(ARTICLES, f"{the} knight in shining", f"{the} {noun} in shining", " armor", answer)
        for the, (noun, answer) in product(("The", "A", "Her", "My"), _OTHERS.items())
    ),
    *(
        Swap(
            STORIES,
            f"There was a bell in the {place}. {name} wanted to",
            f"There was a {noun} in the {place}. {name} wanted to",
            " ring",
            " change",
        )
        for name, noun, place in product(_NAMES, ("king", "ball", "box"), ("school", "park"))
    ),
]
_DIRECT = "direct", "direct_low", "direct_high"
_COLUMNS = (
    "source",
    "layer",
    "head",
    "share",
    "ci_low",
    "ci_high",
    *_DIRECT,
    "n",
    "accuracy",
    "accuracy_low",
    "example",
)
_TOP = 10  # heads with a line of their own


def measure(model: Model, *, seed: int = 0) -> Outcome:
    """Each head's share of the difference between the two answers, patched, and written directly.

    Columns: source, layer, head, share, ci_low, ci_high (patched; over pairs), direct, direct_low, direct_high (the
    change of its direct logit attribution, over the same whole; missing where norms follow sums), n, accuracy,
    accuracy_low (the lower end of its 95% interval), example.

    Raises:
        InputError: no pair can be used, no output layer, no tokenizer.
    """

    def rows(pairs: Pairs, both: Mapping[str, BothWays]) -> pd.DataFrame:
        effects, whole = both["z"].effects, both["z"].whole
        share = shares_of(effects, whole, seed)
        direct = shares_of(_direct(model, pairs), whole, seed)
        layer, head = np.unravel_index(np.arange(len(share.n)), effects.shape[:2])
        return pd.DataFrame({"layer": layer, "head": head, **bounded(share), **bounded(direct, *_DIRECT), "n": share.n})

    return by_swapping(model, SWAPS, {"z": ("layer", "head")}, rows, _COLUMNS)


def _direct(model: Model, pairs: Pairs) -> np.ndarray:
    """Each head's direct attribution in the clean prompts less that in the corrupted ones: layer head pair."""
    try:
        sides = [
            direct_logit_attribution(model, side, pairs.right, pairs.wrong) for side in (pairs.clean, pairs.corrupt)
        ]
    except InputError:  # norms after sums
        return np.full((model.config.n_layers, model.config.n_heads, len(pairs)), np.nan)
    return (sides[0].by_head() - sides[1].by_head()).double().cpu().numpy()


@each_source
def sentence(where: str, rows: pd.DataFrame) -> str:
    """The head with the largest share, and what it writes directly."""
    if said_first := undone(rows.to_dict("records")[0], where):
        return said_first
    best = largest(rows, "share")
    return (
        f"{where} ({best['n']} pairs such as “{best['example']}”, {best['accuracy']:.0%} of prompts answered "
        f"rightly), head {head_name(best['layer'], best['head'])} carries the largest share of the difference, "
        f"{said(best)}, and writes {said(best, *_DIRECT)} directly"
    )


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """The heads with the largest shares when patched, and what each writes directly, with 95% intervals."""
    found = [group for _, group in table.groupby("source", sort=True)]
    most = min(_TOP, max(map(len, found)))
    figure, axes = panels(title, len(found), height=0.8 + 0.26 * most, columns=2)
    for ax, group in zip(axes, found, strict=True):
        strongest = np.argsort(-np.abs(group["share"].to_numpy(dtype=float)))[:_TOP]
        rows = group.iloc[strongest].sort_values("share")
        y = np.arange(len(rows))
        ranges(ax, rows, ("share", "ci_low", "ci_high"), y + 0.12, INK, "o", "patched")
        ranges(ax, rows, _DIRECT, y - 0.12, SOFT, "D", "written directly")
        ax.set_yticks(y, [head_name(layer, head) for layer, head in zip(rows["layer"], rows["head"], strict=True)])
        ax.axvline(0, color=GREY, lw=1)
        ax.set(
            title=literal(group["example"].iloc[0], 200).replace(" / ", "\n"), xlabel="share of the logit difference"
        )
    legend(figure, axes)
    return figure


def seen(table: pd.DataFrame) -> str:
    """The heads with the longest bars when patched, and what the first of them writes directly."""
    told = []
    for source, own in table.groupby("source", sort=True):
        first = largest(own, "share")
        direct = "undefined" if isnan(first["direct"]) else rounded(first["direct"])
        bars = strongest(own, "share", lambda row: head_name(row["layer"], row["head"]))
        told.append((str(source), f"patched, {bars}; written directly by the first {direct}"))
    return panelled(told)


KNIGHT = Experiment(
    name="knight",
    title="The knight in shining",
    question="Which head brings the knight to the word after “shining”?",
    command="next-word",
    caption=(
        "The ten heads with the largest shares, with 95% intervals over pairs. A head may carry more than it writes "
        "itself: later heads read what it wrote."
    ),
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
