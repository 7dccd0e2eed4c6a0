"""A claim as a picture to share: its sentence, an example, the intervention, the rival, the interval and its source.

A picture is a list of marks in a frame of 1200 by 630 pixels. The page's script draws it; `save` draws it to a file.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analyses.execution.provenance import PICTURES
from analyses.figures.style import BEHAVIOURS, CUSTOM, INK, PALE, SOFT
from analyses.headlines.head_cards import Axis, Example, FactCard
from analyses.page.sections import plain
from analyses.wording.formats import percent
from interp.errors import InputError

WIDTH, HEIGHT, _EDGE = 1200, 630, 60
_SHEET = Path(__file__).parents[1] / "report" / "templates" / "style.css"
_WASHES = {"position": "position-wash", "part-of-speech": "syntax-wash", "coreference": "coreference-wash"}
Mark = tuple[Any, ...]
"""`("text", x, baseline, size, bold, colour, words)`, `("box", x, y, width, height, colour)` or
`("dot", x, y, radius, colour)`."""


@cache
def _width(words: str, size: int, bold: bool) -> float:
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415 a page without heads needs no font
    from matplotlib.textpath import text_to_path  # noqa: PLC0415

    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    return text_to_path.get_text_width_height_descent(words.replace("$", "S"), font, ismath=False)[0]


def _lines(words: Sequence[tuple[str, str]], size: int, bold: bool, most: int) -> list[list[tuple[float, str, str]]]:
    """Place words in at most `most` lines that fit the frame; the last ends in an ellipsis if words are left over."""
    space, lines, at = _width("a b", size, bold) - _width("ab", size, bold), [[]], 0.0
    for word, part in words:
        width, closes = _width(word, size, bold), bool(lines[-1]) and word in Example.closing
        at -= space * closes
        if at + width > WIDTH - 2 * _EDGE and lines[-1] and not closes:
            if len(lines) == most:
                lines[-1][-1] = (*lines[-1][-1][:1], "…", "")
                break
            lines.append([])
            at = 0.0
        lines[-1].append((at, word, part))
        at += width + space
    return lines


@cache
def _shades() -> dict[str, str]:
    """Colours of the light theme, by name."""
    return dict(re.findall(r"--([\w-]+): (#\w+);", _SHEET.read_text("utf-8").partition("@media")[0]))


def claim_picture(card: FactCard, source: str = "") -> list[Mark]:
    """The marks of a claim's picture, from its white background to its source, which the page's script fills in."""
    name = card.fact.behaviour
    colour, wash = BEHAVIOURS.get(name, CUSTOM), _shades()[_WASHES.get(name, "tint")]
    marks: list[Mark] = [("box", 0, 0, WIDTH, HEIGHT, "#ffffff"), ("box", 0, 0, WIDTH, 12, colour)]
    y = 46.0

    def write(text: str | Sequence[tuple[str, str]], size: int, *, bold=False, ink=INK, most=1, gap=0) -> None:
        nonlocal y
        words = [(word, "") for word in text.split()] if isinstance(text, str) else text
        for line in _lines(words, size, bold, most):
            y += size
            for x, word, part in line:
                width = _width(word, size, bold)
                if part in {"seen", "both"}:
                    marks.append(("box", _EDGE + x - 4, y - size, width + 8, 1.35 * size, wash))
                if part in {"asks", "both"}:
                    marks.append(("box", _EDGE + x, y + 6, width, 3, INK))
            apart = any(part or word in Example.closing for _, word, part in line)
            for run in [[each] for each in line] if apart else [line]:
                x, _, part = run[0]
                ink_here = colour if part in {"seen", "both"} else ink
                marks.append(("text", _EDGE + x, y, size, bold, ink_here, " ".join(word for _, word, _ in run)))
            y += 0.35 * size
        y += gap

    write(card.id.partition("/")[0].replace(".", " ", card.id.count(".") - 1), 28, bold=True, ink=colour, gap=10)
    write(card.sentence, 44 if len(card.sentence) < 90 else 34, bold=True, most=3, gap=12)
    if card.look:
        write(card.look.words, 30, most=2)
        said = f"{card.look.text} of its attention" + (f"; {card.right}" if card.right else "")
        write(f"{said[:1].upper()}{said[1:]}.", 22, ink=SOFT, gap=12)
    for label, answers in card.look.bars.rows if card.look and card.look.bars else ():
        said = ", ".join(f"{answer.strip()} {percent(probability)}" for answer, probability, _ in answers)
        write(f"{plain(label)}: {said}.", 22, most=1)
    if card.effect:
        write(f"{card.effect}.", 22, bold=True, most=2)
    if card.axis:
        marks += _axis_marks(card.axis, y + 32, colour)
        y += 76
        write(f"{card.axis.text}.", 20, ink=SOFT)
    marks.append(("text", _EDGE, HEIGHT - 30, 18, False, SOFT, source))
    return [tuple(round(each) if isinstance(each, float) else each for each in mark) for mark in marks]


def _axis_marks(axis: Axis, y: float, colour: str) -> Iterator[Mark]:
    """The other heads, the rival as an upright line, and this head with its interval on top."""
    length = WIDTH - 2 * _EDGE
    yield "box", _EDGE, y - 1, length, 2, PALE
    for point in sorted(axis.points, key=lambda each: ("other", "rule", "named", "this").index(each.kind)):
        x = _EDGE + length * point.at
        if point.kind == "rule":
            yield "box", x - 2, y - 18, 4, 36, INK
        elif point.kind != "this":
            yield "dot", x, y, 7, PALE
        else:
            if math.isfinite(point.low):
                yield "box", _EDGE + length * point.low, y - 3, length * (point.high - point.low), 6, colour
            yield "dot", x, y, 11, colour
    for name, at in axis.ticks:
        yield "text", _EDGE + length * at - _width(name, 18, False) * at, y + 38, 18, False, SOFT, name


def save(card: FactCard, source: str, path: str | Path) -> None:
    """Draw a claim's picture into a PNG, SVG or PDF file, whole or not at all; `source` is its last line."""
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Circle, Rectangle  # noqa: PLC0415

    from interp.training.whole_files import replacing  # noqa: PLC0415

    path = Path(path)
    if path.suffix[1:] not in PICTURES:
        raise InputError(f"expected a file that ends in .png, .svg or .pdf, got {path.name}")
    with rc_context({"font.family": "DejaVu Sans", "text.parse_math": False, "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(HEIGHT, 0), autoscale_on=False)
        axes.set_axis_off()
        for kind, x, y, *rest in claim_picture(card, source):
            if kind == "box":
                axes.add_patch(Rectangle((x, y), *rest[:2], color=rest[2], linewidth=0))
            elif kind == "dot":
                axes.add_patch(Circle((x, y), rest[0], color=rest[1], linewidth=0))
            else:
                size, bold, colour, words = rest
                axes.text(x, y, words, size=0.72 * size, weight="bold" if bold else "normal", color=colour)
        with replacing(path) as part:
            figure.savefig(part, format=path.suffix[1:], metadata=PICTURES[path.suffix[1:]])
