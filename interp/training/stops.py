"""Ctrl-C, SIGTERM and SIGHUP alike stop a program when it is ready to stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def stoppable(stop: Callable[[int], object]) -> Iterator[None]:
    """Within, Ctrl-C, SIGTERM and SIGHUP call `stop` once; each is as before from then on, and at the end.

    Signals reach a program's first thread alone; what it was started to ignore (`nohup`) is ignored still.

    Args:
        stop: called with the signal's number.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _STOPS}
    left_alone = (None, signal.SIG_IGN)
    taken = {number: handler for number, handler in before.items() if handler not in left_alone}

    def once(number: int, _: object) -> None:
        give_back()
        stop(number)

    def give_back() -> None:
        for number, handler in taken.items():
            signal.signal(number, handler)

    for number in taken:
        signal.signal(number, once)
    try:
        yield
    finally:
        give_back()


@contextmanager
def unstopped() -> Iterator[list[int]]:
    """Within, the first signal waits in the list, so that a short piece of work ends; the next one is as ever."""
    waiting: list[int] = []
    with stoppable(waiting.append):
        yield waiting
