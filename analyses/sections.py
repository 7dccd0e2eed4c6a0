"""What does a page say? Sections, tables and figures as values, which every room makes and `analyses.report` renders.

A text is a string, or strings and spans: `("Read ", bold("L1.H3"), " first")`. A string that is a block is a paragraph.
Nothing here is markup: the renderer escapes every string.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeGuard

import matplotlib.figure
import pandas as pd

from analyses.corpora import Corpus
from analyses.numerals import number
from analyses.viewer.passages import Viewer


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


def bold(text: object) -> Span:
    """What a reader's eye should find."""
    return Span(str(text), "b")


def emphasis(text: object) -> Span:
    """A word that names what follows."""
    return Span(str(text), "em")


def code(text: object) -> Span:
    """A command, a file or a hash."""
    return Span(str(text), "code")


def soft(text: object) -> Span:
    """What may be passed over."""
    return Span(str(text), "soft")


def link(text: object, to: str) -> Span:
    """Leads to what has the id `to` on the same page."""
    return Span(str(text), "link", to)


BREAK = Span("", "break")  # a new line in the same paragraph


def joined(parts: Sequence[Text], between: str = ", ") -> list[Piece]:
    """Several texts in one, with something between them."""
    found: list[Piece] = []
    for part in parts:
        found += [between] if found else []
        found += [part] if isinstance(part, Piece) else part
    return found


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


# Heads: what stands first on a page about one model.


@dataclass(frozen=True)
class Said:
    """What is said of one behaviour on the first screen; `behaviour` gives its colour, `rest` is what is folded."""

    title: str
    text: str
    behaviour: str
    rest: str = ""


@dataclass(frozen=True)
class Cell:
    """A head in the atlas.

    id      leads to its card
    stands  `needed`: filled, the model needs it; `looks`: outlined, attention alone; `quiet`: empty
    """

    id: str
    name: str
    stands: Literal["needed", "looks", "quiet"]
    behaviour: str = ""
    first: str = ""
    second: str = ""


@dataclass(frozen=True)
class Atlas:
    """The heads of one kind of attention, the last layer first; `dense` where there is no room for words."""

    title: str
    layers: Sequence[Sequence[Cell]]
    dense: bool


@dataclass(frozen=True)
class Bar:
    """A number with its interval, in words and as fractions of the way along a line, which has `ticks` with a name.

    `brief` is the number alone; what it is `over` is heard beside it, and seen in `text`.
    """

    text: str
    brief: str
    at: float
    low: float
    high: float
    ticks: Sequence[tuple[str, float]]
    over: str = ""


@dataclass(frozen=True)
class Known:
    """A fact on a card: in words, with its bars; `short` where it is not the first."""

    words: str
    short: str
    behaviour: str
    note: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Step:
    """One distance or pair of tags in a strip: its name, its number in words, and how high its bar stands, 0 to 1."""

    name: str
    text: str
    height: float


@dataclass(frozen=True)
class Example:
    """A sentence word by word: what asks, what it attends to with which share, and whether that is what is sought.

    A word is told with what it is: `asks`, `seen`, or `both` where it attends to itself. `right` is None where all are.
    """

    words: Sequence[tuple[str, str]]
    text: str
    right: bool | None = None


@dataclass(frozen=True)
class Examples:
    """Sentences, and in words what they are examples of."""

    title: str
    several: Sequence[Example]


@dataclass(frozen=True)
class Curve:
    """How a score went while the model was trained: in words, and as a line.

    text      when the head formed
    note      what is to be seen
    points    step and score, both as fractions of the way
    formed    the step by which it had formed, and `baseline` the score that is none, as such fractions
    """

    text: str
    note: str
    behaviour: str
    points: Sequence[tuple[float, float]]
    formed: float
    baseline: float | None


@dataclass(frozen=True)
class Card:
    """All that is known of one head.

    groups    facts under headings
    distance  attention by distance, the first position apart as `sink`
    tags      attention between tags, beside what distance explains
    examples  sentences in which it is surest, and at random
    alike     the ids of heads of which the same is told first
    tasks     its share in each causal task
    rest      everything else that was measured
    rows      its rows, to copy
    formed    when it formed, where the run that trained the model is known
    """

    id: str
    name: str
    groups: Sequence[tuple[str, Sequence[Known]]]
    distance: Sequence[Step]
    sink: Step | None
    tags: Sequence[Step]
    examples: Sequence[Examples]
    alike: Sequence[str]
    tasks: "Table | None"
    rest: "Table"
    rows: str
    formed: Curve | None = None


@dataclass(frozen=True)
class Overview:
    """What stands first on a page about one model: a sentence for each behaviour, the atlas of heads, and their cards.

    `cards` begin with the head that is shown first. `below` stands under the atlas: a passage to read.
    """

    said: Sequence[Said]
    atlases: Sequence[Atlas]
    cards: Sequence[Card]
    below: "Sequence[Block]" = ()

    @property
    def ids(self) -> list[str]:
        """Of the heads that have a card."""
        return [card.id for card in self.cards]


def is_text(block: "Block") -> TypeGuard[Text]:
    """Whether a block is a text, which stands alone as a paragraph."""
    return isinstance(block, Piece | list | tuple)


Block: TypeAlias = Text | Paragraph | Bullets | Definitions | Table | Figure | Details | Section | Overview | Viewer


@dataclass(frozen=True)
class Part:
    """What one analysis adds to a directory and its page.

    Args:
        sections: its own, in order.
        short: its lines in the summary.
        counted: what it read and left out.
        definitions: its terms.
        tables: by name, `tables/NAME.csv` and `.parquet`.
        facts: for `run.json`.
    """

    sections: Sequence[Section] = ()
    short: Terms = ()
    counted: Sequence[Block] = ()
    definitions: Terms = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


UNUSED = "not used: it annotates nothing that is asked here, or an earlier corpus has it too"


@dataclass(frozen=True)
class Source:
    """A corpus that was given or read: what for, in words, and what else run.json says of it."""

    corpus: Corpus
    used: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """What a command found: everything that its directory holds but for what `analyses.report` records of every run.

    Args:
        title: a question.
        summary: what stands under "In short".
        sections: in order; how it was made comes after them.
        lead: under the title, after what the models are.
        overview: under the title, before what the models are.
        corpora: what was read, and what was given and not read.
        models: by name, what else run.json says of a model.
        made: lines of how it was made, between those of the corpora and of the seed.
        definitions: terms, below how it was made.
        tables: by name, `tables/NAME.csv` and `.parquet`; figures are those in the sections.
        facts: for `run.json`.
        unfinished: what is still being measured, of a page that is shown before the whole one.
    """

    title: str
    summary: Sequence[Block]
    sections: Sequence[Section]
    lead: Sequence[Block] = ()
    overview: Sequence[Block] = ()
    corpora: Sequence[Source] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    made: Terms = ()
    definitions: Terms = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    unfinished: str = ""


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
