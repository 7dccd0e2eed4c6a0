"""Files that are whole or not there: written beside and renamed, or added to by whole pieces."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` for a file or directory to be written to; it takes the place of `path` once all went well.

    Raises:
        OSError: what the system says; `path` is then as it was, and nothing lies beside it.
    """
    with beside(path) as part, beside(path, "old") as old:
        yield part
        for file in [each for each in part.rglob("*") if each.is_file()] if part.is_dir() else [part]:
            with file.open("rb") as written:
                os.fsync(written.fileno())  # what is renamed is on the disk
        if path.is_dir():  # which a rename puts nothing in place of
            os.replace(path, old)
        os.replace(part, path)


@contextmanager
def beside(path: Path, kind: str = "new") -> Iterator[Path]:
    """A path beside `path`, of this process alone; what is there at the end is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{kind}{_PART}")
    try:
        yield part
    finally:
        _remove(part)


def sweep(directory: Path) -> None:
    """Remove what killed processes were writing to `directory`. None may be at work there still."""
    for left in directory.glob(f".*{_PART}*"):
        _remove(left)


def sweep_beside(path: Path) -> None:
    """Remove what processes of this machine that are no more were writing in place of `path`; others may be at it."""
    for left, process in _beside(path):
        if not _runs(process):
            _remove(left)


def is_being_made(path: Path) -> bool:
    """Whether a process of this machine is writing something that will take the place of `path`."""
    return any(_runs(process) for _, process in _beside(path))


def _beside(path: Path) -> Iterator[tuple[Path, int]]:
    """What is or was being written in place of `path`, and by which process."""
    for left in path.parent.glob(f".{path.name}.*{_PART}"):
        process = left.name.removeprefix(f".{path.name}.").split(".")[0]
        if process.isdecimal():
            yield left, int(process)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class Growing:
    """A file that grows by whole pieces: one that does not fit on the disk is taken back."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def add(self, piece: bytes) -> None:
        """Put `piece` at the end.

        Raises:
            OSError: what the system says; the file is then as it was.
        """
        end = self._file.seek(0, os.SEEK_END)
        left = memoryview(piece)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(end)
            raise

    def close(self) -> None:
        """Nothing more is added."""
        self._file.close()
