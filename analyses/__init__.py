"""Questions about heads: each module measures, figures draw, a report and a command line combine them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyses.report.notebook import view

__all__ = ["view"]
_ROOMS = (
    "behaviours circuit compare coreference corpora experiments explanations figures labels measures over_training "
    "part_of_speech patch position probe report runs suites tasks viewer"
)


def __dir__() -> list[str]:
    """The public names, and the packages that are loaded."""
    return [*__all__, *(name for name in _ROOMS.split() if name in globals())]


def __getattr__(name: str) -> Any:
    """Load `view` on first use, so that importing a question does not import what displays it."""
    if name != "view":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from analyses.report.notebook import view  # noqa: PLC0415

    return view
