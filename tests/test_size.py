"""No room is larger than its budget."""

import pytest

from benchmarks.size import BUDGETS, DOCS, lines, words


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_is_no_larger_than_its_budget(room):
    assert lines(room, ".py") <= BUDGETS[room]


def test_pages_are_no_longer_than_their_budget():
    assert words() <= DOCS
