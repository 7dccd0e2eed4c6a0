"""What becomes of a command when nobody can read what it prints (`interp models | head -1`, `>&-`, `>/dev/full`)?"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Unread:
    """A stream that goes on writing to nobody once its reader has gone or its disk is full; the rest is its own."""

    error: OSError | None = None  # why what was said is lost; a reader that went away wants no more

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._leave(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._leave(error)

    def _leave(self, error: OSError) -> None:
        """What waits to be written, and all that follows, goes nowhere."""
        if not isinstance(error, BrokenPipeError):
            self.error = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def unread() -> Iterator[_Unread]:
    """Within, a standard output that is closed or full stops nothing: a training keeps what it has learnt."""
    _open_closed()
    stream = sys.stdout
    sys.stdout = nobody = _Unread(stream)
    try:
        yield nobody
        nobody.flush()
    finally:
        sys.stdout = stream


def _open_closed() -> None:
    """Have standard streams that the program was started without lead nowhere, or files would get their numbers."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the program ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
