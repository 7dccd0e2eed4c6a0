"""What can a user get wrong? Every such mistake is an `InputError`, which a command line prints as one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar, get_args

LONGEST_VALUE, LONGEST_MESSAGE = 200, 2_000  # characters that a message shows of a value, and of itself
T = TypeVar("T")
_VALUES = re.compile(rf"\S{{{LONGEST_VALUE + 1},}}|\"[^\"]{{{LONGEST_VALUE + 1},}}\"|'[^']{{{LONGEST_VALUE + 1},}}'")


def brief(message: str) -> str:
    """A message in one line of at most `LONGEST_MESSAGE`, in which no value is longer than `LONGEST_VALUE`.

    A value stands between quotes or spaces. What is too long keeps its two ends and says its length; characters that
    cannot be seen, and so might move a terminal's cursor, are spelled out.
    """
    if not message.isprintable():
        spelled = {each: " " if each.isspace() else repr(each)[1:-1] for each in message if not each.isprintable()}
        message = message.strip().translate(str.maketrans(spelled))
    if len(message) <= LONGEST_VALUE:
        return message
    return _ends(_VALUES.sub(lambda match: _ends(match[0], LONGEST_VALUE), message), LONGEST_MESSAGE)


def _ends(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    count = f"...({len(text):,} characters)..."
    half = (room - len(count)) // 2
    return f"{text[:half]}{count}{text[-half:]}"


class InputError(ValueError):
    """Something from outside (a file, an option, a name) is not usable; the message, in one `brief` line, says why."""

    def __init__(self, message: str = ""):
        super().__init__(brief(message))


class InputWarning(UserWarning):
    """Something from outside is usable, and probably not what was meant."""


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Say where something is not usable: in a file, a line of it, a table."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def one_of(name: str, value: T, choices: Any) -> T:
    """`value`, if it is one of some words, or of a `Literal`'s; else an `InputError` says which there are."""
    words = [*(get_args(choices) or choices)]
    if not isinstance(value, str) or value not in words:
        raise InputError(f"no {name} {value!r}: expected {' or '.join(words)}")
    return value


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """`value`, if it is a whole number, Python's or NumPy's, of 63 bits and at least `least`; else an `InputError`."""
    if not isinstance(value, Integral) or not least <= int(value) < 1 << 63:
        raise InputError(f"expected a whole number as {name}, {least} or more and below 2 ** 63; got {value!r}")
    return int(value)
