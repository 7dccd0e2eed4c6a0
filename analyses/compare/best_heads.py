"""Which head of a model shows a measure best, and how does it differ from another model's best?

A head is chosen on the documents of one half and reported on those of the other, so that the best of many heads does
not look better than it is. Differences are paired: both models' totals are of the same groups of documents.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses.measures.definitions import UNITS
from analyses.measures.head_tables import Collected, Scored, gains, strictest
from interp.statistics import contrast, estimate

_GAIN_DIFFERENCE = (1, -1, -1, 1)  # value and baseline of one, each beside its counterpart in the other
_VALUE_DIFFERENCE = (1, -1)


class Best(NamedTuple):
    """The head of one model with the largest gain in one measure on one half of the text, as the other half shows it.

    `columns` are its place and what it was read on, for a table; `value` and `baseline` totals and weights by group of
    documents (totals|weights group).
    """

    corpus: str
    columns: Mapping[str, Any]
    value: np.ndarray
    baseline: np.ndarray


def depth(layer: Any, n_layers: int) -> Any:
    """Relative depth: 1 is the last layer, whatever their number."""
    return (layer + 1) / n_layers


def best_heads(collected: Collected) -> dict[str, Best]:
    """By measure, a model's best head, read with the first position kept.

    Measures of which more is not better (entropy, distance) have no best head; nor have those without a row that
    counts in either half.
    """
    halves = zip(collected.half(0).scored, collected.half(1).scored, strict=True)
    return {
        measure: best
        for choosing, reporting in halves
        if choosing.sink == "kept"
        for measure, best in _best(collected, choosing, reporting).items()
    }


def _best(collected: Collected, choosing: Scored, reporting: Scored) -> dict[str, Best]:
    heads = collected.heads
    totals = reporting.totals.finish()
    scores, weights = totals.scores.numpy(), totals.weights.numpy()
    against, against_weights, rules = strictest(reporting, scores, weights, heads.count)
    n = totals.rows.sum(0).round().long().tolist()
    gained = gains(choosing, heads.count)
    bests = {}
    for column, measure in enumerate(choosing.measures):
        if not UNITS[measure.unit].ranked or np.isnan(gained[:, column]).all():
            continue
        index = int(np.nanargmax(gained[:, column]))
        if not n[index][column]:
            continue
        layer, head = divmod(index, heads.n_heads)
        columns = {"stack": heads.stack, "attention": heads.attention, "layer": layer, "head": head}
        columns |= {"depth": depth(layer, heads.n_layers), "baseline_name": rules[column]}
        columns |= {"n": n[index][column], "unit": measure.unit}
        value = np.stack([scores[:, index, column], weights[:, index, column]])
        is_read = value[1] != 0  # a baseline that is a number is there in groups that were not
        baseline = np.stack([against[:, column], against_weights[:, column]]) * is_read
        bests[measure.name] = Best(reporting.corpus or collected.corpus, columns, value, baseline)
    return bests


def gain_columns(bests: Sequence[Best], *, seed: int) -> list[dict[str, Any]]:
    """Value, baseline, and the gain with its 95% interval, of heads that were read on the same groups of documents."""
    value, baseline = (np.stack([getattr(best, name) for best in bests], -1) for name in ("value", "baseline"))
    result = estimate(*value, *baseline, seed=seed)
    columns = {"value": result.value, "baseline": result.baseline, "gain": result.gain}
    columns |= {"ci_low": result.low, "ci_high": result.high}
    return pd.DataFrame(columns).to_dict("records")


def difference_columns(pairs: Sequence[tuple[Best, Best]], *, seed: int) -> list[dict[str, Any]]:
    """For each pair, the first's gain less the second's and its value less the second's, with 95% intervals and p."""
    if not pairs:
        return []
    four = [[one.value, other.value, one.baseline, other.baseline] for one, other in pairs]
    totals, weights = np.moveaxis(np.asarray(four), 0, -1).swapaxes(0, 1)  # ratio group pair, each
    gain = contrast(totals, weights, _GAIN_DIFFERENCE, seed=seed)
    value = contrast(totals[:2], weights[:2], _VALUE_DIFFERENCE, seed=seed)
    columns = {"difference": gain.value, "difference_low": gain.low, "difference_high": gain.high, "p": gain.p}
    columns |= {"value_difference": value.value, "value_difference_low": value.low, "value_difference_high": value.high}
    return pd.DataFrame(columns | {"value_p": value.p}).to_dict("records")
