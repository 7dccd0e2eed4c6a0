"""Which rows of the table of heads are findings? One rule for figures, tables and sentences.

A head shows a behaviour if its gain over the strictest baseline is at least 0.05, its 95% interval excludes 0 and q is
below 0.05, on at least five documents (eight if items are right or wrong). Some measures of all items and of hard items
only count together (`Measure.together`). An antecedent head must beat the nearest mention on all items, and every
baseline if the nearest true antecedent is a name or a noun: finding the previous "he" is not coreference.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.measures.definitions import RANKED
from analyses.measures.head_tables import BOTH_READINGS
from analyses.wording.head_names import HEAD
from interp.patterns.rows import SINKS

NOTABLE = 0.05  # the least gain or effect of a finding
DISCOVERY = 0.05  # the false discovery rate of findings
FEW_DOCUMENTS = 20  # with fewer, intervals are rough
FEW_ITEMS = 50  # with fewer scored items, a share is rough
UNKNOWN = 0.01  # pages mention shares of unknown tokens above this
_ROW, _JOINT = [*HEAD, "behaviour", "measure", "corpus"], [*HEAD, "together"]


def notable(heads: pd.DataFrame) -> pd.DataFrame:
    """Rows that show their measure with the first position, and also without it if `readings` asks for both."""
    ranked = heads.loc[heads["unit"].isin(RANKED) & (heads["q"] < DISCOVERY)]
    clear = _clear(ranked, ranked["gain"], ranked["ci_low"])
    clear_rows, removed = (clear.loc[clear["sink"] == sink] for sink in SINKS)
    clear_rows = clear_rows.loc[
        (clear_rows["readings"] != BOTH_READINGS) | _are_in(_keys(removed, _ROW), clear_rows, _ROW)
    ]
    strict = clear_rows.loc[clear_rows["reference"].isna()]
    pairs = _keys(strict, _JOINT) & _keys(beating_reference(heads), _JOINT)
    return clear_rows.loc[(clear_rows["together"].fillna("") == "") | _are_in(pairs, clear_rows, _JOINT)]


def shows(heads: pd.DataFrame, rows: pd.DataFrame | None = None, strata: Sequence[str] = ()) -> np.ndarray:
    """For each of `rows` (by default all of `heads`), whether the head shows its measure (`notable`).

    `strata` are columns that tell models or runs in the table apart.
    """
    columns = [*_ROW, *strata]
    parts = [part for _, part in heads.groupby([*strata], sort=False)] if strata else [heads]
    keys = set().union(*(_keys(notable(part), columns) for part in parts))
    return _are_in(keys, heads if rows is None else rows, columns)


def _clear(rows: pd.DataFrame, gain: pd.Series, low: pd.Series) -> pd.DataFrame:
    return rows.loc[(gain >= NOTABLE) & (low > 0) & (rows["documents"] >= rows["fewest"])]


def beating_reference(heads: pd.DataFrame) -> pd.DataFrame:
    """Rows that beat their `reference` with the first position: a separate test with its own q."""
    rows = heads.loc[(heads["sink"] == "kept") & heads["reference"].notna()]
    clear = _clear(rows, rows["reference_gain"], rows["reference_low"])
    return clear.loc[clear["reference_q"] < DISCOVERY]


def _keys(rows: pd.DataFrame, columns: list[str]) -> set[tuple[object, ...]]:
    return {*rows[columns].itertuples(index=False, name=None)}


def _are_in(keys: set[tuple[object, ...]], rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    return np.array([row in keys for row in rows[columns].itertuples(index=False, name=None)], dtype=bool)


def best(heads: pd.DataFrame, measures: Sequence[str], top: int = 3) -> pd.DataFrame:
    """The rows with the largest gains in `measures`, each head once."""
    rows = heads.loc[heads["measure"].isin(list(measures)) & (heads["sink"] == "kept")].dropna(subset=["gain"])
    return rows.sort_values("gain", ascending=False, kind="stable").drop_duplicates(HEAD).head(top)


def carriers(effects: pd.DataFrame) -> pd.DataFrame:
    """Rows in which a head carries part of an answer, or of the wrong answer if the share is negative.

    The choosing half of the pairs must show it (`choosing_bound`). On the other half, the share must have the same sign
    and at least 0.05 in size, with an interval that excludes 0 and q below 0.05.
    """
    sign = np.sign(effects["effect"])
    near = effects["ci_low"].where(sign > 0, -effects["ci_high"])
    clear = (near > 0) & (sign * effects["choosing_bound"] > 0) & (effects["q"] < DISCOVERY)
    return effects.loc[clear & (effects["effect"].abs() >= NOTABLE)]


def causes(effects: pd.DataFrame, task: str, top: int = 3) -> pd.DataFrame:
    """The heads that carry most of a task's answer: one row per head, with columns of `denoise` and `noise`.

    A head counts if either intervention shows it (`carriers`). The choosing half of the pairs ranks heads.
    """
    rows = effects.loc[effects["task"] == task]
    largest = carriers(rows).loc[lambda rows: rows["effect"] > 0]
    largest = largest.sort_values("choosing_bound", ascending=False, kind="stable").drop_duplicates(HEAD).head(top)
    return largest[HEAD].merge(both_ways(rows), on=HEAD, how="left")


def both_ways(effects: pd.DataFrame) -> pd.DataFrame:
    """One row per head and task, or paradigm, with columns of `denoise` and `noise`."""
    key = [*HEAD, *(each for each in ("behaviour", "task", "paradigm") if each in effects)]
    joined = effects.loc[:, [*key, "n"]].drop_duplicates(key)
    for way in effects["intervention"].unique():
        names = {"effect": way, "ci_low": f"{way}_low", "ci_high": f"{way}_high", "flips": f"{way}_flips"}
        values = effects.loc[effects["intervention"] == way, [*key, *names]].rename(columns=names)
        joined = joined.merge(values, on=key, how="left")
    return joined
