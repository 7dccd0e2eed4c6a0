"""From sums to the table of heads: one row per head, measure and reading, with baseline, interval and test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from analyses.measures.definitions import DECLARED, Measure
from analyses.reading.inputs import Heads
from interp.patterns import N_GROUPS, Null, Totals
from interp.patterns.rows import SINKS
from interp.patterns.tags import TagTotals
from interp.statistics import benjamini_hochberg, estimate

HEAD_COLUMNS: list[str] = DECLARED["tables"]["heads"].split()
BOTH_READINGS = "kept and removed"  # in column `readings`: a finding must also hold without the first position
BASELINE_COLUMNS: list[str] = DECLARED["tables"]["baselines"].split()
EFFECT_COLUMNS: list[str] = DECLARED["tables"]["effects"].split()
NO_ITEMS = "measures left out: the text has no item of theirs that the model shows"


@dataclass(frozen=True)
class Scored:
    """Sums of some measures in one reading.

    The head axis holds the heads, layer by layer, then the measures' rivals, which go through the same scorer (unless a
    rival is a number). `corpus` names the text if the other measures read another. `null` has the heads' sums under
    permuted keys.
    """

    totals: Totals | TagTotals
    measures: Sequence[Measure]
    sink: Literal["kept", "removed"]
    corpus: str | None = None
    null: Null | None = None

    @property
    def constant(self) -> tuple[str, float] | None:
        """The baseline's name and value, if the measure's definition fixes them."""
        rival = next((rival for measure in self.measures[:1] for rival in measure.rivals), None)
        return (rival.name, rival.looks) if rival and isinstance(rival.looks, float) else None

    @property
    def baselines(self) -> list[str]:
        """The names of rivals that went through the scorer."""
        return [] if self.constant else [rival.name for measure in self.measures[:1] for rival in measure.rivals]

    def of(self, groups: Bool[Tensor, " group"]) -> "Scored":
        """The sums over some groups of documents."""
        null = None if self.null is None else self.null.of(groups)
        return replace(self, totals=self.totals.of(groups), null=null)


@dataclass(frozen=True)
class Measured:
    """One behaviour's measures of every head. `baselines` has each rival's value, if a measure has several."""

    heads: pd.DataFrame  # the rows of `tables/heads`; none for measures without eligible rows
    baselines: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=BASELINE_COLUMNS))
    counts: Mapping[str, int] = field(default_factory=dict)  # what was read, and what was left out and why
    documents: int | None = None  # how many documents intervals rest on
    absent: Sequence[str] = ()  # measures without items in the text
    followed: Callable[[], pd.DataFrame] = pd.DataFrame  # returns `rules`

    @property
    def rules(self) -> pd.DataFrame:
        """The rows of `tables/rules`; empty if no head is compared with rules."""
        return self.followed()


@dataclass(frozen=True)
class Collected:
    """The sums of one behaviour's measures over a corpus, by group of documents."""

    heads: Heads
    behaviour: str
    corpus: str
    scored: Sequence[Scored]
    counts: Mapping[str, int]  # what was read, and what was left out and why
    documents: int
    start_token: bool = True  # whether the first position is a start token, not a word
    rules: Callable[..., pd.DataFrame] | None = None  # `rules(seed=)`: the rows of `tables/rules`

    def half(self, parity: Literal[0, 1]) -> "Collected":
        """The documents of even (0) or odd (1) groups: independent halves of the text."""
        groups = torch.arange(N_GROUPS) % 2 == parity
        return replace(self, scored=[each.of(groups) for each in self.scored])

    def table(self, *, seed: int = 0) -> pd.DataFrame:
        """The rows of `tables/heads`, from `measured`."""
        return self.measured(seed=seed).heads

    def measured(self, *, seed: int = 0) -> Measured:
        """Every value with its baseline, interval and tests; `q` and `reference_q` are over all rows together.

        The baseline is the rival with the highest value on the same rows, `reference` the value of `Measure.reference`.
        `null` and `p_null` come from permuted keys. `readings`: without a start token, a head that rests on the first
        position rests on a word. So measures of words must then also hold without that position.
        """
        finished = [(each, each.totals.finish()) for each in self.scored]
        rules = pd.DataFrame([row for part in finished for row in self._baselines(*part)], columns=BASELINE_COLUMNS)
        rows = [_rows(self.heads, *part, seed).assign(corpus=part[0].corpus or self.corpus) for part in finished]
        table = pd.concat(rows, ignore_index=True)
        table = table.loc[table["n"] > 0].reset_index(drop=True).assign(behaviour=self.behaviour)
        (table,) = with_q([table])
        names, twice = (
            {measure.name for each in self.scored if each.sink == sink for measure in each.measures} for sink in SINKS
        )
        of_words = {measure.name for each in self.scored for measure in each.measures if measure.of_words}
        in_both = [] if self.start_token else [*(of_words & twice)]
        readings = np.where(table["measure"].isin(in_both), BOTH_READINGS, "kept")
        table = table.assign(readings=readings)
        absent = sorted(names - {*table.loc[table["sink"] == "kept", "measure"]})
        counts = {**self.counts, **({NO_ITEMS: len(absent)} if absent else {})}
        followed = partial(self.rules, seed=seed) if self.rules else pd.DataFrame
        return Measured(table.reindex(columns=HEAD_COLUMNS), rules, counts, self.documents, absent, followed)

    def _baselines(self, scored: Scored, totals: Totals) -> list[dict[str, Any]]:
        """Each rival's value on each measure with items, if there are several rivals."""
        if len(scored.baselines) < 2:
            return []
        value = (totals.scores[:, self.heads.count :].sum(0) / totals.weights[:, self.heads.count :].sum(0)).tolist()
        n = totals.rows[:, self.heads.count :].sum(0).tolist()
        columns = {"behaviour": self.behaviour, "sink": scored.sink, "corpus": scored.corpus or self.corpus}
        return [
            columns | {"measure": measure.name, "baseline_name": name, "value": value[row][column], "n": int(count)}
            for row, name in enumerate(scored.baselines)
            for column, (measure, count) in enumerate(zip(scored.measures, n[row], strict=False))
            if count
        ]


def beside_norms(heads: pd.DataFrame, by_norm: pd.DataFrame) -> pd.DataFrame:
    """Add the same measures of attention weighted by the norm of its output (`NormWeighted`).

    Baselines have no norms, so `norm_gain` has the same baselines as `gain`.
    """
    cell = ["stack", "attention", "layer", "head", "behaviour", "measure", "sink", "corpus"]
    named = {"value": "norm_value", "gain": "norm_gain", "ci_low": "norm_low", "ci_high": "norm_high"}
    columns = by_norm.loc[:, [*cell, *named]].rename(columns=named)
    return heads.drop(columns=[*named.values()]).merge(columns, on=cell, how="left").reindex(columns=HEAD_COLUMNS)


def _rows(heads: Heads, scored: Scored, totals: Totals, seed: int) -> pd.DataFrame:
    scores, weights, rows = (total.numpy() for total in (totals.scores, totals.weights, totals.rows))
    against, against_weights, names = strictest(scored, scores, weights, heads.count)
    shape = (scores.shape[0], heads.count * len(scored.measures))
    head_totals = [total[:, : heads.count].reshape(shape) for total in (scores, weights)]
    baseline = [np.repeat(total[:, None], heads.count, 1).reshape(shape) for total in (against, against_weights)]
    result = estimate(*head_totals, *baseline, seed=seed)
    head_columns, measure = heads.columns(len(scored.measures))
    return pd.DataFrame(
        {
            **head_columns,
            **{
                column: np.asarray([getattr(each, name) for each in scored.measures], dtype=object)[measure]
                for column, name in (*((each, each) for each in ("unit", "together", "fewest")), ("measure", "name"))
            },
            "sink": scored.sink,
            "value": result.value,
            "baseline": result.baseline,
            "baseline_name": np.asarray(names, dtype=object)[measure],
            "gain": result.gain,
            "ci_low": result.low,
            "ci_high": result.high,
            "p": result.p,
            **_under_null(scored.null, totals, heads.count),
            "n": rows[:, : heads.count].sum(0).reshape(-1).round().astype(int),
            "documents": result.groups,
            **_beside_reference(heads, scored, totals, seed),
        }
    )


def _beside_reference(heads: Heads, scored: Scored, totals: Totals, seed: int) -> dict[str, np.ndarray]:
    """By row, the value of the measure's `reference` and the gain over it; NaN without a reference."""
    scores, weights = totals.scores.numpy(), totals.weights.numpy()
    names = ("reference", "reference_gain", "reference_low", "reference_p")
    columns = np.full((len(names), heads.count, len(scored.measures)), np.nan)
    for column, measure in enumerate(scored.measures):
        if measure.reference in scored.baselines:
            rival = [heads.count + scored.baselines.index(measure.reference)] * heads.count
            head_totals, baseline = (
                [each[:, rows, column] for each in (scores, weights)] for rows in (range(heads.count), rival)
            )
            result = estimate(*head_totals, *baseline, seed=seed)
            columns[..., column] = result.baseline, result.gain, result.low, result.p
    return dict(zip(names, columns.reshape(len(names), -1), strict=True))


def _under_null(null: Null | None, totals: Totals, n_heads: int) -> dict[str, Any]:
    """The mean under permuted keys, and the p against it; NaN without a null."""
    if null is None:
        return {"null": np.nan, "p_null": np.nan}
    scores, weights = totals.scores[:, :n_heads], totals.weights[:, :n_heads]
    n = weights.sum(0).numpy().reshape(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, null.mean.sum(0).numpy().reshape(-1) / n, np.nan)
    return {"null": mean, "p_null": np.where(n > 0, null.test(scores).reshape(-1), np.nan)}


def values(scored: Scored, n_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Each head's value (head measure) and the strictest baseline's (measure); NaN without eligible rows."""
    totals = scored.totals.finish()
    scores, weights = totals.scores.numpy(), totals.weights.numpy()
    against, against_weights, _ = strictest(scored, scores, weights, n_heads)
    with np.errstate(divide="ignore", invalid="ignore"):
        head_values = scores[:, :n_heads].sum(0) / weights[:, :n_heads].sum(0)
        return head_values, against.sum(0) / against_weights.sum(0)


def strictest(
    scored: Scored, scores: np.ndarray, weights: np.ndarray, n_heads: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The totals and weights (group x measure) of each measure's strictest baseline, and its name."""
    if scored.constant is not None:
        name, value = scored.constant
        units = np.ones((scores.shape[0], len(scored.measures)))
        return value * units, units, [name] * len(scored.measures)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = scores[:, n_heads:].sum(0) / weights[:, n_heads:].sum(0)
    best = np.nan_to_num(values, nan=-np.inf).argmax(0)
    columns = np.arange(len(scored.measures))
    names = [scored.baselines[int(index)] for index in best]
    return scores[:, n_heads:][:, best, columns], weights[:, n_heads:][:, best, columns], names


def with_q(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables with `q` over all their tests together, and `q_within` over each table alone.

    Both also count the tests of `reference_p`, whose q over all tables is `reference_q`.
    """
    if len(tables) > 1:
        tables = [each for table in tables for each in with_q([table])]
    tests = [(number, name) for number, table in enumerate(tables) for name in ("p", "reference_p") if name in table]
    p = [tables[number][name].to_numpy(dtype=float) for number, name in tests]
    q = np.split(benjamini_hochberg(np.concatenate(p)), np.cumsum([len(each) for each in p])[:-1])
    corrected = [*tables]
    for (number, name), part in zip(tests, q, strict=True):
        corrected[number] = corrected[number].assign(**{name.removesuffix("p") + "q": part})
    if len(corrected) == 1:
        corrected = [corrected[0].assign(q_within=corrected[0]["q"])]
    return corrected
