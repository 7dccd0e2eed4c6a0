"""Questions: each module measures, figures draw, a report and a command line put them together."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyses.report.notebook import view

__all__ = ["view"]


def __getattr__(name: str) -> Any:
    """`view`, which is loaded when someone asks for it: to import a question is not to import what shows things."""
    if name != "view":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from analyses.report.notebook import view  # noqa: PLC0415

    return view
