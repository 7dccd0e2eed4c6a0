"""What does a page say? Sections, tables and figures as values, which every room makes and `analyses.report` renders.

A text is a string, or strings and spans: `("Read ", bold("L1.H3"), " first")`. A string that is a block is a paragraph.
Nothing here is markup: the renderer escapes every string. `words.toml` declares the columns of our tables, each with
its title, format and meaning; pages, cards and terminals take them from `SCHEMAS`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

import matplotlib.figure
import pandas as pd

from analyses.corpora import Corpus
from analyses.figures import measure_name
from analyses.scoring.rules import ANTECEDENT, NO_RULE, RELATION
from analyses.viewer.passages import Viewer
from analyses.wording.formats import false_discovery_rate, interval, number, percent, whole
from analyses.wording.head_names import head_name
from analyses.wording.plain_words import WORDS, carried
from interp import InputError

Cells = Mapping[str, Any]
_LONGEST = 28  # letters of a text on a terminal
UNUSED = "not used: it annotates nothing that is needed here, or an earlier corpus does too"


@dataclass(frozen=True)
class Span:
    """Words that look different from those around them; `to` is the id or the page that a link leads to."""

    text: str
    kind: Literal["b", "em", "code", "soft", "link", "page"]
    to: str = ""


@dataclass(frozen=True)
class Tokens:
    """A prompt as tokens, some of them marked."""

    tokens: Sequence[tuple[str, bool]]


Piece: TypeAlias = str | Span | Tokens
Text: TypeAlias = Piece | Sequence[Piece]
Terms: TypeAlias = Sequence[tuple["Block", ...]]
"""Terms, each with texts or blocks about it."""


def _span(kind: Literal["b", "em", "code", "soft"]) -> Callable[[object], Span]:
    return lambda text: Span(str(text), kind)


bold = _span("b")  # what readers should see first
emphasis = _span("em")  # a word that names what follows
code = _span("code")  # a command, a file or a hash
soft = _span("soft")  # what readers may skip


def link(text: object, to: str) -> Span:
    """A link to the element with the id `to` on the same page."""
    return Span(str(text), "link", to)


def page_link(path: str) -> Span:
    """A link to a page below this page's directory.

    Raises:
        InputError: it is no path of a page there.
    """
    parts = PurePosixPath(path).parts
    if not path.endswith(".html") or ".." in parts or path.startswith("/") or ":" in path or "\\" in path:
        raise InputError(f"expected a page below the report's own directory, as default/report.html; got {path!r}")
    return Span(path, "page", path)


def joined(parts: Sequence[Text], separator: str = ", ") -> list[Piece]:
    """Join several texts with a separator."""
    pieces: list[Piece] = []
    for part in parts:
        pieces += [separator] if pieces else []
        pieces += [part] if isinstance(part, Piece) else part
    return pieces


def plain(text: Text) -> str:
    """A text's words alone, for a terminal or a record."""
    match text:
        case str():
            return text
        case Span():
            return text.text
        case Tokens():
            return "".join(token for token, _ in text.tokens)
    return "".join(map(plain, text))


@dataclass(frozen=True)
class Paragraph:
    """A soft remark, or a caveat that limits what numbers mean."""

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
    """A list with one text per item."""

    items: Sequence[Text]


@dataclass(frozen=True)
class Definitions:
    """Terms and their meanings; the `kind` "facts" is set in two columns, and measures on the page link to "terms"."""

    terms: Terms
    kind: Literal["plain", "facts", "terms"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table of texts.

    `align` has a letter per column: `l`, `r` (numbers) or `w` (may wrap); the default is `l` throughout. A row that is
    a string is a heading over the rows below it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Text] | str]
    align: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure, saved as `figures/NAME.svg` and `.png`. `alt` describes it to a reader who cannot see it."""

    name: str
    figure: matplotlib.figure.Figure
    caption: str
    alt: str

    @property
    def title(self) -> str:
        """The figure's own title, above its panels."""
        return self.figure.get_suptitle().replace("\n", " ")


def drawing(name: str, figure: matplotlib.figure.Figure) -> Figure:
    """A figure with its own caption and description (`analyses.figures.style.Drawn`)."""
    return Figure(name, figure, getattr(figure, "caption", ""), getattr(figure, "alt", ""))


@dataclass(frozen=True)
class Bars:
    """A model's answers: per row a label, then each answer with its probability and whether it is right."""

    rows: Sequence[tuple[Text, Sequence[tuple[str, float, bool]]]]


@dataclass(frozen=True)
class Details:
    """Blocks that open when their title is clicked; on paper they appear if `printed`."""

    title: str
    blocks: "Sequence[Block]"
    open: bool = False
    printed: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and its blocks; links lead to its `id`. A nested section has a smaller heading."""

    title: str
    blocks: "Sequence[Block]"
    id: str = ""


@runtime_checkable
class Templated(Protocol):
    """A block that brings its own template, named after its class; links lead to its `ids` of heads."""

    @property
    def ids(self) -> Sequence[str]: ...  # noqa: D102


def is_text(block: "Block") -> TypeGuard[Text]:
    """Whether a block is a text, which stands alone as a paragraph."""
    return isinstance(block, Piece | list | tuple)


Block: TypeAlias = (
    Text | Paragraph | Bullets | Definitions | Table | Figure | Bars | Details | Section | Viewer | Templated
)


@dataclass(frozen=True)
class Part:
    """What one analysis adds to a directory and its page."""

    sections: Sequence[Section] = ()  # in order
    short: Terms = ()  # lines in the summary
    counted: Sequence[Block] = ()  # what it read and left out
    definitions: Terms = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by name, `tables/NAME.csv` and `.parquet`
    facts: Mapping[str, Any] = field(default_factory=dict)  # for `run.json`


@dataclass(frozen=True)
class Source:
    """A corpus of the user's, or one that was read; its purpose in words, and further facts for run.json."""

    corpus: Corpus
    purpose: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """A command's results: its whole directory, except for what `analyses.report` records of every run."""

    title: str  # a question
    summary: Sequence[Block]  # under "In short"
    sections: Sequence[Section]  # in order; "How this was made" follows them
    lead: Sequence[Block] = ()  # below the title and the description of the models
    overview: Sequence[Block] = ()  # under the title, before the description of the models
    corpora: Sequence[Source] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name, further facts for run.json
    method: Terms = ()  # lines of "How this was made", between corpora and seed
    definitions: Terms = ()  # below "How this was made"
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # figures are in the sections
    facts: Mapping[str, Any] = field(default_factory=dict)  # for `run.json`
    unfinished: str = ""  # what is still being measured, if the page is shown early


def counts_table(
    counts: Sequence[Mapping[str, int]], titles: Sequence[str], always: Collection[str] = ()
) -> list[Table]:
    """What was read and left out, one row per count, one column per reading; no table if there is nothing to show."""
    names = dict.fromkeys(name for each in counts for name in each)
    rows = [(name, [each.get(name) for each in counts]) for name in names]
    cells = [[name, *map(number, values)] for name, values in rows if any(values) or name in always]
    return [Table(["", *titles], cells, "w" + "r" * len(titles))] if cells else []


def _estimate(value: float, low: float, high: float) -> Text:
    bounds = interval(low, high, sign=True)
    return [number(value, sign=True), *([" ", soft(bounds)] if bounds != "–" else [])]


def _verdict(verdict: Any, rule: Any) -> str:
    follows = isinstance(rule, str) and rule not in {NO_RULE, RELATION, ANTECEDENT}
    return f"{verdict}{f'; follows “{measure_name(rule)}”' * follows}" if isinstance(verdict, str) else ""


_signed = partial(number, sign=True)
FORMATS: dict[str, tuple[str, Callable[..., Text]]] = {
    "head": ("l", lambda layer, head, name: bold(name or head_name(int(layer), int(head)))),
    "bold": ("l", bold),
    "name": ("l", lambda name: measure_name(str(name))),
    "long name": ("w", lambda name: measure_name(str(name))),
    "text": ("l", str),
    "wrapped": ("w", str),
    "number": ("r", number),
    "signed": ("r", _signed),
    "whole": ("r", whole),
    "share": ("r", percent),
    "shares": ("r", lambda low, high: f"{percent(low)} to {percent(high)}".replace("– to –", "–")),
    "answers": ("r", lambda flips, n: f"{whole(flips)} of {whole(n)} answers" if whole(flips) != "–" else "–"),
    "steps": ("r", lambda first, last: "–" if first is None else f"{whole(first)} to {whole(last)}"),
    "rate": ("r", false_discovery_rate),
    "between": ("r", partial(interval, sign=True)),
    "bounds": ("r", interval),
    "estimate": ("l", _estimate),
    "effect of": ("l", lambda effect, head: [f"{_signed(effect)} (", bold(head), ")"]),
    "answer": ("l", lambda answer, task: carried(answer or task)),
    "task": ("l", lambda answer, task: answer or task),
    "way": ("r", lambda way: {"noise": "removed", "denoise": "restored"}.get(str(way), str(way))),
    "rule": ("w", lambda name, value: measure_name(name) + (f" {number(value)}" if name != "no rule" else "")),
    "two shares": ("w", lambda head, rule, n: f"{number(head)} / {number(rule)} (n {whole(n)})"),
    "difference": ("w", lambda rule, value, n: f"{measure_name(str(rule))} {_signed(value)} (n {whole(n)})"),
    "verdict": ("w", _verdict),
}
"""How cells are written, and how they are aligned: `l`eft, `r`ight, or `w`rapped if needed."""


class Column(NamedTuple):
    """A column on a page: its title, the cell format (in `FORMATS`) and its source columns, and its meaning."""

    title: str
    format: str
    cells: Sequence[str]
    meaning: str = ""

    def show(self, row: Cells) -> Text:
        """The cell of a row."""
        return FORMATS[self.format][1](*(row.get(name) for name in self.cells))


class Schema(NamedTuple):
    """A table: the columns that identify a row, and the columns that can be shown, by name."""

    key: Sequence[str]
    columns: Mapping[str, Column]

    def page(self, rows: Sequence[Cells], names: str, caption: str = "") -> Table:
        """Rows as a page's table, with the columns in `names` (separated by spaces)."""
        columns = [self.columns[name] for name in names.split()]
        cells = [[column.show(row) for column in columns] for row in rows]
        align = "".join(FORMATS[column.format][0] for column in columns)
        return Table([column.title for column in columns], cells, align, caption)

    def terminal(self, rows: Sequence[Cells], names: str, extra: Sequence[str] = ()) -> Iterator[str]:
        """Rows as lines of text, with the columns in `names` and `extra` ones that tell the rows apart."""
        columns = [*(self.columns[name] for name in names.split()), *(Column(name, "text", [name]) for name in extra)]
        cells = [[column.title for column in columns]]
        cells += [[_shortened(plain(column.show(row))) for column in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for first, *rest in cells:
            numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
            yield f"  {first:<{widths[0]}}{numbers}"


def _shortened(text: str) -> str:
    half = (_LONGEST - 1) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def _schema(key: Sequence[str], **columns: Mapping[str, Any]) -> Schema:
    declared = {**WORDS["columns"], **columns}
    fields = {
        name: Column(each.get("title", name), each["format"], each.get("from", [name]), each.get("meaning", ""))
        for name, each in declared.items()
    }
    return Schema(key, fields)


WAYS = "noise noise_low noise_flips denoise denoise_low denoise_flips"  # columns of `both ways`
SCHEMAS = {name: _schema(**declared) for name, declared in WORDS["tables"].items()}
"""The columns of each table."""
