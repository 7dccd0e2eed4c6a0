"""What do cells of layers by heads or tokens hold? Maps side by side, in which each cell leads somewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell: its name, its text and a small note; its class and how full its colour is; its id and matching ids."""

    name: str
    text: str = ""
    note: str = ""
    kind: str = ""
    level: float = 0.0  # 0 to 1
    to: str = ""  # the fragment that it links to
    id: str = ""
    marks: Sequence[str] = ()  # matching cells of other maps, best first


class Grid(NamedTuple):
    """A map: its title, a small remark, its columns, and its rows by name from the top."""

    title: str
    small: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell | None]]]


@dataclass(frozen=True)
class Grids:
    """Maps side by side with one caption; a page's links lead to the heads among `ids`.

    `start` is the fragment of the cell whose head is shown first.
    """

    grids: Sequence[Grid]
    caption: str
    ids: Sequence[str] = ()
    start: str = ""
