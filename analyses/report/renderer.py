"""How does a page of values become one HTML file? All is escaped, nothing is from outside, and only our scripts run."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyses.page.sections import Block, Definitions, Details, Figure, Piece, Section, is_text
from analyses.viewer import FILTERS
from analyses.viewer.page_safety import environment, policy

_SHOWN = 1.125  # of a figure's own size: its smallest text, of 8 points, has 12 pixels
_PIXELS = 96 / 72  # a point
TEMPLATES = Path(__file__).parent / "templates"


def render(title: str, lead: Sequence[Block], sections: Sequence[Section], svgs: Mapping[str, bytes]) -> str:
    """One HTML file.

    A block of a kind that `blocks.html.jinja` does not know brings its own template, and where they exist a style and a
    script: `Atlas` is shown by `atlas.html.jinja`, `atlas.css` and `atlas.js`. What gives out ids of heads, as cards
    do, has them in an attribute `ids`: wherever the page names such a head, a link leads there.

    Args:
        title: what the page asks.
        lead: what stands below the title.
        sections: in order, the summary first.
        svgs: by the names of the figures among the blocks, what was drawn.
    """
    sections = _addressed(sections)
    blocks = list(_every([*lead, *sections]))
    kinds = list(dict.fromkeys(kind(block) for block in blocks))
    heads = {each for block in blocks for each in getattr(block, "ids", ())}
    defined = [
        term[0] for block in blocks if isinstance(block, Definitions) and block.kind == "terms" for term in block.terms
    ]
    terms = {name for names in defined if isinstance(names, str) for name in names.split(", ")}
    own = {
        "kind": kind,
        "pieces": pieces,
        "definition": definition,
        "by_head": by_head,
        "head": lambda text: text if text in heads else "",
        "defined": lambda text: _definition_of(text, terms),
    }
    made = environment({"analyses.report": "templates", "analyses.viewer": "."}, FILTERS | own)
    made.globals["images"] = {name: _image(svg) for name, svg in svgs.items()}
    assert made.loader is not None
    files = ["style.css", "page.js", *(f"{each}.{ending}" for each in kinds for ending in ("css", "js"))]
    sources = {name: made.loader.get_source(made, name)[0] for name in files if name in made.list_templates()}
    style = "\n".join(source for name, source in sources.items() if name.endswith(".css"))
    scripts = [source for name, source in sources.items() if name.endswith(".js")]
    return made.get_template("shell.html.jinja").render(
        title=title,
        lead=lead,
        sections=sections,
        policy=policy([style], scripts),
        style=style,
        scripts=scripts,
    )


def _image(svg: bytes) -> dict[str, str | int]:
    """What was drawn, inside the page: its address, and a size in pixels at which its text can be read."""
    found = re.search(rb'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    if found is None:
        raise ValueError("a figure's SVG begins with its width and height in points: this one does not")
    address = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    width, height = (round(float(each) * _PIXELS * _SHOWN) for each in found.groups())
    return {"address": address, "width": width, "height": height}


def kind(block: Any) -> str:
    """Which macro shows a block: `text` for what stands alone as a paragraph."""
    return "text" if is_text(block) else type(block).__name__.lower()


def pieces(text: Any) -> Sequence[Piece]:
    """A text as its strings and spans."""
    return [text] if isinstance(text, Piece) else text


def by_head(text: str) -> list[str]:
    """A text in parts, such that a head's name is a part of its own."""
    return re.split(r"((?:\b\w+\.)?\bL\d+\.H\d+\b)", text)


def definition(name: str) -> str:
    """The id of what a term means."""
    return f"definition-{slug(name)}"


def slug(words: str) -> str:
    """Words as an id."""
    return re.sub(r"[^\w]+", "-", words.lower()).strip("-") or "section"


def _definition_of(measure: str, terms: set[str]) -> str:
    """The id of what a measure or label means, `tag:NOUN→ADJ` as any `tag`; nothing where the page does not say."""
    return next((definition(name) for name in (measure, measure.split(":", maxsplit=1)[0]) if name in terms), "")


def _addressed(sections: Sequence[Section]) -> list[Section]:
    """The same sections, all with an id, for the contents to lead to."""
    taken, addressed = {each.id for each in sections if each.id}, []
    for section in sections:
        id = section.id or slug(section.title)
        while not section.id and id in taken:
            id += "-more"
        taken.add(id)
        addressed.append(replace(section, id=id))
    return addressed


def _every(blocks: Sequence[Any]) -> Iterator[Any]:
    """All blocks, and those inside them, in order."""
    for block in blocks:
        yield block
        if isinstance(block, Section | Details):
            yield from _every(block.blocks)
        elif isinstance(block, Definitions):
            yield from _every([said for term in block.terms for said in term])
        else:
            yield from _every(getattr(block, "below", ()))


def figures(blocks: Sequence[Any]) -> Iterator[Figure]:
    """All figures in some blocks, in order."""
    yield from (block for block in _every(blocks) if isinstance(block, Figure))
