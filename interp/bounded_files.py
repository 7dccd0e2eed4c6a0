"""Text files from outside, read within limits of kind, line length and size."""

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
_PIECE = 1 << 20  # bytes of each read
EXPANDS, UNCHECKED = 100, 1 << 24  # a compressed file may unpack to this many times its size, or to this many bytes
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # the first bytes of compressed files


def is_file(path: Path) -> bool:
    """Whether there is a file or directory at `path`; an impossible name is refused."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"cannot look for {brief(str(path))!r}: {_reason(error)}") from error
    return True


def check_name(path: Path) -> None:
    """Refuse a name that is not UTF-8, which no page or table could show."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"expected a name in UTF-8, got {str(path)!a}: rename it") from error


def unpacked_name(path: Path) -> str:
    """The name of a file without the ending of its compression."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


def lines(path: Path) -> Iterator[str]:
    """The lines, with their ends, of a UTF-8 text file, plain or compressed by gzip or zstd.

    It refuses pipes, damaged files, lines longer than `LONGEST_LINE`, and files that unpack to `EXPANDS` times their
    size.
    """
    with _unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        while line := text.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise InputError(f"{path} has a line of more than {LONGEST_LINE:,} characters: expected lines of text")
            yield line


def whole(path: Path, limit: int = LARGEST_WHOLE) -> str:
    """The text of a file of at most `limit` bytes, plain or compressed; raises as `lines`."""
    content = bytearray()
    with _unpacked(path) as file:
        while len(content) <= limit and (piece := file.read1(_PIECE)):  # `read(limit)` would reserve that memory
            content += piece
    if len(content) > limit:
        raise InputError(f"{path} is longer than {limit:,} bytes, the limit for a whole file: split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start:,}): convert it, or leave it out") from error


class _Unpacking(io.BufferedIOBase):
    """The content of a compressed file, refused when it becomes too long."""

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
    """A file's bytes; pipes and unreadable files are refused."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
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
            from pyarrow import CompressedInputStream  # noqa: PLC0415 (slow to import, and rarely needed)

            yield _Unpacking(path, file, CompressedInputStream(file, "zstd"))
        else:
            yield file


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
