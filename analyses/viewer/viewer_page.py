"""How does a viewer become HTML: among other blocks, as a page of its own, in a notebook's frame?

Text is escaped, nothing is fetched, and no styles or scripts but ours run.
"""

import base64
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from analyses.execution.provenance import check_free
from analyses.viewer.passages import Viewer
from interp import InputError
from interp.training.whole_files import file_above, replacing


def environment(rooms: Mapping[str, str], filters: Mapping[str, Callable[..., Any]]) -> Environment:
    """Templates that escape their values and refuse undefined ones."""
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package, folder) for package, folder in rooms.items()]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= filters
    return templates


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows only this style and this script, and fetches nothing.

    Source: Content Security Policy Level 3 (W3C); the hashes are of the text between the tags.
    """
    styles, scripts = (base64.b64encode(sha256(each.encode()).digest()).decode() for each in (style, script))
    ours = f"style-src 'sha256-{styles}'; script-src 'sha256-{scripts}'"
    return f"default-src 'none'; img-src data:; {ours}; base-uri 'none'; form-action 'none'"


TITLE = "Where does each token look?"
_ROOM = Path(__file__).parent
_SHARED = _ROOM.parent / "report" / "templates"  # shared by all pages
_FRAME = 720  # height of a notebook's frame in pixels
_TOKENS = 40  # drawn on each side
_FAINTEST = 0.05  # the smallest attention that is drawn
_LETTERS = 18  # characters of a drawn token


def page(viewer: Viewer, title: str = TITLE, lead: str = "", *, heading: bool = True) -> str:
    """One self-contained HTML file: a heading, a paragraph below it, and the viewer."""
    files = [[_SHARED / "shared.js", _ROOM / "viewer.js"], [_SHARED / "style.css", _ROOM / "viewer.css"]]
    script, style = ("\n".join(path.read_text("utf-8") for path in group) for group in files)
    template = environment({"analyses.viewer": "."}, FILTERS).get_template("viewer_page.html.jinja")
    texts = {"title": title, "heading": title if heading else "", "lead": lead, "block": viewer}
    return template.render(**texts, style=style, script=script, policy=policy(style, script))


def frame(viewer: Viewer) -> str:
    """A sandboxed notebook frame, whose scripts can reach nothing around it."""
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(page(viewer, heading=False))}" title="{TITLE}" '
        f'width="100%" height="{_FRAME}" frameborder="0"></iframe>'
    )


def write(viewer: Viewer, out: str | Path, title: str = TITLE, lead: str = "", *, force: bool = False) -> None:
    """Write a viewer's page, whole or not at all, replacing an earlier page or, with `force`, any other file."""
    path = Path(out)
    if file := file_above(path):
        raise InputError(f"{file} is a file: expected a directory above {path.name}; choose another --out")
    try:
        check_free(path, force=force)
        with replacing(path) as part:
            part.write_text(page(viewer, title, lead), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def static(viewer: Viewer) -> str:
    """An SVG picture: looking tokens on the left, tokens looked at on the right, wider lines for more attention.

    It shows the first passage and head, and only the first tokens.
    """
    stack, kind, layer, head = viewer.start
    attentions = viewer.passages[0].attentions
    of_kind = [each for each in attentions if (each.heads.stack, each.heads.attention) == (stack, kind)]
    attention = (of_kind or attentions)[0]
    shares = attention.weights[layer, head, :_TOKENS, :_TOKENS] / 255
    links = [(query, key, shares[query, key]) for query, key in np.argwhere(shares >= _FAINTEST).tolist()]
    longest = max(len(attention.queries), len(attention.keys))
    title = f"{'cross-attention ' * (kind == 'cross')}L{layer}.H{head} looks from the tokens on the left to those"
    title += " on the right" + f" (the first {_TOKENS} of {longest})" * (longest > _TOKENS)
    sides = [[_printable(token) for token in side[:_TOKENS]] for side in (attention.queries, attention.keys)]
    template = environment({"analyses.viewer": "."}, {}).get_template("links.svg.jinja")
    return template.render(title=title, sides=sides, links=links)


def _printable(token: str) -> str:
    text = token.strip() or "␣"
    text = text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def packed(block: Any) -> str:
    """A block's `data` for a script element, escaped so that no text in it can end the element."""
    text = json.dumps(block.data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


FILTERS = {"static": static, "packed": packed}  # used in the viewer's template
