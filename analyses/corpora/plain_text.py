"""Plain text: words and nothing else, a text a paragraph or a text a line.

Words are what spaces separate, so a line break inside a paragraph reads as a space. No file says that it is one of
these, so they are read only where they are asked for: `text:PATH`, `lines:PATH`.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from interp.annotation import AnnotatedText


def paragraphs(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each stretch of lines that have something in them; its document is the file and its number."""
    stretches = (stretch for filled, stretch in groupby(lines, key=lambda line: bool(line.strip())) if filled)
    for number, stretch in enumerate(stretches, start=1):
        yield AnnotatedText.plain(" ".join(stretch), f"{source}:{number}")


def one_a_line(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each line that has something in it; its document is the file and the number of the line."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield AnnotatedText.plain(line, f"{source}:{number}")
