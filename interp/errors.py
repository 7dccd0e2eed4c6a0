"""Mistakes that a user can make: each is an `InputError`, which the command line prints as one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar, get_args

LONGEST_VALUE, LONGEST_MESSAGE = 200, 2_000  # characters of a value in a message, and of the message
T = TypeVar("T")
_VALUES = re.compile(rf"\S{{{LONGEST_VALUE + 1},}}|\"[^\"]{{{LONGEST_VALUE + 1},}}\"|'[^']{{{LONGEST_VALUE + 1},}}'")


def brief(message: str) -> str:
    """A message in one line of at most `LONGEST_MESSAGE`, in which no value is longer than `LONGEST_VALUE`.

    A value stands between quotes or spaces. If it is too long, its two ends and its length remain. Invisible
    characters, which might move a terminal's cursor, are spelled out.
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
    """An input (a file, an option, a name) is not usable; the message says why in one `brief` line."""

    def __init__(self, message: str = ""):
        super().__init__(brief(message))


class InputWarning(UserWarning):
    """An input is usable, but probably not what the user meant."""


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Say where an input is not usable: in a file, a line of it, a table."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def one_of(name: str, value: T, choices: Any) -> T:
    """`value`, if it is among these words or a `Literal`'s; else an `InputError` lists them."""
    words = [*(get_args(choices) or choices)]
    if not isinstance(value, str) or value not in words:
        raise InputError(f"no {name} {value!r}: expected {' or '.join(words)}")
    return value


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """`value` as an int, if it is a whole number (Python's or NumPy's) from `least` to 2^63 - 1."""
    if not isinstance(value, Integral) or not least <= int(value) < 1 << 63:
        raise InputError(f"expected a whole number as {name}, {least} or more and below 2 ** 63; got {value!r}")
    return int(value)
