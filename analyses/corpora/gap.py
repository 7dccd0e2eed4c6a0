"""GAP: passages of Wikipedia, each with a pronoun and two names: which of them does the pronoun stand for?

One row is one text with three mentions. A name that the pronoun stands for is in the chain "pronoun", the other in a
chain of its own ("A" or "B"). So a pronoun that stands for neither name is alone in its chain, and a name that comes
after the pronoun is a mention that starts after it: neither leaves the pronoun both a right and a wrong candidate
before it, and `antecedent_items` passes over both.

A document is a page of Wikipedia, since passages of one page are not independent of each other.
"""

from collections.abc import Iterator

from analyses.corpora.marked import Mark, annotated, rows
from analyses.corpora.reader import Lines
from interp.annotation import AnnotatedText
from interp.errors import InputError

COLUMNS = (
    *("ID", "Text", "Pronoun", "Pronoun-offset"),
    *("A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"),
)


def parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each row."""
    for row in rows(lines, COLUMNS):
        marks = [_mark(row, name) for name in ("Pronoun", "A", "B")]
        yield annotated(row["Text"], marks, row["URL"].rpartition("/wiki/")[2] or row["ID"])


def _mark(row: dict[str, str], column: str) -> Mark:
    """The mention that a column names, checked against the text."""
    name, offset, text, flag = row[column], row[f"{column}-offset"], row["Text"], row.get(f"{column}-coref", "TRUE")
    if flag not in ("TRUE", "FALSE"):
        raise InputError(f'expected TRUE or FALSE in {column}-coref, got "{flag}"')
    if not name.strip():
        raise InputError(f"expected a word in {column}, got none")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 10):
        raise InputError(f'expected a number of characters in {column}-offset, got "{offset}"')
    start, end = int(offset), int(offset) + len(name)
    if text[start:end] != name:
        there = f"the text has {len(text)} characters" if end > len(text) else f'it has "{text[start:end]}"'
        raise InputError(f'{column}-offset {offset}: expected "{name}" there, but {there}')
    return Mark(start, end, "pronoun" if flag == "TRUE" else column)
