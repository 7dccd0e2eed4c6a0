"""Ctrl-C, SIGTERM and SIGHUP alike stop a program when it is ready to stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def stoppable(stop: Callable[[int], object]) -> Iterator[None]:
    """Within, the first Ctrl-C, SIGTERM or SIGHUP calls `stop` with its number; ignored ones (`nohup`) stay ignored."""
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _STOPS}
        handlers = {number: each for number, each in handlers.items() if each not in (None, signal.SIG_IGN)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def once(number: int, _: object) -> None:
        restore()
        stop(number)

    for number in handlers:
        signal.signal(number, once)
    try:
        yield
    finally:
        restore()


@contextmanager
def unstopped() -> Iterator[list[int]]:
    """Within, the first signal waits in the list, so that a short piece of work ends; the next one is as ever."""
    waiting: list[int] = []
    with stoppable(waiting.append):
        yield waiting
