"""Which head of a model shows a measure best, and how does it differ from another model's best?

A head is chosen on the documents of one half and reported on those of the other, so that the best of many heads does
not look better than it is. Differences are paired: both models' totals are of the same groups of documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyses.measures import UNITS
from analyses.tables.head_tables import Collected, Heads, Scored, gains, strictest
from interp.statistics import contrast, estimate

_GAIN_DIFFERENCE = (1, -1, -1, 1)  # value and baseline of one, each beside its counterpart in the other
_VALUE_DIFFERENCE = (1, -1)


@dataclass(frozen=True)
class Best:
    """The head of one model with the largest gain in one measure on one half of the text, as the other half shows it.

    `value` and `baseline` are totals and weights by group of documents (totals|weights group).
    """

    heads: Heads
    index: int  # among the heads, layer by layer
    corpus: str
    value: np.ndarray
    baseline: np.ndarray
    baseline_name: str
    n: int
    unit: str

    def columns(self) -> dict[str, Any]:
        """Where it stands, for a table."""
        layer, head = divmod(self.index, self.heads.n_heads)
        place = {"stack": self.heads.stack, "attention": self.heads.attention, "layer": layer, "head": head}
        columns = {"depth": depth(layer, self.heads.n_layers), "baseline_name": self.baseline_name}
        return {**place, **columns, "n": self.n, "unit": self.unit}


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
        head = int(np.nanargmax(gained[:, column]))
        if not n[head][column]:
            continue
        read = weights[:, head, column] != 0  # a baseline that is a number is there in groups that were not
        bests[measure.name] = Best(
            heads=heads,
            index=head,
            corpus=reporting.corpus or collected.corpus,
            value=np.stack([scores[:, head, column], weights[:, head, column]]),
            baseline=np.stack([against[:, column], against_weights[:, column]]) * read,
            baseline_name=rules[column],
            n=n[head][column],
            unit=measure.unit,
        )
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
