"""What becomes of a command when nobody reads what it prints any more (`interp train default | head -1`)?"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class _Unread:
    """A stream that goes on writing to nobody once its reader has gone; the rest is the stream's own."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        """What waits to be written, and all that follows, goes nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def unread() -> Iterator[None]:
    """Within, a reader of the standard output that goes away stops nothing: a training keeps what it has learnt."""
    stream = sys.stdout
    sys.stdout = _Unread(stream)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = stream
