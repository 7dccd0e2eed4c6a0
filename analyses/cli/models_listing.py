"""What `interp models` prints: families with their parts, and the models on this machine with their sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from analyses.cli.options import COLUMNS
from models import catalogue

_NAME = 12  # letters of a name that stands beside what is said of it; longer ones have a line of their own
_APART = " · "
_UNITS = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}


@dataclass(frozen=True)
class Listing:
    """What can be loaded: families with their parts, and the models on this machine."""

    families: Mapping[str, catalogue.Parts | None]
    shipped: Sequence[catalogue.LocalModel]
    cached: Sequence[catalogue.LocalModel]


def listed() -> Listing:
    """What is on this machine now."""
    return Listing(catalogue.families(), [*catalogue.shipped()], [*catalogue.local_models(catalogue.cached())])


def lines(listing: Listing) -> Iterator[str]:
    """The page, line by line."""
    yield "Families (a directory in Hugging Face's format, or a name on its hub):"
    yield from _entry("family", ["stacks", "attention"], ["positions", "norms", "feed-forward"])
    yield from _entry("-" * _NAME, ["-" * (COLUMNS - _NAME - 4)])
    for name, parts in listing.families.items():
        if parts is None:
            yield from _entry(name, ["any: our own format, for models that no family can express"])
        else:
            yield from _entry(
                name, [parts.stacks, parts.attention], [parts.positions, parts.wiring, parts.feed_forward]
            )
    yield ""
    yield "Shipped:"
    yield from _models(listing.shipped)
    yield ""
    nothing = "" if listing.cached else " nothing; --model ORG/NAME downloads a model once"
    yield f"In the hub's cache:{nothing}"
    yield from _models(listing.cached)
    yield ""
    yield "Other architectures: --model lens:DIRECTORY_OR_NAME, what TransformerLens wraps"


def _models(models: Sequence[catalogue.LocalModel]) -> Iterator[str]:
    for each in models:
        size = f"{_size(each.n_bytes)}B on disk"
        if each.parts is None:
            said = f"{each.name}{f' ({size})' if each.n_bytes else ''} cannot be loaded: {each.about}"
            yield fill(said, COLUMNS, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        else:
            yield from _entry(
                each.name,
                [each.family, f"{_size(each.n_parameters)} parameters", size],
                [each.about, each.parts.stacks, each.parts.attention, each.parts.positions],
            )


def _size(number: int) -> str:
    for unit, name in _UNITS.items():
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:g} "


def _entry(name: str, *lines: Sequence[str]) -> Iterator[str]:
    """A name, and beside it lines of what is said of it, none longer than a terminal has columns."""
    beside = f"  {name:<{_NAME}}  "
    if len(name) > _NAME:
        yield f"  {name}"
        beside = " " * (_NAME + 4)
    for line in lines:
        yield fill(_APART.join(line), COLUMNS, initial_indent=beside, subsequent_indent=" " * (_NAME + 4))
        beside = " " * (_NAME + 4)
