"""Dates depend on seed and index alone, are valid in every format, and are aligned to the letter."""

import re
from datetime import date, datetime, timedelta
from itertools import islice

import pytest

from models.pair_tasks import FORMATS, MONTHS, TASKS, WEEKDAYS, Pair, dated, dates, reversals, written

MANY = 1000
YEAR = [date(2024, 1, 1) + timedelta(day) for day in range(366)]
ENDINGS = {int(day[:-2]): day for day in ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd"]}
WORDS = {1: "first", 8: "eighth", 12: "twelfth", 20: "twentieth", 21: "twenty-first", 29: "twenty-ninth"}


@pytest.fixture(scope="module")
def many() -> list[Pair]:
    return list(dates(MANY))


def parts_of(pair: Pair) -> dict[str, tuple[str, str]]:
    return {part.name: (pair.source[slice(*part.source)], pair.target[slice(*part.target)]) for part in pair.parts}


def test_a_pair_is_the_same_whenever_it_is_asked_for(many):
    assert [*islice(dates(None), 20)] == many[:20] == [dated(0, index) for index in range(20)]
    assert [*TASKS["dates"](20, 0)] == many[:20]
    assert [*dates(20, 1)] != many[:20]


def test_every_target_is_a_day_and_each_part_of_the_source_tells_its_part_of_it(many):
    for pair in many:
        assert date.fromisoformat(pair.target).isoformat() == pair.target
        covered = [index for part in pair.parts for index in range(*part.target)]
        assert covered == [index for index, sign in enumerate(pair.target) if sign != "-"]
        parts = parts_of(pair)
        assert parts["year"][0] == parts["year"][1]
        name, number = parts["month"]
        assert datetime.strptime(name[:3], "%b").month == int(number)
        assert name in {MONTHS[int(number) - 1], MONTHS[int(number) - 1][:3]}
        day, number = parts["day"]
        if digits := re.match(r"\d+", day):
            assert int(digits[0]) == int(number)


def test_the_weekday_is_that_of_the_day(many):
    count = 0
    for pair in many:
        for name in re.findall(r"\b(\w{3})(?:\w*day)?\b", pair.source):
            if name in {each[:3] for each in WEEKDAYS} and not re.search(rf"{name}\w*", "March"):
                assert WEEKDAYS[date.fromisoformat(pair.target).weekday()].startswith(name)
                count += 1
    assert count > MANY // 3


@pytest.mark.parametrize(("field", "expected"), [("{day_th} of", ENDINGS), ("{day_word}", WORDS)])
def test_days_have_their_endings_and_are_spelt(field, expected):
    format = next(format for format in FORMATS if field in format)
    assert {day: parts_of(written(date(2024, 1, day), format))["day"][0] for day in expected} == expected


def test_a_reversal_is_aligned_letter_by_letter():
    lengths = set()
    for pair in islice(reversals(None, 7), 200):
        assert pair.target == pair.source[::-1]
        lengths.add(len(pair.source))
        assert [part.target for part in pair.parts] == [(index, index + 1) for index in range(len(pair.target))]
        assert [pair.source[slice(*part.source)] for part in pair.parts] == list(pair.target)
        assert sorted(part.source for part in pair.parts) == [part.target for part in pair.parts]
    assert lengths == set(range(3, 11))
