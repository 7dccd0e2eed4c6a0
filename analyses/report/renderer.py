"""How do all pages come about? Templates, numbers as text, and figures as part of the page: nothing from outside."""

import base64
import math
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure


def render(template: str, **values: Any) -> str:
    """One HTML file; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("analyses.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template(template).render(**values)


def image(figure: Figure, svg: bytes, caption: str, alt: str | None = None) -> dict[str, str]:
    """A figure for a template: as a data address, so that nothing is fetched and no figure's ids meet another's.

    Args:
        figure: what is shown; its title is its `alt` text by default.
        svg: the same, written.
        caption: how to read it.
        alt: what one who cannot see it should know.
    """
    return {
        "source": "data:image/svg+xml;base64," + base64.b64encode(svg).decode(),
        "alt": alt or figure.get_suptitle().replace("\n", " "),
        "caption": caption,
    }


def number(value: Any, *, sign: bool = False) -> str:
    """Whole numbers with their thousands apart, others to three digits, what is undefined as a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}".replace(",", "\u202f").replace("-", "−")
    return f"{float(value):{'+' if sign else ''}.3f}".replace("-", "−")


def interval(low: Any, high: Any, *, sign: bool = False) -> str:
    """Two bounds as text; a dash where they are undefined."""
    bounds = [number(each, sign=sign) for each in (low, high)]
    return "–" if "–" in bounds else " to ".join(bounds)


def false_discovery_rate(q: float) -> str:
    """A q as text."""
    return "< 0.001" if q < 0.001 else number(q)
