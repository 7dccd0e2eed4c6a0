"""What a user can get wrong. Every such mistake is an `InputError`, so a command line can print it as one line."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Something that came from outside (a file, an option, a name) is not usable.

    The message says what was expected, what came, and what to do, in one line.
    """


class InputWarning(UserWarning):
    """Something that came from outside is usable, and probably not what was meant; the message is one line."""


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Say where it is that something is not usable: a file, a line of it, a table."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
