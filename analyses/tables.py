"""From totals to the table of heads: one row a head, measure and reading, each with its baseline, interval and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from interp import Transformer
from interp.patterns import Totals
from interp.statistics import benjamini_hochberg, estimate

HEAD_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "sink", "corpus"),
    *("value", "baseline", "baseline_name", "gain", "ci_low", "ci_high", "p", "q", "n"),
]
EFFECT_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "task", "intervention"),
    *("effect", "ci_low", "ci_high", "p", "q", "n"),
]


@dataclass(frozen=True)
class Scored:
    """Totals of some measures in one reading.

    The head axis holds the model's heads, layer by layer, then the baselines named in `baselines`, which went through
    the same scorer; `constant` is the baseline instead where a measure's definition gives a number.
    """

    totals: Totals
    measures: Sequence[str]
    sink: Literal["kept", "removed"]
    baselines: Sequence[str] = ()
    constant: tuple[str, float] | None = None


def head_table(
    model: Transformer, behaviour: str, corpus: str, scored: Sequence[Scored], *, seed: int = 0
) -> pd.DataFrame:
    """The rows of `tables/heads` for one behaviour; `q` is over all of them.

    A measure's baseline is the strictest: the one with the highest value on the same rows.
    """
    parts = [_rows(model, each, seed) for each in scored]
    table = pd.concat(parts, ignore_index=True)
    table["behaviour"], table["corpus"] = behaviour, corpus
    table["q"] = benjamini_hochberg(table["p"].to_numpy())
    return table.reindex(columns=HEAD_COLUMNS)


def _rows(model: Transformer, scored: Scored, seed: int) -> pd.DataFrame:
    n_heads = model.config.n_layers * model.config.n_heads
    scores, weights, rows = (
        total.numpy() for total in (scored.totals.scores, scored.totals.weights, scored.totals.rows)
    )
    against, against_weights, names = _strictest(scored, scores, weights, n_heads)
    shape = (scores.shape[0], n_heads * len(scored.measures))
    found = estimate(
        scores[:, :n_heads].reshape(shape),
        weights[:, :n_heads].reshape(shape),
        np.repeat(against[:, None], n_heads, 1).reshape(shape),
        np.repeat(against_weights[:, None], n_heads, 1).reshape(shape),
        seed=seed,
    )
    (stack,) = model.config.stacks
    layer, head, measure = np.unravel_index(
        np.arange(shape[1]), (model.config.n_layers, model.config.n_heads, len(scored.measures))
    )
    return pd.DataFrame(
        {
            "stack": stack,
            "attention": "self",
            "layer": layer,
            "head": head,
            "measure": np.asarray(scored.measures, dtype=object)[measure],
            "sink": scored.sink,
            "value": found.value,
            "baseline": found.baseline,
            "baseline_name": np.asarray(names, dtype=object)[measure],
            "gain": found.gain,
            "ci_low": found.low,
            "ci_high": found.high,
            "p": found.p,
            "n": rows[:, :n_heads].sum(0).reshape(-1).round().astype(int),
        }
    )


def _strictest(
    scored: Scored, scores: np.ndarray, weights: np.ndarray, n_heads: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """For each measure the totals and weights (group x measure) of its strictest baseline, and its name."""
    if scored.constant is not None:
        name, value = scored.constant
        ones = np.ones((scores.shape[0], len(scored.measures)))
        return value * ones, ones, [name] * len(scored.measures)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = scores[:, n_heads:].sum(0) / weights[:, n_heads:].sum(0)
    best = np.nan_to_num(values, nan=-np.inf).argmax(0)
    columns = np.arange(len(scored.measures))
    names = [scored.baselines[int(index)] for index in best]
    return scores[:, n_heads:][:, best, columns], weights[:, n_heads:][:, best, columns], names


def baseline_table(scored: Scored, n_heads: int, behaviour: str, corpus: str) -> pd.DataFrame:
    """Every baseline's own value on every measure: `behaviour, measure, sink, corpus, baseline_name, value, n`."""
    totals = scored.totals
    value = (totals.scores[:, n_heads:].sum(0) / totals.weights[:, n_heads:].sum(0)).numpy()
    n = totals.rows[:, n_heads:].sum(0).numpy()
    return pd.DataFrame(
        [
            {
                "behaviour": behaviour,
                "measure": measure,
                "sink": scored.sink,
                "corpus": corpus,
                "baseline_name": name,
                "value": value[row, column],
                "n": int(n[row, column]),
            }
            for row, name in enumerate(scored.baselines)
            for column, measure in enumerate(scored.measures)
        ]
    )
