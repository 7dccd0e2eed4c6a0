"""How does a page of values become one HTML file? All is escaped, nothing is from outside, and only our scripts run."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analyses.page.sections import Block, Definitions, Details, Figure, Piece, Section, is_text
from analyses.viewer import FILTERS
from analyses.viewer.viewer_page import environment, policy

_SCALE = 1.125  # of a figure's own size: its smallest text, of 8 points, has 12 pixels
_PIXELS = 96 / 72  # a point


def render(title: str, lead: Sequence[Block], sections: Sequence[Section], svgs: Mapping[str, bytes]) -> str:
    """One HTML file.

    A block of a kind that `blocks.html.jinja` does not know brings its own template, and where they exist a style and a
    script: `Atlas` is shown by `atlas.html.jinja`, `atlas.css` and `atlas.js`. Wherever the page names a head that is
    among a block's `ids`, as those of cards, a link leads there.
    """
    sections = _addressed(sections)
    blocks = list(_nested([*lead, *sections]))
    kinds = list(dict.fromkeys(kind(block) for block in blocks))
    heads = {each for block in blocks for each in getattr(block, "ids", ())}
    defined = [each for each in blocks if isinstance(each, Definitions) and each.kind == "terms"]
    names = [term[0] for each in defined for term in each.terms if isinstance(term[0], str)]
    terms = {name for each in names for name in each.split(", ")}

    def meaning(measure: str) -> str:
        """The id of what a measure or label means, `tag:NOUN→ADJ` as any `tag`; nothing where the page says nothing."""
        return next((definition(name) for name in (measure, measure.split(":", maxsplit=1)[0]) if name in terms), "")

    filters = {"kind": kind, "pieces": pieces, "definition": definition, "by_head": by_head}
    filters |= {"head": lambda text: text if text in heads else "", "defined": meaning}
    templates = environment({"analyses.report": "templates", "analyses.viewer": "."}, FILTERS | filters)
    templates.globals["images"] = {name: _image(svg) for name, svg in svgs.items()}
    assert templates.loader is not None
    files = ["style.css", "page.js", *(f"{each}.{ending}" for each in kinds for ending in ("css", "js"))]
    present = templates.list_templates()
    sources = {name: templates.loader.get_source(templates, name)[0] for name in files if name in present}
    style = "\n".join(source for name, source in sources.items() if name.endswith(".css"))
    scripts = [source for name, source in sources.items() if name.endswith(".js")]
    shell, safety = templates.get_template("shell.html.jinja"), policy([style], scripts)
    return shell.render(title=title, lead=lead, sections=sections, policy=safety, style=style, scripts=scripts)


def _image(svg: bytes) -> dict[str, str | int]:
    match = re.search(rb'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    if match is None:
        raise ValueError("a figure's SVG begins with its width and height in points: this one does not")
    address = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    width, height = (round(float(each) * _PIXELS * _SCALE) for each in match.groups())
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


def _addressed(sections: Sequence[Section]) -> list[Section]:
    ids, addressed = {each.id for each in sections if each.id}, []
    for section in sections:
        id = section.id or slug(section.title)
        while not section.id and id in ids:
            id += "-more"
        ids.add(id)
        addressed.append(replace(section, id=id))
    return addressed


def _nested(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        yield block
        if isinstance(block, Section | Details):
            yield from _nested(block.blocks)
        elif isinstance(block, Definitions):
            yield from _nested([each for term in block.terms for each in term])
        else:
            yield from _nested(getattr(block, "below", ()))


def figures(blocks: Sequence[Any]) -> Iterator[Figure]:
    """All figures in some blocks, in order."""
    yield from (block for block in _nested(blocks) if isinstance(block, Figure))
