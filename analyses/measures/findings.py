"""Which rows of the table of heads are findings? One rule for figures, tables and sentences.

A head shows a behaviour where its gain over the strictest baseline is at least 0.05, the 95% interval excludes 0 and q
is below 0.05, on five documents at least, or eight where items are right or wrong. Measures of all items and of hard
ones count together (`Measure.together`): a head of antecedents must beat the nearest mention on all items, and every
baseline where the nearest true antecedent is a name or a noun, since finding the previous "he" is not coreference.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.measures.definitions import RANKED
from analyses.measures.head_tables import BOTH_READINGS
from analyses.wording.head_names import HEAD
from interp.patterns.rows import SINKS

NOTABLE = 0.05  # the least gain or effect
DISCOVERY = 0.05  # the false discovery rate that findings are held to
FEW_DOCUMENTS = 20  # fewer, and intervals are rough
FEW_ITEMS = 50  # fewer scored items than this, and a share is rough whatever the documents
UNKNOWN = 0.01  # a larger share of unknown tokens is said beside the findings
_ROW, _JOINT = [*HEAD, "behaviour", "measure", "corpus"], [*HEAD, "together"]


def notable(heads: pd.DataFrame) -> pd.DataFrame:
    """The rows, read with the first position kept, that show their measure; where `readings` asks for both, in both."""
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
    """Of some `rows` of a table, by default all, whether the head shows its measure (`notable`), in either reading.

    `strata` are columns whose values tell several models or runs of the table apart.
    """
    columns = [*_ROW, *strata]
    parts = [part for _, part in heads.groupby([*strata], sort=False)] if strata else [heads]
    keys = set().union(*(_keys(notable(part), columns) for part in parts))
    return _are_in(keys, heads if rows is None else rows, columns)


def _clear(rows: pd.DataFrame, gain: pd.Series, low: pd.Series) -> pd.DataFrame:
    return rows.loc[(gain >= NOTABLE) & (low > 0) & (rows["documents"] >= rows["fewest"])]


def beating_reference(heads: pd.DataFrame) -> pd.DataFrame:
    """Rows of measures with a `reference` that beat it, the first position kept: a test of its own, with its own q."""
    rows = heads.loc[(heads["sink"] == "kept") & heads["reference"].notna()]
    clear = _clear(rows, rows["reference_gain"], rows["reference_low"])
    return clear.loc[clear["reference_q"] < DISCOVERY]


def _keys(rows: pd.DataFrame, columns: list[str]) -> set[tuple[object, ...]]:
    return {*rows[columns].itertuples(index=False, name=None)}


def _are_in(keys: set[tuple[object, ...]], rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    return np.array([row in keys for row in rows[columns].itertuples(index=False, name=None)], dtype=bool)


def best(heads: pd.DataFrame, measures: Sequence[str], top: int = 3) -> pd.DataFrame:
    """Rows of the heads with the largest gains in `measures`, each head once, the largest first."""
    rows = heads.loc[heads["measure"].isin(list(measures)) & (heads["sink"] == "kept")].dropna(subset=["gain"])
    return rows.sort_values("gain", ascending=False, kind="stable").drop_duplicates(HEAD).head(top)


def carriers(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows in which a head carries part of an answer, or of the other where the share is negative.

    The half of the pairs that chooses has to show it (`choosing_bound`). On the other the share is at least 0.05 either
    way, on the same side of 0, its interval excludes 0 and its q is below 0.05.
    """
    sign = np.sign(effects["effect"])
    near = effects["ci_low"].where(sign > 0, -effects["ci_high"])
    clear = (near > 0) & (sign * effects["choosing_bound"] > 0) & (effects["q"] < DISCOVERY)
    return effects.loc[clear & (effects["effect"].abs() >= NOTABLE)]


def causes(effects: pd.DataFrame, task: str, top: int = 3) -> pd.DataFrame:
    """The heads that carry most of a task's answer, a row each, with `denoise` and `noise` and what belongs to either.

    A head counts where it carries some by one of the two (`carriers`); which carries most, the half that chooses says.
    """
    rows = effects.loc[effects["task"] == task]
    largest = carriers(rows).loc[lambda found: found["effect"] > 0]
    largest = largest.sort_values("choosing_bound", ascending=False, kind="stable").drop_duplicates(HEAD).head(top)
    return largest[HEAD].merge(both_ways(rows), on=HEAD, how="left")


def both_ways(effects: pd.DataFrame) -> pd.DataFrame:
    """A row a head and task, or paradigm, with `denoise` and `noise` and what belongs to either."""
    key = [*HEAD, *(each for each in ("behaviour", "task", "paradigm") if each in effects)]
    joined = effects.loc[:, [*key, "n"]].drop_duplicates(key)
    for way in effects["intervention"].unique():
        names = {"effect": way, "ci_low": f"{way}_low", "ci_high": f"{way}_high", "flips": f"{way}_flips"}
        values = effects.loc[effects["intervention"] == way, [*key, *names]].rename(columns=names)
        joined = joined.merge(values, on=key, how="left")
    return joined
