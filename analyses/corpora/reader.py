"""How is a file read? A format recognises its files and makes texts from their lines, within limits.

Files beyond a limit are refused before they cost memory and hours. Formats without annotation are here too: a text per
paragraph or per line, or source and target in two columns under a header. Their words are separated by spaces. Plain
text cannot be recognised, so the user must name its kind.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from interp.annotation import AnnotatedText
from interp.bounded_files import lines, unpacked_name
from interp.errors import InputError
from models.pair_tasks import columns
from models.pair_tasks import pairs as pairs_of

MOST_WORDS = 1_000_000  # per text; the longest novels have 600,000
MOST_ROWS = 20_000  # per sentence
LONGEST_WORD = 10_000  # characters
_T = TypeVar("_T")


class Lines(Iterator[str]):
    """The lines of a file, read as needed, and the current line number, for errors."""

    def __init__(self, lines: Iterable[str], source: str):
        self._lines = enumerate(lines, start=1)
        self.source = source  # the file's name, for documents without a name
        self.number = 0  # the last line read, or an earlier faulty one; 0: the whole file

    def __next__(self) -> str:
        last, self.number = self.number, 0
        try:
            self.number, line = next(self._lines)
        except StopIteration:
            self.number = last
            raise
        return line

    def last(self, rows: Sequence[_T]) -> Iterator[_T]:
        """The rows of the last lines; sets `number` to each row's line."""
        for self.number, row in enumerate(rows, start=self.number - len(rows) + 1):  # noqa: B020
            yield row


@dataclass(frozen=True)
class Format:
    """A file format: the names of its files, how to recognise it, and how to parse it.

    If `recognises` is None, the user must name the kind: `text:PATH`.
    """

    kind: str  # the prefix that forces the format: `gum:PATH`
    title: str
    names: str  # a pattern for files in a directory, which may also end in .gz or .zst
    recognises: Callable[[str], bool] | None  # gets the first line after comments, or a comment before it
    parse: Callable[[Lines], Iterator[AnnotatedText]]
    whole_files: bool = False  # whether each file is one document
    records: Callable[[Path], Iterable[Any]] = lines  # the parser's input
    unit: str = "line"  # what a record is called

    def matches(self, file: Path) -> bool:
        """Whether a file is named like this format."""
        return fnmatch(unpacked_name(file), self.names)

    def texts(self, records: Iterable[Any], source: str) -> Iterator[AnnotatedText]:
        """The texts of a file called `source`; an `InputError` names the file and the line at fault."""
        counted = Lines(records, source)
        try:
            for text in self.parse(counted):
                title, longest = f"the text {text.document!r}", max(map(len, text.words), default=0)
                check_words(len(text.words), title)
                if longest > LONGEST_WORD:
                    raise InputError(f"{title} has a word of {longest:,} characters, at most {LONGEST_WORD:,}")
                yield text
        except InputError as error:
            if not counted.number or str(error).startswith(f"{source}, {self.unit} "):  # it already names the file
                raise
            raise InputError(f"{source}, {self.unit} {counted.number}: {error}") from error


def begins(start: str) -> Callable[[str], bool]:
    """A test whether a line begins with `start`."""
    return lambda line: line.startswith(start)


def has_columns(names: tuple[str, ...]) -> Callable[[str], bool]:
    """A test whether a line is a header with these columns."""
    return lambda line: tuple(columns(line)) == names


def check_words(n_words: int, document: str) -> None:
    """Refuse a text of more than `MOST_WORDS` words."""
    if n_words > MOST_WORDS:
        raise InputError(f"{document} has more than {MOST_WORDS:,} words, the limit for one text: split it")


def paragraphs(lines: Lines) -> Iterator[AnnotatedText]:
    """One text per stretch of nonempty lines; its document is the file and the text's number."""
    stretches = (stretch for filled, stretch in groupby(lines, key=lambda line: bool(line.strip())) if filled)
    for number, stretch in enumerate(stretches, start=1):
        yield AnnotatedText.plain(" ".join(stretch), f"{lines.source}:{number}")


def one_a_line(lines: Lines) -> Iterator[AnnotatedText]:
    """One text per nonempty line; its document is the file and the line number."""
    return (AnnotatedText.plain(line, f"{lines.source}:{lines.number}") for line in lines if line.strip())


def paired(lines: Lines) -> Iterator[AnnotatedText]:
    """One text per line after the first, with its target."""
    for number, source, target in pairs_of(lines, lines.source):
        yield AnnotatedText.plain(source, f"{lines.source}:{number}", target)


def has_two_columns(line: str) -> bool:
    """Whether a line has two nonempty columns."""
    return len(columns(line)) == 2 and all(columns(line))
