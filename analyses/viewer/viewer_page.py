"""How does a viewer become HTML: among other blocks, as a page of its own, in a notebook's frame?"""

import base64
import hashlib
import json
from functools import cache
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from analyses.viewer.passages import LEAST, Viewer
from analyses.viewer.still import still
from interp import InputError
from interp.training.whole_files import replacing

TITLE = "Where does each token look?"
_ROOM = Path(__file__).parent
_FRAME = 460  # pixels high, in a notebook


@cache
def script() -> str:
    """What a page with viewers runs, once."""
    return (_ROOM / "view.js").read_text("utf-8")


@cache
def style() -> str:
    """How viewers look; colours and type are the page's."""
    return (_ROOM / "viewer.css").read_text("utf-8")


def fragment(viewer: Viewer) -> str:
    """One viewer as a block of a page that has `style` and `script`."""
    data = viewer.data
    patterns = sum(len([*each.names()]) for passage in viewer.passages for each in passage.attentions)
    return (
        _environment()
        .get_template("viewer.html.jinja")
        .render(
            data=_json(data),
            still=still(viewer),
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
            style=styles,
            script=script(),
            policy=(
                f"default-src 'none'; script-src 'sha256-{_digest(script())}'; style-src 'sha256-{_digest(styles)}'; "
                "base-uri 'none'; form-action 'none'"
            ),
        )
    )


def frame(viewer: Viewer) -> str:
    """A frame for a notebook in which scripts run that can reach nothing around it."""
    inside = page(viewer, TITLE, heading=False)
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(inside)}" title="{TITLE}" '
        f'width="100%" height="{_FRAME}" frameborder="0"></iframe>'
    )


def write(viewer: Viewer, out: str | Path, title: str = TITLE, lead: str = "") -> None:
    """Write the page of a viewer, whole or not at all.

    Raises:
        InputError: `out` is a directory, or the system refuses.
    """
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path} is a directory: expected the name of a file, such as {path / 'view.html'}")
    try:
        with replacing(path) as part:
            part.write_text(page(viewer, title, lead), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def _json(data: object) -> str:
    """Data inside a script element, which no text in it can end."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


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
