"""GAP: passages of Wikipedia, each with a pronoun and two names: which of them does the pronoun stand for?

One row is one text with three mentions. A name that the pronoun stands for is in the chain "pronoun", the other in a
chain of its own ("A" or "B"). So a pronoun that stands for neither name is alone in its chain, and a name that comes
after the pronoun is a mention that starts after it: neither leaves the pronoun both a right and a wrong candidate
before it, and `antecedent_items` passes over both.

A document is a page of Wikipedia, since passages of one page are not independent of each other.
"""

from collections.abc import Iterable, Iterator, Sequence

from analyses.corpora.marked import Mark, annotated
from analyses.corpora.numbered_lines import numbered
from interp.annotation import AnnotatedText
from interp.errors import InputError
from models.columns import columns

_COLUMNS = (
    *("ID", "Text", "Pronoun", "Pronoun-offset"),
    *("A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"),
)
_FLAGS = {"TRUE": True, "FALSE": False}


def recognises(line: str) -> bool:
    """Whether the first line of a file says that it is in this format."""
    return tuple(columns(line)) == _COLUMNS


@numbered
def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each row."""
    for at, line in enumerate(lines):
        if at == 0 and not recognises(line):
            raise InputError(f'expected the columns {", ".join(_COLUMNS)} between tabs, got "{line[:60].strip()}"')
        if at > 0 and line.strip():
            yield _text(columns(line))


def _text(values: Sequence[str]) -> AnnotatedText:
    if len(values) != len(_COLUMNS):
        raise InputError(f"expected {len(_COLUMNS)} columns between tabs, got {len(values)}")
    row = dict(zip(_COLUMNS, values, strict=True))
    marks = [
        _mark(row, "Pronoun", "pronoun"),
        *(_mark(row, name, "pronoun" if _flag(row, f"{name}-coref") else name) for name in ("A", "B")),
    ]
    return annotated(row["Text"], marks, row["URL"].rpartition("/wiki/")[2] or row["ID"])


def _flag(row: dict[str, str], column: str) -> bool:
    if row[column] not in _FLAGS:
        raise InputError(f'expected TRUE or FALSE in {column}, got "{row[column]}"')
    return _FLAGS[row[column]]


def _mark(row: dict[str, str], column: str, chain: str) -> Mark:
    """The mention that a column names, checked against the text."""
    name, offset, text = row[column], row[f"{column}-offset"], row["Text"]
    if not name.strip():
        raise InputError(f"expected a word in {column}, got none")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 10):
        raise InputError(f'expected a number of characters in {column}-offset, got "{offset}"')
    start, end = int(offset), int(offset) + len(name)
    if end > len(text):
        raise InputError(f'{column}-offset {offset}: expected "{name}" there, but the text has {len(text)} characters')
    if text[start:end] != name:
        raise InputError(f'{column}-offset {offset}: expected "{name}" there, got "{text[start:end]}"')
    return Mark(start, end, chain)
