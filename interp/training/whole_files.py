"""Files that are whole or not there: written beside and renamed, or added to by whole pieces.

What is being written lies in a draft: a hidden folder beside its place, which its process holds a lock on. The system
lets go of the lock when the process ends, however it ends, so a draft that nobody holds was left by a kill. A draft
that is a link, or another user's, is never opened, emptied or removed.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from interp.errors import InputError

try:
    import fcntl
except ImportError:  # no such locks on this system: nothing is known to be left by a kill
    fcntl = None

_DRAFT, _REPLACED = ".interp-draft", ".old"
_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}


def file_above(path: Path) -> Path | None:
    """The nearest of what is above a path that is there and no directory, so that nothing can be written below it."""
    return next((above for above in path.parents if above.exists() and not above.is_dir()), None)


def check_kind(path: Path, kind: int = stat.S_IFREG) -> None:
    """Only a file takes the place of a file, and a directory (`stat.S_IFDIR`) that of one: not of links or devices.

    Raises:
        InputError: something else is at `path`.
    """
    if os.path.lexists(path) and (there := stat.S_IFMT(path.lstat().st_mode)) != kind:
        raise InputError(
            f"{path} is {_KINDS.get(there, 'a device')}: expected the name of {_KINDS[kind]}, or one that is free"
        )


def check_owner(path: Path) -> None:
    """What interp keeps under a name that others can guess is no link, and this user's own.

    On some disks all files belong to one user, so the owner of the folder above will do.

    Raises:
        InputError: it is a link, or another user's.
    """
    if not os.path.lexists(path):
        return
    there = path.lstat()
    if stat.S_ISLNK(there.st_mode):
        raise InputError(f"{path} is a link, where interp keeps files of its own: remove it, or choose another place")
    if fcntl is not None and there.st_uid not in {os.geteuid(), path.parent.stat().st_uid}:
        raise InputError(f"{path} belongs to another user: remove it, or choose another place")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path for a file or directory to be written to; it takes the place of `path` once all went well.

    Raises:
        InputError: `path` is of another kind (`check_kind`).
        OSError: what the system says; `path` is then as it was, and nothing lies beside it.
    """
    with beside(path) as part:
        yield part
        for file in [each for each in part.rglob("*") if each.is_file()] if part.is_dir() else [part]:
            with suppress(PermissionError), file.open("rb") as written:
                os.fsync(written.fileno())  # what is renamed is on the disk
        check_kind(path, stat.S_IFMT(part.stat().st_mode))
        if path.is_dir():  # which a rename puts nothing in place of
            shutil.copymode(path, part)
            os.replace(path, part.with_name(f"{part.name}{_REPLACED}"))
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
        _give_up(draft, path.name, held)


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
            if not new:
                check_owner(draft)
            held = _held(draft)
        except BlockingIOError as error:
            raise InputError(
                f"another process is writing {path}: wait until it has ended, or choose another directory"
            ) from error
        except FileNotFoundError:  # it was taken away in between
            continue
        if new:
            break
        if held is None:
            raise InputError(
                f"{draft} is there, of a process that is writing {path} or was killed: remove it if none is at work"
            )
        try:
            put_right(draft / path.name)
            shutil.rmtree(draft)
        finally:
            os.close(held)
    try:
        yield draft / path.name
    finally:
        _give_up(draft, path.name, held)


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
        held = _held(directory.resolve())
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
        if ours(name):
            with suppress(OSError, InputError):  # at work, just taken away, or of others
                check_owner(draft)
                if (held := _held(draft)) is not None:
                    _give_up(draft, name, held)


def is_being_made(path: Path) -> bool:
    """Whether a process is writing something that will take the place of `path`, or others hold its draft's name."""
    for draft, name in _drafts(path.parent):
        if name == path.name:
            try:
                check_owner(draft)
                held = _held(draft)
            except (BlockingIOError, InputError):
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
        if found:
            yield draft, found[1]


def _held(folder: Path) -> int | None:
    """A lock on a folder, as a descriptor to be closed; None where the system has no locks there.

    Raises:
        BlockingIOError: another process holds it.
        FileNotFoundError: it is gone.
    """
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(held), os.lstat(folder)):
            raise FileNotFoundError(folder)
    except (BlockingIOError, FileNotFoundError):
        os.close(held)
        raise
    except OSError:  # a file system without locks
        os.close(held)
        return None
    return held


def _give_up(draft: Path, name: str, held: int | None) -> None:
    """Remove a draft, once the directory that it was to replace is back where a stop left nothing in its place."""
    try:
        replaced, place = draft / f"{name}{_REPLACED}", draft.with_name(name)
        if replaced.is_dir() and not replaced.is_symlink() and not os.path.lexists(place):
            os.replace(replaced, place)
        shutil.rmtree(draft, ignore_errors=True)
    finally:
        if held is not None:
            os.close(held)


class Growing:
    """A file that grows by whole pieces: one that does not fit on the disk is taken back."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(path, flags, 0o666), "ab", 0)

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
