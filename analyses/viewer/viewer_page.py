"""How does a viewer become HTML: among other blocks, as a page of its own, in a notebook's frame?"""

import base64
import hashlib
import json
from functools import cache
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analyses.viewer.passages import LEAST, Viewer
from analyses.viewer.still import still

_ROOM = Path(__file__).parent
_FRAME = 460  # pixels high, in a notebook


@cache
def script() -> Markup:
    """What a page with viewers runs, once."""
    return Markup((_ROOM / "view.js").read_text("utf-8"))  # noqa: S704 (a file of ours)


@cache
def style() -> Markup:
    """How viewers look; colours and type are the page's."""
    return Markup((_ROOM / "viewer.css").read_text("utf-8"))  # noqa: S704


def fragment(viewer: Viewer) -> Markup:
    """One viewer as a block of a page that has `style` and `script`."""
    data = viewer.data
    patterns = sum(len([*each.names()]) for passage in viewer.passages for each in passage.attentions)
    return Markup(  # noqa: S704 (the template escapes)
        _environment()
        .get_template("viewer.html.jinja")
        .render(
            data=_json(data),
            still=Markup(still(viewer)),  # noqa: S704 (it escapes)
            left_out=data["left_out"],
            patterns=patterns,
            flips=any(each.heads.attention == "self" for each in viewer.passages[0].attentions),
            least=f"{LEAST:.0%}",
        )
    )


def page(viewer: Viewer, title: str, lead: str = "", *, heading: bool = True) -> str:
    """One HTML file with nothing from outside: a heading, what is said below it, and the viewer."""
    styles = f"{_theme()}\n{style()}"
    return (
        _environment()
        .get_template("viewer_page.html.jinja")
        .render(
            title=title,
            heading=title if heading else "",
            lead=lead,
            viewer=fragment(viewer),
            style=Markup(styles),  # noqa: S704
            script=script(),
            policy=(
                f"default-src 'none'; script-src 'sha256-{_digest(script())}'; style-src 'sha256-{_digest(styles)}'; "
                "base-uri 'none'; form-action 'none'"
            ),
        )
    )


def frame(viewer: Viewer) -> str:
    """A frame for a notebook in which scripts run that can reach nothing around it."""
    inside = page(viewer, "Where does each token look?", heading=False)
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(inside)}" title="Where does each token look?" '
        f'width="100%" height="{_FRAME}" frameborder="0"></iframe>'
    )


def _json(data: object) -> Markup:
    """Data inside a script element, which no text in it can end."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))  # noqa: S704


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _theme() -> str:
    return (_ROOM / "theme.css").read_text("utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("analyses.viewer", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
