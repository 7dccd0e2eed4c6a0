"""The knight in shining: which head brings the knight to the last token, so that armor follows?

Every head's `z` is swapped with that of a prompt about somebody else; beside it stands what each head writes towards
the answer directly.
"""

from collections import Counter
from itertools import product

import numpy as np
import pandas as pd

from analyses.experiments.prompts import ARTICLES, STORIES, finish, largest, paragraph, sources, with_interval
from analyses.experiments.swaps import Swap, patched, shares_of, usable
from interp import InputError, Pairs, Transformer
from interp.attribution import direct_logit_attribution

NAME, COMMAND = "knight", "next-word"
TITLE = "The knight in shining"
QUESTION = "Which head brings the knight to the word after “shining”?"
CAPTION = (
    "The ten heads with the largest shares, with 95% intervals over pairs. A head may carry more than it writes "
    "itself: later heads read what it wrote."
)

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


def measure(model: Transformer, *, seed: int = 0) -> pd.DataFrame:
    """Each head's share of the difference between the two answers, patched, and written directly.

    Columns: source, layer, head, share, ci_low, ci_high (patched; over pairs), direct, direct_low, direct_high (the
    change of its direct logit attribution, over the same whole; missing where norms follow sums), n, accuracy, example.

    Raises:
        InputError: no pair can be used, no output layer, no tokenizer.
    """
    left_out: Counter[str] = Counter()
    rows, used, refused = [], {}, {}
    for found in usable(model, SWAPS, left_out):
        if found.pairs is None:
            refused[found.source] = found.refused
            continue
        both = patched(model, found.pairs, "z", ("layer", "head"))
        if reason := both.refused:
            refused[found.source] = reason
            continue
        used[found.source] = len(found.pairs)
        share, n = both.shares(seed)
        direct, _ = shares_of(_direct(model, found.pairs), both.whole, seed)
        layer, head = np.unravel_index(np.arange(len(n)), both.effects.shape[:2])
        columns = {"source": found.source, "layer": layer, "head": head, "share": share.value, "ci_low": share.low}
        columns |= {"ci_high": share.high, "direct": direct.value, "direct_low": direct.low, "direct_high": direct.high}
        rows.append(pd.DataFrame({**columns, "n": n, "accuracy": both.accuracy, "example": found.example}))
    return finish(pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(), left_out, used, refused)


def _direct(model: Transformer, pairs: Pairs) -> np.ndarray:
    """Each head's direct attribution in the clean prompts less that in the corrupted ones: layer head pair."""
    try:
        sides = [
            direct_logit_attribution(model, side, pairs.right, pairs.wrong) for side in (pairs.clean, pairs.corrupt)
        ]
    except InputError:  # norms after sums
        return np.full((model.config.n_layers, model.config.n_heads, len(pairs)), np.nan)
    return (sides[0].by_head() - sides[1].by_head()).double().cpu().numpy()


def sentence(table: pd.DataFrame) -> str:
    """The head with the largest share, and what it writes directly."""
    said = []
    for where, rows in sources(table):
        best = largest(rows, "share")
        said.append(
            f"{where} ({best['n']} pairs such as “{best['example']}”, {best['accuracy']:.0%} of prompts answered "
            f"rightly), head L{best['layer']}.H{best['head']} carries the largest share of the difference, "
            f"{with_interval(best['share'], best['ci_low'], best['ci_high'])}, and writes "
            f"{with_interval(best['direct'], best['direct_low'], best['direct_high'])} directly"
        )
    return paragraph(said)
