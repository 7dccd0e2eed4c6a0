"""Pairs of texts, read from two columns or made by a rule.

A rule also knows which part of the target comes from which part of the source, so cross-attention can be scored.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from itertools import count as count_from
from types import MappingProxyType
from typing import TypeVar

from interp.errors import InputError
from interp.tokens import Span

Item = TypeVar("Item")

_FIRST, _LAST = date(1600, 1, 1), date(2099, 12, 31)
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_UNITS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_ORDINALS = (
    *(*_UNITS, "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth"),
    *("eighteenth", "nineteenth", "twentieth", *(f"twenty-{unit}" for unit in _UNITS), "thirtieth", "thirty-first"),
)

# How people write a date. The year has four digits and the month its name, so no date can be read in two ways. The
# year stands at the end, in the middle and at the start, so no fixed place has it.
FORMATS = (
    "{weekday}, {day} {month} {year}",
    "{month} {day_th}, {year}",
    "the {day_word} of {month}, {year}",
    "{wd} {day} {mon} {year}",
    "{mon} {day}, {year}",
    "{day} {month} {year}, a {weekday}",
    "{month} {day}, {year} ({wd})",
    "{day_th} of {mon} {year}, {weekday}",
    "{year}, {month} {day}",
    "{year} {mon} {day}, {wd}",
    "in {year}, on {weekday}, {day_th} {month}",
    "in {year}, on the {day_word} of {month}",
)
_FIELD = re.compile(r"\{(\w+)\}")
_PART = {"day": "day", "day_th": "day", "day_word": "day", "month": "month", "mon": "month", "year": "year"}


@dataclass(frozen=True)
class Part:
    """A part of the target and its part of the source, in characters: from the first to after the last."""

    name: str
    source: Span
    target: Span


@dataclass(frozen=True)
class Pair:
    """A source text, its target text, and how their parts correspond, in the target's order."""

    source: str
    target: str
    parts: tuple[Part, ...]


def columns(line: str) -> list[str]:
    """The columns of a line, separated by tabs."""
    return line.rstrip("\r\n").split("\t")


def pairs(lines: Iterable[str], source: str) -> Iterator[tuple[int, str, str]]:
    """The number, the source and the target of each line after the first; empty lines are left out.

    InputError, with the name of the file, `source`, and the line, if it has not two columns or one is empty.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        texts = [column.strip() for column in columns(line)]
        if len(texts) != 2 or not all(texts):
            raise InputError(f"{source}, line {number}: expected source, tab, target; got {line.strip()[:60]!r}")
        if number > 1:
            yield number, texts[0], texts[1]


def series(make: Callable[[int, int], Item], count: int | None, seed: int) -> Iterator[Item]:
    """The first `count` items that `make` gives for a seed and an index; endless if `count` is None."""
    return map(partial(make, seed), count_from() if count is None else range(count))


def dates(count: int | None, seed: int = 0) -> Iterator[Pair]:
    """The first `count` pairs of a seed: a date as people write it, and as ISO 8601 does; endless if it is None."""
    return series(dated, count, seed)


def dated(seed: int, index: int) -> Pair:
    """One pair: "Tuesday, 3 March 1987" and "1987-03-03", from any day of 1600 to 2099, in any of `FORMATS`."""
    rng = random.Random(f"date-{seed}-{index}")
    day = _FIRST + timedelta(rng.randrange((_LAST - _FIRST).days + 1))
    return written(day, rng.choice(FORMATS))


def written(day: date, format: str) -> Pair:
    """A day in one of `FORMATS`, and in ISO 8601."""
    values = {
        "weekday": (weekday := WEEKDAYS[day.weekday()]),
        "wd": weekday[:3],
        "day": str(day.day),
        "day_th": f"{day.day}{_ending(day.day)}",
        "day_word": _ORDINALS[day.day - 1],
        "month": (month := MONTHS[day.month - 1]),
        "mon": month[:3],
        "year": str(day.year),
    }
    source, spans = "", {}
    for place, piece in enumerate(_FIELD.split(format)):  # text and names of fields in turn
        text = values[piece] if place % 2 else piece
        if place % 2 and piece in _PART:
            spans[_PART[piece]] = (len(source), len(source) + len(text))
        source += text
    target = {"year": (0, 4), "month": (5, 7), "day": (8, 10)}
    return Pair(source, day.isoformat(), tuple(Part(name, spans[name], span) for name, span in target.items()))


def reversals(count: int | None, seed: int = 0) -> Iterator[Pair]:
    """The first `count` pairs of a seed: some letters, and the same from the last to the first."""
    return series(reversal, count, seed)


def reversal(seed: int, index: int) -> Pair:
    """One pair: "hedge" and "egdeh", of three to ten letters from a to h; each letter is a part."""
    rng = random.Random(f"reversal-{seed}-{index}")
    text = "".join(rng.choices("abcdefgh", k=rng.randint(3, 10)))
    indices = range(len(text))
    parts = (Part("letter", (at, at + 1), (to, to + 1)) for to, at in zip(indices, reversed(indices), strict=True))
    return Pair(text, text[::-1], tuple(parts))


def _ending(number: int) -> str:
    return "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


TASKS: MappingProxyType[str, Callable[[int | None, int], Iterator[Pair]]] = MappingProxyType(
    {"dates": dates, "reversals": reversals}
)
"""The tasks by name; each takes a count and a seed."""
