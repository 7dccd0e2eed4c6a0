"""Two columns, a source and a target: what an encoder-decoder reads, and what it should write.

The first line names the columns ("word", "phonemes"); every later line is a pair, and a document of its own. Neither
side is annotated: words are what spaces separate.
"""

from collections.abc import Iterable, Iterator

from interp.annotation import AnnotatedText
from interp.errors import InputError


def recognises(line: str) -> bool:
    """Whether the first line of a file has two columns."""
    return len(_columns(line)) == 2 and all(_columns(line))


def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each line after the first, with its target.

    Args:
        lines: the lines of a file, read as they are needed.
        source: the file's name, for messages.

    Raises:
        InputError: with the file and the line, where it has not two columns or one of them is empty.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        columns = [column.strip() for column in _columns(line)]
        if len(columns) != 2 or not all(columns):
            raise InputError(f"{source}, line {number}: expected source, tab, target; got {line.strip()[:60]!r}")
        if number > 1:
            yield AnnotatedText.plain(columns[0], f"{source}:{number}", columns[1])


def _columns(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t")
