"""How does a page of values become one HTML file? All is escaped, and nothing is from outside."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from analyses.sections import Block, Definitions, Details, Figure, Piece, Section


def render(title: str, lead: Sequence[Block], sections: Sequence[Section], svgs: Mapping[str, bytes]) -> str:
    """One HTML file.

    Args:
        title: what the page asks.
        lead: what stands below the title.
        sections: in order, the summary first.
        svgs: by the names of the figures among the blocks, what was drawn.
    """
    environment = Environment(
        loader=PackageLoader("analyses.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"kind": kind, "pieces": pieces}
    images = {name: "data:image/svg+xml;base64," + base64.b64encode(svg).decode() for name, svg in svgs.items()}
    page = environment.get_template("page.html.jinja")
    return page.render(title=title, lead=lead, sections=sections, images=images)


def kind(block: Any) -> str:
    """Which macro shows a block: `text` for what stands alone as a paragraph."""
    return "text" if isinstance(block, Piece | list | tuple) else type(block).__name__.lower()


def pieces(text: Any) -> Sequence[Piece]:
    """A text as its strings and spans."""
    return [text] if isinstance(text, Piece) else text


def figures(blocks: Sequence[Any]) -> Iterator[Figure]:
    """All figures in some blocks, in order."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Section | Details):
            yield from figures(block.blocks)
        elif isinstance(block, Definitions):
            yield from figures([said for term in block.terms for said in term])
