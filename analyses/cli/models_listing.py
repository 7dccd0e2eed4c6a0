"""What `interp models` prints: families with their parts, and the models on this machine with their sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models import catalogue as listing

_UNITS = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}


@dataclass(frozen=True)
class Listing:
    """What can be loaded: families with their parts, and the models on this machine."""

    families: Mapping[str, listing.Parts | None]
    shipped: Sequence[listing.Found]
    cached: Sequence[listing.Found]


def found() -> Listing:
    """What is on this machine now."""
    return Listing(listing.families(), [*listing.shipped()], [*listing.look(listing.cached())])


def lines(found: Listing) -> Iterator[str]:
    """The page, line by line."""
    yield "Families (a directory in Hugging Face's format, or a name on its hub; parts by default):"
    yield from _table(
        ["family", "stacks", "attention", "positions", "norms", "feed-forward"],
        [_family(name, parts) for name, parts in found.families.items()],
    )
    yield ""
    yield "Shipped:"
    yield from _models(found.shipped)
    yield ""
    yield (
        "In the hub's cache:"
        if found.cached
        else "In the hub's cache: nothing; --model ORG/NAME downloads a model once"
    )
    yield from _models(found.cached)
    yield ""
    yield "Other architectures: --model lens:DIRECTORY_OR_NAME, what TransformerLens wraps"


def _family(name: str, parts: listing.Parts | None) -> list[str]:
    if parts is None:
        return [name, "any", "our own format, for models that no family can express", "", "", ""]
    return [name, parts.stacks, parts.attention, parts.positions, parts.wiring, parts.feed_forward]


def _models(found: Sequence[listing.Found]) -> Iterator[str]:
    loadable = [each for each in found if each.parts]
    if loadable:
        yield from _table(
            ["model", "family", "parameters", "on disk", "layers and heads", "stacks", "attention", "positions"],
            [_model(each, each.parts) for each in loadable if each.parts],
        )
    for each in found:
        if each.parts is None:
            size = f" ({_size(each.n_bytes)}B on disk)" if each.n_bytes else ""
            yield f"  {each.name}{size} cannot be loaded: {each.about}"


def _model(found: listing.Found, parts: listing.Parts) -> list[str]:
    sizes = [_size(found.n_parameters), f"{_size(found.n_bytes)}B", found.about]
    return [found.name, found.family, *sizes, parts.stacks, parts.attention, parts.positions]


def _size(number: int) -> str:
    for unit, name in _UNITS.items():
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:g} "


def _table(head: list[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, ["-" * width for width in widths], *rows):
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
