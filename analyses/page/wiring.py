"""How is a circuit drawn? Its nodes in layers upwards, and its edges as lines from what writes to what reads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analyses.wording.formats import number
from analyses.wording.head_names import head_name

MOST = 60  # edges that are drawn
_READS = {"q": " query", "k": " key", "v": " value"}
_NODE = re.compile(r"(?:(encoder|decoder)\.)?(?:(cross)\.)?(?:(\d+)\.(\d+)(?:\.([qkv]))?|mlp\.(\d+)|(\w+))")
_GAP, _RISE, _HIGH, _LEFT = 14, 62, 26, 70  # pixels: between boxes, from row to row, of a box, of the names of rows
_THIN, _THICK = 1.0, 6.0  # pixels of a line
_BEND, _BOW = 30, 120  # how far lines begin straight, and how far aside they go


class Box(NamedTuple):
    """A node as it is drawn: its text, its name, its place, and the id that it leads to."""

    text: str
    name: str
    x: float
    y: float
    width: float
    to: str


class Line(NamedTuple):
    """An edge: the path that is drawn, how thick, whether it helps, and what it is in words."""

    path: str
    width: float
    helps: bool
    name: str


@dataclass(frozen=True)
class Wiring:
    """A drawn circuit; `rows` say of each node in words what it reads and writes, where no card does, by their ids."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[Line]
    layers: Sequence[tuple[str, float]]  # names of rows by their height
    caption: str
    rows: Sequence[tuple[str, str, str]]

    @property
    def ids(self) -> list[str]:
        """Those of its own rows."""
        return [id for id, *_ in self.rows]


def node_name(node: str) -> str:
    """A node, or what it reads for, in words: `L0.H3`, `L0.H3 query`, `feed-forward 2`, `embedding`, `cross.L0.H3`."""
    stack, cross, layer, head, part, feed, other = _parts(node)
    if layer:
        prefix = f"{cross or stack}." if stack else ""
        return prefix + head_name(int(layer), int(head)) + _READS.get(part, "")
    name = f"feed-forward {feed}" if feed else other.replace("embed", "embedding")
    return f"{stack} {name}" if stack else name


def edge_name(edge: Mapping[str, Any]) -> str:
    """A row of a table of edges, or of nodes, in words."""
    receiver = f" → {node_name(edge['receiver'])}" if "receiver" in edge else ""
    return node_name(edge["sender"]) + receiver + (f" at {edge['position']}" if "position" in edge else "")


def wiring(edges: Sequence[Mapping[str, Any]], caption: str, *, with_rows: bool) -> Wiring:
    """The drawing of the first `MOST` rows of a table of edges or nodes, `sender`, `receiver` and `score`.

    A box leads to its row, or without rows a head's to its card.
    """
    drawn, strongest = edges[:MOST], max(abs(edge["score"]) for edge in edges) or 1
    names = {name for edge in drawn for name in (edge["sender"], _reader(edge)) if name}
    floors = sorted({_floor(name) for name in names})
    rows = [sorted((name for name in names if _floor(name) == floor), key=_place) for floor in floors]
    widths = {name: max(40, 16 + 8 * len(_text(name))) for name in names}
    inner = max([sum(widths[name] + _GAP for name in row) for row in rows if not _parts(row[0])[5]], default=0)
    heights = [_RISE * (len(rows) - floor) - _RISE + 18 for floor in range(len(rows))]
    boxes: dict[str, Box] = {}
    for row, y in zip(rows, heights, strict=True):
        x = _LEFT + (inner - sum(widths[name] + _GAP for name in row)) / 2
        x = _LEFT + inner + _GAP if _parts(row[0])[5] else x  # feed-forwards stand in a column of their own
        for name in row:
            to = _id(name) if with_rows or _parts(name)[2] else ""
            boxes[name] = Box(_text(name), node_name(name), x, y, widths[name], to)
            x += widths[name] + _GAP
    lines = [_line(edge, boxes, strongest) for edge in drawn if "receiver" in edge]
    layers = [(f"layer {floor[1]:g}", y) for floor, y in zip(floors, heights, strict=True) if 0 <= floor[1] < 1e9]
    said = [(_id(name), node_name(name), _sentence(name, edges)) for row in rows for name in row]
    size = round(_LEFT + inner + _GAP + _BOW + 20), _RISE * len(rows)
    return Wiring(*size, [*boxes.values()], lines, layers, caption, said if with_rows else ())


def _line(edge: Mapping[str, Any], boxes: Mapping[str, Box], strongest: float) -> Line:
    """From the top of the box that writes to the bottom of that which reads: its query left, its value right."""
    start, end = boxes[edge["sender"]], boxes[_reader(edge)]
    part = {"q": 0.2, "k": 0.5, "v": 0.8}.get(_parts(edge["receiver"])[4], 0.5)
    x, y, to_x, to_y = start.x + start.width / 2, start.y, end.x + end.width * part, end.y + _HIGH
    steps = (y - to_y) // _RISE  # rows that it passes, whose boxes it goes round
    bow = min(_BOW, 18 * steps) if abs(x - to_x) < _BEND else 0
    first, last = x + bow, to_x + bow
    path = f"M{x:.1f} {y:.1f}C{first:.1f} {y - _BEND:.1f} {last:.1f} {to_y + _BEND:.1f} {to_x:.1f} {to_y:.1f}"
    width = _THIN + (_THICK - _THIN) * abs(edge["score"]) / strongest
    return Line(path, round(width, 2), edge["score"] >= 0, f"{edge_name(edge)}: {number(edge['score'], sign=True)}")


def _sentence(node: str, edges: Sequence[Mapping[str, Any]]) -> str:
    """What a node reads and what reads it; its score where that is of nodes."""
    ways = {"reads": [e for e in edges if _reader(e) == node], "writes": [e for e in edges if e["sender"] == node]}
    lists = {
        verb: ", ".join(f"{edge_name(e)} ({number(e['score'], sign=True)})" for e in rows)
        for verb, rows in ways.items()
    }
    return "; ".join(f"{verb} {said}" for verb, said in lists.items() if said)


def _parts(node: str) -> tuple[str, ...]:
    match = _NODE.fullmatch(node)
    assert match is not None
    return match.groups("")


def _reader(edge: Mapping[str, Any]) -> str:
    """The node that reads: a head, whatever it reads for."""
    return re.sub(r"\.[qkv]$", "", edge.get("receiver", ""))


def _floor(node: str) -> tuple[str, float, bool, bool]:
    """How far up a node stands: the stack, the layer, and there heads first and feed-forwards last."""
    stack, cross, layer, _, _, feed, other = _parts(node)
    return (
        "z" if other == "logits" else stack,
        float("inf" if other == "logits" else layer or feed or -1),
        bool(cross),
        bool(feed),
    )


def _place(node: str) -> int:
    return int(_parts(node)[3] or 0)


def _text(node: str) -> str:
    return f"H{_place(node)}" if _parts(node)[2] else node_name(node).rstrip("0123456789 ")


def _id(node: str) -> str:
    return node_name(node).replace(" ", "-")
