"""Text without annotation: a text a paragraph, a text a line, or a source and a target in two columns.

Words are what spaces separate, so a line break inside a paragraph reads as a space. No file says that it is plain text,
so that is read only where its kind is given: `text:PATH`, `lines:PATH`. Of two columns the first line has the names
("word", "phonemes"); every later line is a pair, what an encoder-decoder reads and should write.
"""

from collections.abc import Iterator
from itertools import groupby

from analyses.corpora.reader import Lines
from interp.annotation import AnnotatedText
from models import pair_tasks


def paragraphs(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each stretch of lines that have something in them; its document is the file and its number."""
    stretches = (stretch for filled, stretch in groupby(lines, key=lambda line: bool(line.strip())) if filled)
    for number, stretch in enumerate(stretches, start=1):
        yield AnnotatedText.plain(" ".join(stretch), f"{lines.source}:{number}")


def one_a_line(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each line that has something in it; its document is the file and the number of the line."""
    return (AnnotatedText.plain(line, f"{lines.source}:{lines.number}") for line in lines if line.strip())


def pairs(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each line after the first, with its target."""
    for number, source, target in pair_tasks.pairs(lines, lines.source):
        yield AnnotatedText.plain(source, f"{lines.source}:{number}", target)


def has_two_columns(line: str) -> bool:
    """Whether a line is two columns with something in each."""
    return len(pair_tasks.columns(line)) == 2 and all(pair_tasks.columns(line))
