"""How are other people's text files read within limits of kind, line length and size?"""

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from interp.errors import InputError, brief

LONGEST_LINE = 1_000_000  # characters
LARGEST_WHOLE = 1 << 30  # bytes of a file that is read as a whole
_PIECE = 1 << 20  # bytes of it that are read at a time
EXPANDS, UNCHECKED = 100, 1 << 24  # a compressed file may become so many times longer, or have so many bytes
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how compressed files begin


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


def unpacked_name(path: Path) -> str:
    """The name of a file without the ending that says how it is compressed."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain, gzipped or of zstd, with their ends, as they are needed.

    Refused are pipes, damaged files, lines longer than `LONGEST_LINE`, and what unpacks to `EXPANDS` times its size.
    """
    with _unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        while line := text.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise InputError(f"{path} has a line of more than {LONGEST_LINE:,} characters: expected lines of text")
            yield line


def whole(path: Path, limit: int = LARGEST_WHOLE) -> str:
    """All of a text file of at most so many bytes, plain or compressed; raises as `lines`."""
    content = bytearray()
    with _unpacked(path) as file:
        while len(content) <= limit and (piece := file.read1(_PIECE)):  # `read(limit)` would reserve as much memory
            content += piece
    if len(content) > limit:
        raise InputError(f"{path} is longer than {limit:,} bytes, the most that is read as a whole: split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start:,}): convert it, or leave it out") from error


class _Unpacking(io.BufferedIOBase):
    """What a compressed file holds; it says so where that becomes too long."""

    def __init__(self, path: Path, file: BinaryIO, stream: Any):
        self._path, self._stream, self._size = path, stream, 0
        self._most = max(UNCHECKED, EXPANDS * os.fstat(file.fileno()).st_size)

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1) -> bytes:
        """The next bytes, within the limit."""
        content = self._stream.read1(size)
        self._size += len(content)
        if self._size > self._most:
            raise InputError(f"{self._path} unpacks to more than {self._most:,} bytes, {EXPANDS} times its size")
        return content


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file as its bytes are; pipes, and what the system does not give, are refused."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for whoever writes to it
            raise InputError(f"{path} is a pipe, a device or a directory: expected a file")
        with path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({_reason(error)}): expected UTF-8, plain, .gz or .zst") from error


@contextmanager
def _unpacked(path: Path) -> Iterator[Any]:
    with opened(path) as file:
        start = file.read(len(_ZSTD))
        file.seek(0)
        if start.startswith(_GZIP) or path.suffix == ".gz":
            yield _Unpacking(path, file, gzip.GzipFile(fileobj=file))
        elif start == _ZSTD or path.suffix == ".zst":
            from pyarrow import CompressedInputStream  # noqa: PLC0415 (slow to import, and few files are of zstd)

            yield _Unpacking(path, file, CompressedInputStream(file, "zstd"))
        else:
            yield file


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
