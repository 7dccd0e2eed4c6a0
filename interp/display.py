"""How results show themselves: in a few lines, a table, or a figure, drawn by modules that are loaded on demand."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from math import isnan
from typing import TYPE_CHECKING, Any

from interp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
else:  # neither is loaded until it is needed
    DataFrame = Figure = Any

FIGURES = "analyses.figures"
VIEWER = "analyses.report.notebook"
_LONGEST = 200  # characters of a displayed fact

__all__ = ["FIGURES", "VIEWER", "DataFrame", "Figure", "Result", "draw_figure", "listed", "signed", "so_many", "viewed"]


class Result:
    """A result that shows itself in a few lines: a title, and at most `n_facts` facts by name."""

    n_facts = 12

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """A title and facts by name; cheap, whatever the result's size."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, facts = _short(*self.facts(), self.n_facts)
        width = max(map(len, facts), default=0)
        return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = _short(*self.facts(), self.n_facts)
        style = 'style="text-align:left;vertical-align:top"'
        cells = ((escape(name), escape(text)) for name, text in facts.items())
        rows = [f"<tr><th {style}>{name}</th><td {style}>{text}</td></tr>" for name, text in cells]
        return f"<div><strong>{escape(title)}</strong><table>{''.join(rows)}</table></div>"


def _short(title: str, facts: Mapping[str, str], limit: int) -> tuple[str, dict[str, str]]:
    """Facts as one short line each, and no more than the limit."""
    lines = {_line(name): _line(text) for name, text in [*facts.items()][:limit]}
    return _line(title), lines | ({"…": f"{len(facts) - limit} more"} if len(facts) > limit else {})


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def so_many(count: int, noun: str) -> str:
    """`1 prompt`, `1,200 prompts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], limit: int = 6) -> str:
    """The first names, and the number of the others."""
    n_more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {n_more} more" if n_more > 0 else "")


def signed(value: float) -> str:
    """`+1.25`, `-0.003`; a dash if undefined."""
    return "–" if isnan(value) else f"{value:+.3g}"


def draw_figure(figure: str, *args: Any, heading: str | None = None, **options: Any) -> Figure:
    """The figure of that name; `heading` is its title unless the options say otherwise."""
    title = {} if heading is None or options.get("ax") is not None else {"title": heading}
    return getattr(import_module(FIGURES), figure)(*args, **{**title, **options})


def viewed(result: Any) -> str:
    """A notebook's view of a result, as HTML; "" if there is none."""
    try:
        return import_module(VIEWER).view(result).html
    except InputError:
        return ""
