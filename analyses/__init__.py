"""Questions: each module measures, figures draw, a report and a command line put them together."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyses.report.notebook import view

__all__ = ["view"]
_ROOMS = (
    "behaviours circuit compare coreference corpora experiments explanations figures labels measures over_training "
    "part_of_speech patch position probe report runs suites tasks viewer"
)


def __dir__() -> list[str]:
    """What a user may call, and the packages that are loaded."""
    return [*__all__, *(name for name in _ROOMS.split() if name in globals())]


def __getattr__(name: str) -> Any:
    """`view`, which is loaded when someone asks for it: to import a question is not to import what shows things."""
    if name != "view":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from analyses.report.notebook import view  # noqa: PLC0415

    return view
