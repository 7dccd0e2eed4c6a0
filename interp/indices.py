"""Which entries of an axis does a selector name?"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor

from interp.errors import InputError

Index = int | np.integer | slice | Sequence[int] | np.ndarray | Tensor


def is_number(index: Any) -> TypeGuard[int]:
    """Whether a selector is a single whole number; True and False are not."""
    number = index.tolist() if isinstance(index, Tensor | np.ndarray) else index
    return isinstance(number, Integral) and not isinstance(number, bool)


def dimensions(index: Any) -> int:
    """The dimensions of an array or tensor, which gives each text its positions; 0 for any other selector."""
    return index.ndim if isinstance(index, Tensor | np.ndarray) else 0


def for_texts(index: Any, n_texts: int, axis: str) -> list[Any]:
    """Each text's selector: an entry or a row of an array, or the same for all."""
    if not dimensions(index):
        return [index] * n_texts
    if dimensions(index) > 2 or len(index) != n_texts:
        raise InputError(f"expected a list, or one {axis} for each of {n_texts} prompts; got shape {(*index.shape,)}")
    return index.tolist()


def entries(index: Any, size: int, axis: str, owner: str, end: int | None = None) -> list[int]:
    """The entries that a selector names on an axis of this size; negative numbers count back from `end` (the size).

    Errors name the axis `axis` and its `owner` ("in prompt 2").
    """
    back = size if end is None else end
    if isinstance(index, slice):
        try:  # a range counts negative bounds back from its size
            start, stop = (i if i is None or i >= 0 else i + back - size for i in (index.start, index.stop))
            return [*range(size)[slice(start, stop, index.step)]]
        except (TypeError, ValueError) as error:
            raise InputError(f"no {axis} {index} {owner}: expected whole numbers, in steps other than 0") from error
    plain = index.tolist() if isinstance(index, Tensor | np.ndarray) else index
    numbers = [*plain] if isinstance(plain, list | tuple | range) else [plain]
    if not numbers:
        raise InputError(f"expected at least one {axis} {owner}, got {index!r}")
    for number in numbers:
        if not is_number(number) or not -back <= int(number) < size:
            raise InputError(f"no {axis} {number} {owner}: it has {axis} 0-{size - 1}")
    return [int(number) + back * (int(number) < 0) for number in numbers]
