"""How are other people's text files read within limits of kind, line length and size?"""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from interp.errors import InputError, brief

LONGEST_LINE = 1_000_000  # characters
LARGEST_WHOLE = 1 << 30  # bytes of a file that is read as a whole
_PIECE = 1 << 20  # bytes of it that are read at a time
EXPANDS, UNCHECKED = 100, 1 << 24  # a gzipped file may become so many times longer, or have so many bytes


def is_file(path: Path) -> bool:
    """Whether there is something to read at `path`, be it a directory or not; a name that cannot be is refused."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        raise InputError(f"cannot look for {brief(str(path))!r}: {_reason(error)}") from error
    return True


def check_name(path: Path) -> None:
    """Refuse a name that is no UTF-8, which no page or table could show."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"expected a name in UTF-8, got {str(path)!a}: rename it") from error


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzipped, with their ends, as they are needed.

    Refused are pipes, damaged files, lines longer than `LONGEST_LINE`, and what unpacks to `EXPANDS` times its size.
    """
    with _opened(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        while line := text.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise InputError(f"{path} has a line of more than {LONGEST_LINE:,} characters: expected lines of text")
            yield line


def whole(path: Path, limit: int = LARGEST_WHOLE) -> str:
    """All of a text file of at most so many bytes, plain or gzipped; raises as `lines`."""
    content = bytearray()
    with _opened(path) as file:
        while len(content) <= limit and (piece := file.read1(_PIECE)):  # `read(limit)` would reserve as much memory
            content += piece
    if len(content) > limit:
        raise InputError(f"{path} is longer than {limit:,} bytes, the most that is read as a whole: split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start:,}): convert it, or leave it out") from error


class _Unpacking(gzip.GzipFile):
    """A gzipped file that says so where it becomes too long."""

    def __init__(self, path: Path, file: BinaryIO):
        super().__init__(fileobj=file, mode="rb")
        self._path, self._most = path, max(UNCHECKED, EXPANDS * os.fstat(file.fileno()).st_size)

    def read1(self, size: int = -1) -> bytes:
        """The next bytes, within the limit."""
        content = super().read1(size)
        if self.tell() > self._most:
            raise InputError(f"{self._path} unpacks to more than {self._most:,} bytes, {EXPANDS} times its size")
        return content


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for whoever writes to it
            raise InputError(f"{path} is a pipe, a device or a directory: expected a file")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b" or path.suffix == ".gz"
            file.seek(0)
            if not packed:
                yield file
                return
            with _Unpacking(path, file) as unpacked:
                yield unpacked
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}): expected UTF-8, plain or gzipped") from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
