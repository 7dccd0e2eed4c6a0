"""From what probes got right to tables: a row a layer and head, and how deep each task is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from analyses.probe.fitted import Scores
from analyses.probe.probe_tasks import TASKS
from interp import StackConfig
from interp.patterns.totals import N_GROUPS
from interp.probes import centre_of_gravity, expected_layer_terms
from interp.statistics import estimate


class Beside(NamedTuple):
    """Columns of what probes get, of what stands beside it, of the difference, and of the difference's bounds."""

    value: str
    beside: str
    difference: str
    low: str
    high: str


CONTROL = Beside("accuracy", "control_accuracy", "selectivity", "ci_low", "ci_high")
RULE = Beside("accuracy", "baseline", "gain", "gain_low", "gain_high")
UNTRAINED = Beside("accuracy", "untrained_accuracy", "learnt", "learnt_low", "learnt_high")
AMBIGUOUS = Beside("ambiguous_accuracy", "ambiguous_baseline", "ambiguous_gain", "ambiguous_low", "ambiguous_high")
LAYER_COLUMNS = [
    *("stack", "layer", "head", "depth", "site", "task", *CONTROL, "n", *RULE[1:], "baseline_name"),
    *(*UNTRAINED[1:], "cumulative_accuracy", *AMBIGUOUS, "ambiguous_n"),
]
DEPTH_COLUMNS = ["stack", "task", "measure", "value", "ci_low", "ci_high", "n"]
EXPECTED, GRAVITY = "expected layer", "centre of gravity"
Interval = tuple[float, float, float]  # the value and its two bounds
_NOTHING: Interval = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Probed:
    """What the probes of one corpus found, task by task, and what was read for it."""

    stack: str
    config: StackConfig
    seed: int
    scores: Mapping[str, Scores]
    left_out: Mapping[str, str]  # tasks that have no items, and why
    counts: Mapping[str, int]
    documents: int

    @cached_property
    def layers(self) -> pd.DataFrame:
        """A row a task and layer's stream or head: the rows of `tables/layers`.

        `depth` counts the blocks passed: 0 is the stream into the first. `ci_low` and `ci_high` bound the selectivity.
        `gain` is accuracy less `baseline`: the most frequent label of the type, for edges the strictest rule (nearest
        mention and the like). `learnt` is accuracy less `untrained_accuracy`, that of the same probe on the model with
        fresh weights. `ambiguous_*` are tags of the types that training shows both as noun and as verb. Intervals are
        over test documents, for the probes as trained, one draw of the control task and one untrained model.
        """
        n_layers, n_heads = self.config.n_layers, self.config.n_heads
        places: list[tuple[int, int | None, int, str]] = [(0, None, 0, "resid_pre")]
        places += [(layer, None, layer + 1, "resid_post") for layer in range(n_layers)]
        places += [(layer, head, layer + 1, "attn.z") for layer in range(n_layers) for head in range(n_heads)]
        sites = pd.DataFrame(places, columns=["layer", "head", "depth", "site"]).astype({"head": "Int64"})
        columns = {task: _columns(scores, self.seed) for task, scores in self.scores.items()}
        tables = [sites.assign(stack=self.stack, task=task, **values) for task, values in columns.items()]
        return pd.concat(tables, ignore_index=True).reindex(columns=LAYER_COLUMNS)

    @cached_property
    def depths(self) -> pd.DataFrame:
        """How deep each task is read: `stack, task, measure, value, ci_low, ci_high, n`, the rows of `tables/depths`.

        The expected layer is missing where all layers together read the task no better than the embedding alone; its
        interval is a bootstrap over test documents, of the probes as trained. That of the centre of gravity comes from
        probes fitted again to halves of the training documents. A task `a - b` is the difference of two, on the same
        documents: first each task, then of each two the later of `TASKS` less the earlier.
        """
        pairs = [(one, None) for one in self.scores]
        pairs += [(one, base) for base, one in combinations([task for task in TASKS if task in self.scores], 2)]
        rows = []
        for task, base in pairs:
            one, other = self.scores[task], self.scores[base] if base else None
            n = min(len(scores.groups) for scores in (one, other) if scores is not None)
            name = f"{task} - {base}" if base else task
            expected, centre = expected_with_interval(one, other, self.seed), centre_with_interval(one, other)
            rows += [(self.stack, name, EXPECTED, *expected, n), (self.stack, name, GRAVITY, *centre, n)]
        return pd.DataFrame(rows, columns=DEPTH_COLUMNS)


def _columns(scores: Scores, seed: int) -> dict[str, Any]:
    """What one task's probes got, a value a site."""
    cumulative = np.full(len(scores.right), np.nan)
    cumulative[: len(scores.cumulative)] = scores.cumulative.mean(1)
    rule = scores.baseline.expand_as(scores.right)
    columns = {"n": len(scores.groups), "baseline_name": scores.baseline_name, "cumulative_accuracy": cumulative}
    for names, other in ((CONTROL, scores.control), (RULE, rule), (UNTRAINED, scores.untrained)):
        columns |= _against(scores, other, seed, names)
    if scores.ambiguous is not None:
        columns |= _against(scores, rule, seed, AMBIGUOUS, some=scores.ambiguous)
        columns["ambiguous_n"] = int(scores.ambiguous.sum())
    return columns


def _against(
    scores: Scores,
    other: Float[Tensor, "site item"],
    seed: int,
    names: Sequence[str],
    some: Float[Tensor, " item"] | None = None,
) -> dict[str, np.ndarray]:
    """Columns: accuracy, that of another on the same items, the difference and its bounds."""
    counted = torch.ones(len(scores.groups)) if some is None else some
    if not counted.any():
        return {name: np.full(len(scores.right), np.nan) for name in names}
    counts = _sums(scores.groups, counted.expand_as(scores.right))
    against = estimate(
        _sums(scores.groups, scores.right * counted), counts, _sums(scores.groups, other * counted), counts, seed=seed
    )
    values = against.value, against.baseline, against.gain, against.low, against.high
    return dict(zip(names, values, strict=True))


def _sums(groups: Int[Tensor, " item"], values: Float[Tensor, "*column item"]) -> np.ndarray:
    """Sums over each group of documents: group x column."""
    columns = values.double().reshape(-1, len(groups)).T
    return torch.zeros(N_GROUPS, columns.shape[1], dtype=torch.float64).index_add_(0, groups, columns).numpy()


def expected_with_interval(one: Scores, other: Scores | None, seed: int) -> Interval:
    """Expected layer and its interval, or those of its difference to another task's."""
    terms = [_expected_terms(each, seed) for each in (one, other) if each is not None]
    if any(each is None for each in terms):
        return _NOTHING
    above, below, *against = [part for term in terms if term is not None for part in term]
    # a group that gained as much as it lost has items all the same, and one with items of either task counts
    items = torch.cat([each.groups for each in (one, other) if each is not None])
    present = np.bincount(items.numpy(), minlength=N_GROUPS) > 0
    expected = estimate(above, below, *against, present=present, seed=seed)
    return float(expected.gain[0]), float(expected.low[0]), float(expected.high[0])


def _expected_terms(scores: Scores, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Sums of the expected layer's two terms; None where nothing is surely gained after the embedding."""
    above, below = (_sums(scores.groups, terms) for terms in expected_layer_terms(scores.cumulative))
    counts = _sums(scores.groups, torch.ones(len(scores.groups)))
    gained = estimate(below, counts, seed=seed)
    return (above, below) if gained.low[0] > 0 else None


def centre_with_interval(one: Scores, other: Scores | None) -> Interval:
    """Centre of gravity and its interval, or those of its difference to another task's, half by half.

    A half of the documents strays from the whole as far as the whole does from the truth: the delete-half jackknife
    (Shao & Wu 1989), which holds where leaving out a few would show no change. About the whole's own value rather than
    the halves' mean, so that what changes with less text counts as unsure too.
    """
    value, halves = (centre_of_gravity(shares.double()) for shares in (one.shares, one.half_shares))
    if other is not None:
        value = value - centre_of_gravity(other.shares.double())
        if len(other.half_shares) != len(halves):
            return float(value), np.nan, np.nan
        halves = halves - centre_of_gravity(other.half_shares.double())
    if not len(halves):
        return float(value), np.nan, np.nan
    error = float((halves - value).square().mean().sqrt())
    reach = float(stats.t.ppf(0.975, len(halves))) * error
    lowest, highest = (0.0, len(one.shares) - 1.0) if other is None else (-np.inf, np.inf)  # what there can be
    return float(value), max(float(value) - reach, lowest), min(float(value) + reach, highest)
