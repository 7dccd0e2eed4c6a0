"""Checks of types that are made when a function is first checked: most functions never are in one process."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from beartype import beartype


def on_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with beartype's checks, which are made at its first call."""
    checked = cache(lambda: beartype(function))

    @wraps(function)
    def checking(*args: Any, **options: Any) -> Any:
        return checked()(*args, **options)

    return checking
