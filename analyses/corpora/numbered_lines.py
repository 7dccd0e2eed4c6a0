"""Lines of a file, read one by one: which of them was it, where one is malformed?"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps

from interp.annotation import AnnotatedText
from interp.errors import InputError

Parse = Callable[[Iterable[str], str], Iterator[AnnotatedText]]
"""From the lines of a file, read as they are needed, and its name, for messages and for documents without one.

Raises:
    InputError: with the file and the line, where it is reached.
"""


def numbered(parse: Parse) -> Parse:
    """The same reader, whose refusals say which line of which file was read last."""

    @wraps(parse)
    def reader(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
        number = 0

        def counted() -> Iterator[str]:
            nonlocal number
            for number, line in enumerate(lines, start=1):  # noqa: B007 - the message below reads it
                yield line

        try:
            yield from parse(counted(), source)
        except InputError as error:
            raise InputError(f"{source}, line {number}: {error}") from error

    return reader
