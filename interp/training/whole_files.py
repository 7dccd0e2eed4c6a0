"""Files that are whole or not there: written beside and renamed, or added to by whole pieces.

What is being written lies in a draft: a hidden folder beside its place, which its process holds a lock on. The system
lets go of the lock when the process ends, however it ends, so a draft that nobody holds was left by a kill.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from interp.errors import InputError

try:
    import fcntl
except ImportError:  # no such locks on this system: nothing is known to be left by a kill
    fcntl = None

_DRAFT = ".interp-draft"


def file_above(path: Path) -> Path | None:
    """The nearest of what is above a path that is there and no directory, so that nothing can be written below it."""
    return next((above for above in path.parents if above.exists() and not above.is_dir()), None)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path for a file or directory to be written to; it takes the place of `path` once all went well.

    Raises:
        OSError: what the system says; `path` is then as it was, and nothing lies beside it.
    """
    with beside(path) as part:
        yield part
        for file in [each for each in part.rglob("*") if each.is_file()] if part.is_dir() else [part]:
            with file.open("rb") as written:
                os.fsync(written.fileno())  # what is renamed is on the disk
        if path.is_dir():  # which a rename puts nothing in place of
            os.replace(path, part.with_name(f"{part.name}.old"))
        os.replace(part, path)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A path of the same name in a draft of its own beside `path`; the draft is removed at the end, with what is in it.

    Raises:
        OSError: what the system says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_DRAFT, dir=path.parent))
        try:
            held = _held(draft)
        except BlockingIOError:  # one that sweeps took it for a dead process's
            continue
        break
    try:
        yield draft / path.name
    finally:
        _give_up(draft, held)


@contextmanager
def alone(path: Path, put_right: Callable[[Path], None] = lambda left: None) -> Iterator[Path]:
    """As `beside`, for one process at a time; what a killed one left is `put_right` first, then removed.

    Raises:
        InputError: another process is writing `path`.
        OSError: what the system says.
    """
    draft = path.with_name(f".{path.name}{_DRAFT}")
    while True:
        new = True
        try:
            draft.mkdir(mode=0o700)
        except FileExistsError:
            new = False
        try:
            held = _held(draft)
        except BlockingIOError as error:
            raise InputError(
                f"another process is writing {path}: wait until it has ended, or choose another directory"
            ) from error
        except FileNotFoundError:  # it was taken away in between
            continue
        if held is None and not new:
            raise InputError(
                f"{draft} is there, of a process that is writing {path} or was killed: remove it if none is at work"
            )
        break
    try:
        if not new:
            put_right(draft / path.name)
            _empty(draft)
        yield draft / path.name
    finally:
        _give_up(draft, held)


@contextmanager
def holding(directory: Path, what: str) -> Iterator[None]:
    """Hold `directory`, which is made where there is none, so that one process at a time does this.

    Where it was made and is left empty, it is removed, with the folders that were made above it.

    Raises:
        InputError: another process does `what` there.
        OSError: what the system says.
    """
    made = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        held = _held(directory)
    except BlockingIOError as error:
        raise InputError(
            f"another process {what} {directory}: wait until it has ended, or choose another directory"
        ) from error
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # not empty: all went well
                folder.rmdir()
        if held is not None:
            os.close(held)


def sweep_beside(path: Path) -> None:
    """Remove the drafts of `path` whose processes are no more; others may be at work on theirs."""
    sweep(path.parent, lambda name: name == path.name)


def sweep(directory: Path, ours: Callable[[str], bool]) -> None:
    """Remove the drafts of what is called so in `directory`, where their processes are no more."""
    for draft, name in _drafts(directory):
        if not ours(name):
            continue
        try:
            held = _held(draft)
        except OSError:  # at work, or just taken away
            continue
        if held is not None:
            _give_up(draft, held)


def is_being_made(path: Path) -> bool:
    """Whether a process is writing something that will take the place of `path`."""
    for draft, name in _drafts(path.parent):
        if name == path.name:
            try:
                held = _held(draft)
            except BlockingIOError:
                return True
            except OSError:
                continue
            if held is not None:
                os.close(held)
    return False


def is_draft(path: Path) -> bool:
    """Whether it is what a process is writing or was, to be put elsewhere."""
    return path.name.endswith(_DRAFT)


def _drafts(directory: Path) -> Iterator[tuple[Path, str]]:
    """Drafts in `directory`, and what each is of."""
    for draft in directory.glob(f".*{_DRAFT}"):
        found = re.fullmatch(rf"\.(.+?)(\.[a-z0-9_]{{8}})?{re.escape(_DRAFT)}", draft.name)
        if found and draft.is_dir() and not draft.is_symlink():
            yield draft, found[1]


def _held(folder: Path) -> int | None:
    """A lock on a folder, as a descriptor to be closed; None where the system has no locks there.

    Raises:
        BlockingIOError: another process holds it.
        FileNotFoundError: it is gone.
    """
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(held), os.stat(folder)):
            raise FileNotFoundError(folder)
    except (BlockingIOError, FileNotFoundError):
        os.close(held)
        raise
    except OSError:  # a file system without locks
        os.close(held)
        return None
    return held


def _give_up(draft: Path, held: int | None) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    if held is not None:
        os.close(held)


def _empty(folder: Path) -> None:
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


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
