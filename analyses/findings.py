"""Which rows of the table of heads are findings? One rule for figures, tables and sentences.

A head shows a behaviour where its gain over the strictest baseline is at least 0.05, the 95% interval excludes 0 and q
is below 0.05. A head that finds antecedents must beat the nearest mention on all items, and every baseline where the
nearest true antecedent is a name or a noun: finding the previous "he" is not coreference.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

NOTABLE = 0.05  # the least gain or effect
DISCOVERY = 0.05  # the false discovery rate that findings are held to
FEW_DOCUMENTS = 20  # fewer, and intervals are rough
FEW_ITEMS = 50  # fewer scored items than this, and a share is rough whatever the documents
UNKNOWN = 0.01  # a larger share of unknown tokens is said beside the findings
RANKED = ("share", "correlation", "lift")  # units in which more is better; the others only describe
_REFERENCE, _NAMED = ("antecedent", "antecedent-mass"), ":named"
_HEAD = ["stack", "attention", "layer", "head"]


def unit(measure: str) -> str:
    """What a measure counts in: gains of different units cannot be ranked together."""
    if measure.startswith("tag:"):
        return "lift"
    units = {"distance": "tokens", "entropy": "entropy", "diagonal": "progress", "monotonicity": "correlation"}
    return units.get(measure, "share")


def notable(heads: pd.DataFrame) -> pd.DataFrame:
    """The rows, read with the first position kept, that show their measure."""
    kept = heads.loc[(heads["sink"] == "kept") & heads["measure"].map(unit).isin(RANKED)]
    shown = _clear(kept, kept["gain"], kept["ci_low"])
    shown = shown.loc[shown["q"] < DISCOVERY]
    named, nearest = _keys(shown), _keys(beating_nearest(heads))

    def holds(key: tuple[object, ...]) -> bool:
        *head, measure = key
        on_all = str(measure).removesuffix(_NAMED)
        return on_all not in _REFERENCE or ((*head, on_all + _NAMED) in named and (*head, on_all) in nearest)

    return shown.loc[np.fromiter(map(holds, _each(shown)), dtype=bool)]


def _clear(rows: pd.DataFrame, gain: pd.Series, low: pd.Series) -> pd.DataFrame:
    return rows.loc[(gain >= NOTABLE) & (low > 0)]


def beating_nearest(heads: pd.DataFrame) -> pd.DataFrame:
    """Rows that find antecedents better than the nearest mention does, the first position kept.

    It may be a weaker baseline than theirs: gain and interval are moved by the difference.
    """
    value = {
        row["measure"]: row["value"]
        for row in heads.attrs.get("baselines", ())
        if row["baseline_name"] == "nearest" and row["sink"] == "kept"
    }
    rows = heads.loc[(heads["sink"] == "kept") & heads["measure"].isin(_REFERENCE)]
    easier = rows["baseline"] - rows["measure"].map(value).astype(float).fillna(rows["baseline"])
    return _clear(rows, rows["gain"] + easier, rows["ci_low"] + easier)


def _each(rows: pd.DataFrame) -> Iterable[tuple[object, ...]]:
    return rows[[*_HEAD, "measure"]].itertuples(index=False, name=None)


def _keys(rows: pd.DataFrame) -> set[tuple[object, ...]]:
    return set(_each(rows))


def best(heads: pd.DataFrame, measures: Sequence[str], top: int = 3) -> pd.DataFrame:
    """Rows of the heads with the largest gains in `measures`, each head once, the largest first."""
    return _ranked(heads, measures).drop_duplicates(_HEAD).head(top)


def _ranked(heads: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    rows = heads.loc[heads["measure"].isin(list(measures)) & (heads["sink"] == "kept")].dropna(subset=["gain"])
    return rows.sort_values("gain", ascending=False, kind="stable")


def varied(heads: pd.DataFrame, measures: Sequence[str], top: int = 3) -> pd.DataFrame:
    """As `best`, but no measure comes twice before every one has come: the heads that show most of what there is."""
    rows = _ranked(heads, measures)
    seen: set[object] = set()
    chosen = []
    for row in rows.to_dict("records"):
        keys = {row["measure"], tuple(row[column] for column in _HEAD)}
        if not keys & seen:
            chosen.append(row)
            seen |= keys
    rest = [row for row in rows.drop_duplicates(_HEAD).to_dict("records") if tuple(row[c] for c in _HEAD) not in seen]
    return pd.DataFrame([*chosen, *rest][:top], columns=rows.columns)


def causes(effects: pd.DataFrame, task: str, top: int = 3) -> pd.DataFrame:
    """The heads with the largest effects in a task, a row each, with `denoise` and `noise` and the bounds of either.

    A head counts where one of the two is at least 0.05, its interval excludes 0 and its q is below 0.05.
    """
    rows = effects.loc[effects["task"] == task]
    clear = (rows["effect"] >= NOTABLE) & (rows["ci_low"] > 0) & (rows["q"] < DISCOVERY)
    largest = rows.loc[clear].sort_values("effect", ascending=False, kind="stable").drop_duplicates(_HEAD).head(top)
    chosen = largest[_HEAD]
    for way in rows["intervention"].unique():
        values = rows.loc[rows["intervention"] == way, [*_HEAD, "effect", "ci_low", "ci_high"]]
        names = {"effect": way, "ci_low": f"{way}_low", "ci_high": f"{way}_high"}
        chosen = chosen.merge(values.rename(columns=names), on=_HEAD, how="left")
    return chosen
