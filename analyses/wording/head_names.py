"""What is a head called? By its place: `L3.H4`, and `cross.L3.H4` if a model has several kinds of heads."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd


def head_name(layer: int, head: int) -> str:
    """A head's name everywhere: layer and head, both counted from 0."""
    return f"L{layer}.H{head}"


def heads_named(text: str) -> list[tuple[int, int]]:
    """Layer and head of every head named in a text, such as `L1.H3+L2.H0`."""
    return [(int(layer), int(head)) for layer, head in re.findall(r"L(\d+)\.H(\d+)", text)]


class Place(NamedTuple):
    """A head of a model."""

    stack: str
    attention: str
    layer: int
    head: int

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Place":
        """The head that a table's row is about."""
        return Place(str(row["stack"]), str(row["attention"]), int(row["layer"]), int(row["head"]))

    @property
    def kind(self) -> str:
        """What distinguishes it from heads of other kinds: its stack, or `cross`."""
        return "cross" if self.attention == "cross" else self.stack

    def named(self, *, prefix: bool) -> str:
        """`L3.H4`; with `prefix`, for several kinds of heads, `encoder.L3.H4` or `cross.L3.H4`, as in links."""
        name = head_name(self.layer, self.head)
        return f"{self.kind}.{name}" if prefix else name


HEAD = [*Place._fields]  # the columns of a table that identify a row's head


def heads_in(rows: pd.DataFrame) -> list[Place]:
    """The heads in a table, in order."""
    return [Place.from_row(row) for row in rows.loc[:, HEAD].drop_duplicates().to_dict("records")]


def kinds(rows: pd.DataFrame) -> int:
    """How many kinds of heads a table contains."""
    return len(rows[["stack", "attention"]].drop_duplicates())
