"""Ctrl-C, SIGTERM and SIGHUP stop a program when it is ready."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def stoppable(stop: Callable[[int], object]) -> Iterator[None]:
    """In this context the first signal calls `stop` with its number; ignored signals (`nohup`) stay ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _STOPS if is_main}
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
    """In this context the first signal waits in the list, so that a short task can end; the next one acts as usual."""
    waiting: list[int] = []
    with stoppable(waiting.append):
        yield waiting
