"""How does a viewer become HTML: among other blocks, as a page of its own, in a notebook's frame?"""

import json
from html import escape
from pathlib import Path

from analyses.execution.file_marks import check_free
from analyses.viewer.page_safety import environment, policy
from analyses.viewer.passages import Viewer
from analyses.viewer.static import static
from interp import InputError
from interp.training.whole_files import file_above, replacing

TITLE = "Where does each token look?"
_ROOM = Path(__file__).parent
_THEME = _ROOM.parent / "report" / "templates" / "style.css"  # of every page
_FRAME = 480, 30, 32, 14, 900  # pixels of a frame: to begin with, a layer, a line of so many tokens; and at most


def page(viewer: Viewer, title: str = TITLE, lead: str = "", *, heading: bool = True) -> str:
    """One HTML file with nothing from outside: a heading, what is said below it, and the viewer."""
    script = (_ROOM / "viewer.js").read_text("utf-8")
    style = "\n".join(path.read_text("utf-8") for path in (_THEME, _ROOM / "viewer.css"))
    template = environment({"analyses.viewer": "."}, FILTERS).get_template("viewer_page.html.jinja")
    about = {"title": title, "heading": title if heading else "", "lead": lead, "block": viewer}
    return template.render(**about, style=style, script=script, policy=policy([style], [script]))


def frame(viewer: Viewer) -> str:
    """A frame for a notebook in which scripts run that can reach nothing around it."""
    inside = page(viewer, TITLE, heading=False)
    base, layer, line, tokens, most = _FRAME
    shown = viewer.passages[0].attentions
    lines = max(len(each.queries) for each in shown) // tokens + 1
    height = min(most, base + layer * max(each.heads.n_layers for each in shown) + line * lines)
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(inside)}" title="{TITLE}" '
        f'width="100%" height="{height}" frameborder="0"></iframe>'
    )


def write(viewer: Viewer, out: str | Path, title: str = TITLE, lead: str = "", *, force: bool = False) -> None:
    """Write the page of a viewer, whole or not at all; it replaces an earlier page, or with `force` any other file.

    Raises:
        InputError: `out` is no file, or one that we did not write, or the system refuses.
    """
    path = Path(out)
    if file := file_above(path):
        raise InputError(f"{file} is a file: expected a directory above {path.name}; choose another --out")
    try:
        check_free(path, force=force)
        with replacing(path) as part:
            part.write_text(page(viewer, title, lead), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; choose another place") from error


def packed(viewer: Viewer) -> str:
    """A viewer's data inside a script element, which no text in it can end."""
    text = json.dumps(viewer.data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


FILTERS = {"static": static, "packed": packed}  # which the template of viewers needs
