"""What is made by seed and index, one after another: texts and pairs that are the same whenever they are asked for."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as count_from
from typing import TypeVar

Made = TypeVar("Made")


def series(make: Callable[[int, int], Made], count: int | None, seed: int) -> Iterator[Made]:
    """The first `count` of a seed; endless if it is None."""
    return map(partial(make, seed), count_from() if count is None else range(count))
