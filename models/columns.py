"""Two columns of text, a source and a target, under a line that names them."""

from collections.abc import Iterable, Iterator

from interp.errors import InputError


def columns(line: str) -> list[str]:
    """What tabs separate."""
    return line.rstrip("\r\n").split("\t")


def pairs(lines: Iterable[str], source: str) -> Iterator[tuple[int, str, str]]:
    """The number, the source and the target of each line after the first; empty lines are left out.

    Args:
        lines: the lines of a file, read as they are needed.
        source: the file's name, for messages.

    Raises:
        InputError: with the file and the line, where it has not two columns or one of them is empty.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        both = [column.strip() for column in columns(line)]
        if len(both) != 2 or not all(both):
            raise InputError(f"{source}, line {number}: expected source, tab, target; got {line.strip()[:60]!r}")
        if number > 1:
            yield number, both[0], both[1]
