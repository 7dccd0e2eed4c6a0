"""How is a circuit drawn? Its nodes in layers from the bottom up, and its edges as lines from writer to reader."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from analyses.wording.formats import number
from analyses.wording.head_names import head_name

MOST = 60  # edges that are drawn, at most
_READS = {"q": " query", "k": " key", "v": " value"}
_NODE = re.compile(r"(?:(encoder|decoder)\.)?(?:(cross)\.)?(?:(\d+)\.(\d+)(?:\.([qkv]))?|mlp\.(\d+)|(\w+))")
_GAP, _RISE, _HIGH, _LEFT = 14, 62, 26, 70  # pixels: between boxes, between rows, a box's height, width of row names
_THIN, _THICK = 1.0, 6.0  # pixels of a line
_BEND, _BOW = 30, 120  # pixels: how far lines begin straight, and their largest detour


class Box(NamedTuple):
    """A drawn node: its text, its name, its place, and the id that it links to."""

    text: str
    name: str
    x: float
    y: float
    width: float
    to: str


class Line(NamedTuple):
    """A drawn edge: its path and width, whether it helps, and its name in words."""

    path: str
    width: float
    helps: bool
    name: str


@dataclass(frozen=True)
class Wiring:
    """A drawn circuit; `rows` (id, name, text) say what each node reads and writes, for pages without cards."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[Line]
    layers: Mapping[float, str]  # names of rows by their height
    caption: str
    rows: Sequence[tuple[str, str, str]]

    @property
    def ids(self) -> list[str]:
        """The ids of its own rows."""
        return [id for id, *_ in self.rows]


def node_name(node: str) -> str:
    """A node or one of its inputs in words: `L0.H3`, `L0.H3 query`, `feed-forward 2`, `embedding`, `cross.L0.H3`."""
    stack, cross, layer, head, part, feed, other = _parts(node)
    if layer:
        return f"{cross or stack}." * bool(stack) + head_name(int(layer), int(head)) + _READS.get(part, "")
    return f"{stack} {f'feed-forward {feed}' if feed else other.replace('embed', 'embedding')}".strip()


def edge_name(edge: Mapping[str, Any]) -> str:
    """A row of a table of edges or nodes in words."""
    receiver = f" → {node_name(edge['receiver'])}" if "receiver" in edge else ""
    return node_name(edge["sender"]) + receiver + (f" at {edge['position']}" if "position" in edge else "")


def wiring(edges: Sequence[Mapping[str, Any]], caption: str, *, with_rows: bool) -> Wiring:
    """Draw the first `MOST` rows of a table of edges or nodes (`sender`, `receiver`, `score`).

    Boxes link to their rows; without rows, a head's box links to its card.
    """
    drawn, boxes, layers = edges[:MOST], dict[str, Box](), dict[float, str]()
    names = sorted({name for edge in drawn for name in (edge["sender"], _reader(edge)) if name}, key=_place)
    texts = {
        name: f"H{_place(name)[-1]}" if _parts(name)[2] else node_name(name).rstrip("0123456789 ") for name in names
    }
    widths = {name: max(40, 16 + 8 * len(text)) + _GAP for name, text in texts.items()}
    rows = [[*row] for _, row in groupby(names, lambda name: _place(name)[:-1])]
    inner = max((sum(map(widths.__getitem__, row)) for row in rows if not _parts(row[0])[5]), default=0)
    for row, y in zip(rows, range(_RISE * (len(rows) - 1) + 18, 0, -_RISE), strict=True):
        *_, layer, _, _, feed, _ = _parts(row[0])
        x = _LEFT + (inner + _GAP if feed else (inner - sum(map(widths.__getitem__, row))) / 2)  # in their own column
        for name in row:
            to = _id(name) if with_rows or _parts(name)[2] else ""
            boxes[name] = Box(texts[name], node_name(name), x, y, widths[name] - _GAP, to)
            x += widths[name]
        layers |= {y: f"layer {layer or feed}"} if layer or feed else {}
    strongest = max(abs(edge["score"]) for edge in edges) or 1
    lines = [_line(edge, boxes, strongest) for edge in drawn if "receiver" in edge]
    said = [(_id(name), node_name(name), _sentence(name, edges)) for name in names if with_rows]
    width = max(box.x + box.width for box in boxes.values()) + _BOW
    return Wiring(round(width), _RISE * len(rows), [*boxes.values()], lines, layers, caption, said)


def _line(edge: Mapping[str, Any], boxes: Mapping[str, Box], strongest: float) -> Line:
    """A curve from the top of the writing box to the bottom of the reading box: query left, key middle, value right."""
    start, end = boxes[edge["sender"]], boxes[_reader(edge)]
    to_x = end.x + end.width * {"q": 0.2, "k": 0.5, "v": 0.8}.get(_parts(edge["receiver"])[4], 0.5)
    aside = to_x - start.x - start.width / 2
    rows = (start.y - end.y - _HIGH) // _RISE  # passed on the way; the line goes round their boxes
    bow = min(_BOW, 18 * rows) if abs(aside) < _BEND else 0
    x = start.x + start.width * (0.5 if abs(aside) < _BEND or not rows else 0.1 if aside < 0 else 0.9)
    path = f"M{x:.1f} {start.y}C{x + bow:.1f} {start.y - _BEND} "
    path += f"{to_x + bow:.1f} {end.y + _HIGH + _BEND} {to_x:.1f} {end.y + _HIGH}"
    width = _THIN + (_THICK - _THIN) * abs(edge["score"]) / strongest
    return Line(path, round(width, 2), edge["score"] >= 0, f"{edge_name(edge)}: {number(edge['score'], sign=True)}")


def _sentence(node: str, edges: Sequence[Mapping[str, Any]]) -> str:
    """What a node reads and what reads it, with scores."""
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
    """The node that reads: the head, without `.q`, `.k` or `.v`."""
    return re.sub(r"\.[qkv]$", "", edge.get("receiver", ""))


def _place(node: str) -> tuple[str, float, bool, bool, int]:
    """A node's sort key from the bottom up: stack, layer, self- before cross-attention, heads before MLPs; its head."""
    stack, cross, layer, head, _, feed, other = _parts(node)
    last = other == "logits"
    return (
        "z" if last else stack,
        float("inf" if last else layer or feed or -1),
        bool(cross),
        bool(feed),
        int(head or 0),
    )


def _id(node: str) -> str:
    return node_name(node).replace(" ", "-")
