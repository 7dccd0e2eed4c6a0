"""No room grows: each is at most its budget, or what it has come down to on the way there."""

import pytest

from benchmarks.size import BUDGETS, DOCS, lines, words

# lower as rooms shrink; gone at the budget
REACHED = {"interp": 14_630, "analyses": 22_745, "tests": 25_300}


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_is_no_larger_than_its_budget_or_than_it_was(room):
    assert lines(room, ".py") <= REACHED.get(room, BUDGETS[room])


def test_pages_are_no_longer_than_they_were():
    assert words() <= DOCS
