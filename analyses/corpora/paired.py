"""Two columns, a source and a target: what an encoder-decoder reads, and what it should write.

The first line names the columns ("word", "phonemes"); every later line is a pair, and a document of its own. Neither
side is annotated: words are what spaces separate.
"""

from collections.abc import Iterable, Iterator

from interp.annotation import AnnotatedText
from models.columns import columns, pairs


def recognises(line: str) -> bool:
    """Whether the first line of a file has two columns."""
    return len(columns(line)) == 2 and all(columns(line))


def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each line after the first, with its target."""
    for number, read, written in pairs(lines, source):
        yield AnnotatedText.plain(read, f"{source}:{number}", written)
