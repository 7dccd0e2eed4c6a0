"""What is a head called? By its place: `L3.H4`, and `cross.L3.H4` where a model has several kinds of heads."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd


def head_name(layer: int, head: int) -> str:
    """How a head is called everywhere: layer and head, both from 0."""
    return f"L{layer}.H{head}"


def heads_named(text: str) -> list[tuple[int, int]]:
    """Layer and head of all that a text names: those of `L1.H3+L2.H0`."""
    return [(int(layer), int(head)) for layer, head in re.findall(r"L(\d+)\.H(\d+)", text)]


class Place(NamedTuple):
    """A head of a model."""

    stack: str
    attention: str
    layer: int
    head: int

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Place":
        """The head that a table's row is of."""
        return Place(str(row["stack"]), str(row["attention"]), int(row["layer"]), int(row["head"]))

    @property
    def kind(self) -> str:
        """What tells it from heads of other kinds: its stack, or `cross`."""
        return "cross" if self.attention == "cross" else self.stack

    def named(self, *, prefix: bool) -> str:
        """`L3.H4`; `encoder.L3.H4` and `cross.L3.H4` by `prefix`, where kinds are several, as links name it too."""
        name = head_name(self.layer, self.head)
        return f"{self.kind}.{name}" if prefix else name


HEAD = [*Place._fields]  # the columns of a table that say of which head a row is


def heads_in(rows: pd.DataFrame) -> list[Place]:
    """The heads that a table has rows of, in its order."""
    return [Place.from_row(row) for row in rows.loc[:, HEAD].drop_duplicates().to_dict("records")]


def kinds(rows: pd.DataFrame) -> int:
    """How many kinds of heads a table has rows of."""
    return len(rows[["stack", "attention"]].drop_duplicates())
