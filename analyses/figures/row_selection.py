"""Which rows of a table does a figure draw? Those with the values asked for, each place once."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from interp.display import listed
from interp.errors import InputError

SOURCES = ("model", "run", "seed")  # the columns that tell the runs of a joined table apart


def select_rows(table: pd.DataFrame, place: Sequence[str], *, single: Sequence[str] = SOURCES, **values: Any) -> Any:
    """Select the rows with given values and renumber them, so that each index label names one row.

    The result is a DataFrame, but typed `Any`, because type checkers take its columns for several types.

    Args:
        table: what a figure draws from.
        place: the columns that tell the figure's marks apart, if the table has them; one row for each combination.
        single: columns that must have one value in all these rows, if the table has them.
        values: by column, the value or list of values to keep, each found in some row; None keeps all.
    """
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"expected a table (a pandas DataFrame), got {type(table).__name__}")
    if missing := [column for column in values if column not in table]:
        raise InputError(f"expected a table with a column {missing[0]}, got columns {_listed(table.columns)}")
    if table.empty:
        raise InputError("expected a table with rows to draw, got an empty one")
    rows: Any = table.reset_index(drop=True)
    for column, value in values.items():
        if value is None:
            continue
        choices = [value] if isinstance(value, str | int) else [*value]
        if unknown := [each for each in choices if not (rows[column] == each).any()]:
            raise InputError(f"no row of {column} {unknown[0]!r}: expected {_listed(rows[column].unique())}")
        rows = rows.loc[rows[column].isin(choices)].reset_index(drop=True)
    for column in [each for each in single if each in rows]:
        if rows[column].nunique(dropna=False) > 1:
            raise InputError(f"expected rows of one {column}, got {_listed(rows[column].unique())}: choose one")
    columns = [column for column in place if column in rows]
    twice = rows.loc[rows.duplicated(columns, keep=False)] if columns else rows.iloc[:0]
    if twice.empty:
        return rows
    alike = twice[columns].iloc[:1].merge(twice, on=columns)  # unlike ==, a merge takes missing values for equal
    names = [name for name in rows if name not in columns and alike[name].nunique(dropna=False) > 1]
    names = [name for name in names if not pd.api.types.is_float_dtype(rows[name])] or names
    mark = ", ".join(f"{name} {value}" for name, value in twice[columns].iloc[0].dropna().items())
    why = f"with {names[0]} {_listed(alike[names[0]].unique())}" if names else "all the same"
    raise InputError(f"expected one row of {mark}, got {len(alike)}, {why}: choose one")


def _listed(values: Iterable[Any]) -> str:
    return listed([str(value) for value in values]) or "none"
