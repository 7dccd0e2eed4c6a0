"""What does a page say? Sections, tables and figures as values, which every room makes and `analyses.report` renders.

A text is a string, or strings and spans: `("Read ", bold("L1.H3"), " first")`. A string that is a block is a paragraph.
Nothing here is markup: the renderer escapes every string.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import matplotlib.figure
import pandas as pd

from analyses.corpora import Corpus
from analyses.viewer.passages import Viewer
from analyses.wording.formats import number


@dataclass(frozen=True)
class Span:
    """Words that look otherwise than those around them; `to` is the id that a link leads to."""

    text: str
    kind: Literal["b", "em", "code", "soft", "link", "break"]
    to: str = ""


@dataclass(frozen=True)
class Tokens:
    """A prompt token by token, each with whether it is marked."""

    tokens: Sequence[tuple[str, bool]]


Piece: TypeAlias = str | Span | Tokens
Text: TypeAlias = Piece | Sequence[Piece]
Terms: TypeAlias = Sequence[tuple["Block", ...]]
"""Terms as texts, each with what is said of it: one text or block, or several."""


def _as(kind: Literal["b", "em", "code", "soft"]) -> Callable[[object], Span]:
    return lambda text: Span(str(text), kind)


bold = _as("b")
"""What a reader's eye should find."""
emphasis = _as("em")
"""A word that names what follows."""
code = _as("code")
"""A command, a file or a hash."""
soft = _as("soft")
"""What may be passed over."""


def link(text: object, to: str) -> Span:
    """Leads to what has the id `to` on the same page."""
    return Span(str(text), "link", to)


BREAK = Span("", "break")  # a new line in the same paragraph


def joined(parts: Sequence[Text], between: str = ", ") -> list[Piece]:
    """Several texts in one, with something between them."""
    pieces: list[Piece] = []
    for part in parts:
        pieces += [between] if pieces else []
        pieces += [part] if isinstance(part, Piece) else part
    return pieces


def plain(text: Text) -> str:
    """A text's words alone, as a terminal or a record has them."""
    match text:
        case str():
            return text
        case Span():
            return " " if text.kind == "break" else text.text
        case Tokens():
            return "".join(token for token, _ in text.tokens)
    return "".join(map(plain, text))


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a kind of its own: a soft remark, or a caveat that makes numbers less than they look."""

    text: Text
    kind: Literal["soft", "caveat"]


def remark(*text: Piece) -> Paragraph:
    """A paragraph in a softer colour."""
    return Paragraph(text, "soft")


def caveat(*text: Piece) -> Paragraph:
    """A paragraph that stands out."""
    return Paragraph(text, "caveat")


@dataclass(frozen=True)
class Bullets:
    """A list, a text an item."""

    items: Sequence[Text]


@dataclass(frozen=True)
class Definitions:
    """Terms, and what is said of each; `kind` facts sets them in two columns, terms are what measures lead to."""

    terms: Terms
    kind: Literal["plain", "facts", "terms"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table of texts.

    `align` has a letter a column: `l`, `r` (numbers) or `w` (may be wrapped); all are `l` by default. A row that is a
    string is a heading over the rows below it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Text] | str]
    align: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure, written as `figures/NAME.svg` and `.png`. `alt` says what is to be seen, to one who cannot see it."""

    name: str
    figure: matplotlib.figure.Figure
    caption: str
    alt: str

    @property
    def title(self) -> str:
        """What the figure itself says above its panels."""
        return self.figure.get_suptitle().replace("\n", " ")


@dataclass(frozen=True)
class Details:
    """Blocks that open when their title is clicked on."""

    title: str
    blocks: "Sequence[Block]"
    open: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; a section among the blocks of another has a smaller heading.

    `id` is where links lead.
    """

    title: str
    blocks: "Sequence[Block]"
    id: str = ""


@runtime_checkable
class Shown(Protocol):
    """A block of another kind, which brings a template of its name; `ids` of heads on it are what links lead to."""

    @property
    def ids(self) -> Sequence[str]:
        """Of heads."""
        ...


def is_text(block: "Block") -> TypeGuard[Text]:
    """Whether a block is a text, which stands alone as a paragraph."""
    return isinstance(block, Piece | list | tuple)


Block: TypeAlias = Text | Paragraph | Bullets | Definitions | Table | Figure | Details | Section | Viewer | Shown


@dataclass(frozen=True)
class Part:
    """What one analysis adds to a directory and its page."""

    sections: Sequence[Section] = ()  # in order
    short: Terms = ()  # lines in the summary
    counted: Sequence[Block] = ()  # what it read and left out
    definitions: Terms = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by name, `tables/NAME.csv` and `.parquet`
    facts: Mapping[str, Any] = field(default_factory=dict)  # for `run.json`


UNUSED = "not used: it annotates nothing that is asked here, or an earlier corpus has it too"


@dataclass(frozen=True)
class Source:
    """A corpus that was given or read: what for, in words, and what else run.json says of it."""

    corpus: Corpus
    used: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """What a command found: everything that its directory holds but for what `analyses.report` records of every run."""

    title: str  # a question
    summary: Sequence[Block]  # under "In short"
    sections: Sequence[Section]  # in order; how it was made comes after them
    lead: Sequence[Block] = ()  # under the title, after what the models are
    overview: Sequence[Block] = ()  # under the title, before what the models are
    corpora: Sequence[Source] = ()  # what was read, and what was given and not read
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name, what else run.json says of one
    made: Terms = ()  # lines of how it was made, between those of the corpora and of the seed
    definitions: Terms = ()  # below how it was made
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # figures are those in the sections
    facts: Mapping[str, Any] = field(default_factory=dict)  # for `run.json`
    unfinished: str = ""  # what is still being measured, of a page that is shown before the whole one


def counts_table(
    counts: Sequence[Mapping[str, int]], titles: Sequence[str], always: Collection[str] = ()
) -> list[Table]:
    """What was read and left out: a row a count, a column a reading; what is nothing everywhere is not shown.

    Args:
        counts: of each reading, by what was counted.
        titles: of the readings.
        always: what is shown though it be nothing.

    Returns:
        A table, or none where there is nothing to show.
    """
    whats = dict.fromkeys(what for each in counts for what in each)
    rows = [(what, [each.get(what) for each in counts]) for what in whats]
    shown = [[what, *map(number, values)] for what, values in rows if any(values) or what in always]
    return [Table(["", *titles], shown, "w" + "r" * len(titles))] if shown else []
