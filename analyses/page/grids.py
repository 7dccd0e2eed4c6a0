"""What do cells of layers by heads or tokens hold? Maps side by side, of which each cell leads somewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell: in full, in short, in small; its class and how full its colour is; its id, and the ids that it marks."""

    name: str
    text: str = ""
    note: str = ""
    kind: str = ""
    level: float = 0.0  # 0 to 1
    to: str = ""  # the fragment that it leads to
    id: str = ""
    marks: Sequence[str] = ()  # cells of other maps that match it, the best first


class Grid(NamedTuple):
    """A map: its title, what is added in small, its columns, and its rows by name from the top."""

    title: str
    small: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell | None]]]


@dataclass(frozen=True)
class Grids:
    """Maps side by side and what is said below them; a page's links lead to the heads among `ids`.

    `start` is the fragment of the cell whose head is seen first.
    """

    grids: Sequence[Grid]
    caption: str
    ids: Sequence[str] = ()
    start: str = ""
