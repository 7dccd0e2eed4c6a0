"""Files that are whole or absent: written in a draft, a hidden and locked folder, and then renamed.

The system releases a lock when its process ends, so a draft without a lock was left by a killed process.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from interp.errors import InputError

_DRAFT, _REPLACED = ".interp-draft", ".old"
_KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}


def file_above(path: Path) -> Path | None:
    """The nearest existing parent of a path that is not a directory, so that nothing can be written below it."""
    return next((above for above in path.parents if above.exists() and not above.is_dir()), None)


def check_kind(path: Path, kind: int = stat.S_IFREG) -> None:
    """Refuse to replace anything but a file by a file, or a directory (`stat.S_IFDIR`) by a directory."""
    if os.path.lexists(path) and (present := stat.S_IFMT(path.lstat().st_mode)) != kind:
        raise InputError(f"{path} is {_KINDS.get(present, 'a device')}: expected the name of {_KINDS[kind]}")


def check_owner(path: Path) -> None:
    """Refuse a link, or another user's file, under a name that others can guess.

    On some disks one user owns all files, so the owner of the parent folder is accepted.
    """
    if not os.path.lexists(path):
        return
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise InputError(f"{path} is a link, where interp keeps files of its own: remove it, or choose another place")
    if hasattr(os, "geteuid") and status.st_uid not in {os.geteuid(), path.parent.stat().st_uid}:
        raise InputError(f"{path} belongs to another user: remove it, or choose another place")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft of a file or directory, which replaces `path` when the block ends without an error.

    After an `InputError` (`check_kind`) or an `OSError` `path` is as before, with nothing beside it.
    """
    with drafting(path) as part:
        yield part
        for file in [entry for entry in part.rglob("*") if entry.is_file()] if part.is_dir() else [part]:
            with suppress(PermissionError), file.open("rb") as written:
                os.fsync(written.fileno())  # on disk before the rename
        check_kind(path, stat.S_IFMT(part.stat().st_mode))
        if path.is_dir():  # a rename cannot replace it
            shutil.copymode(path, part)
            os.replace(path, part.with_name(f"{part.name}{_REPLACED}"))
        os.replace(part, path)


@contextmanager
def drafting(path: Path) -> Iterator[Path]:
    """A path of the same name in a new draft beside `path`; the draft is removed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_DRAFT, dir=path.parent))
            with suppress(InputError, FileNotFoundError):  # a sweep has just taken it
                stack.enter_context(_locked(draft))
                break
        stack.enter_context(_removing(draft, path.name))
        yield draft / path.name


@contextmanager
def alone(path: Path, put_right: Callable[[Path], None] = lambda part: None) -> Iterator[Path]:
    """As `drafting`, but refused while another process writes; `put_right` gets a killed one's draft, then it goes."""
    draft, is_new = path.with_name(f".{path.name}{_DRAFT}"), False
    with ExitStack() as stack:
        while True:
            try:
                draft.mkdir(mode=0o700)
                is_new = True
            except FileExistsError:
                check_owner(draft)
            with suppress(FileNotFoundError):  # removed meanwhile
                is_locked = stack.enter_context(_locked(draft, f"is writing {path}"))
                break
        if not is_new:
            if not is_locked:
                raise InputError(f"{draft} is there: remove it if no process is writing {path}")
            put_right(draft / path.name)
            for entry in draft.iterdir():
                entry.unlink() if entry.is_symlink() or not entry.is_dir() else shutil.rmtree(entry)
        stack.enter_context(_removing(draft, path.name))
        yield draft / path.name


@contextmanager
def holding(directory: Path, task: str) -> Iterator[None]:
    """Let one process at a time do `task` in `directory`; new folders that stay empty are removed again."""
    created = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory.resolve(), f"{task} {directory}"):
        try:
            yield
        finally:
            for folder in created:
                with suppress(OSError):  # not empty
                    folder.rmdir()


def sweep_beside(path: Path) -> None:
    """Remove the drafts of `path` whose processes have ended."""
    sweep(path.parent, lambda name: name == path.name)


def sweep(directory: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the drafts in `directory` whose processes have ended, if their target's name `is_ours`."""
    for draft, name in _drafts(directory):
        if is_ours(name):
            with suppress(OSError, InputError):  # in use, just removed, or another user's
                check_owner(draft)
                with _locked(draft) as is_locked, _removing(draft, name) if is_locked else nullcontext():
                    pass


def is_being_made(path: Path) -> bool:
    """Whether a process is writing a draft of `path`, or another user owns the draft's name."""
    for draft in [draft for draft, name in _drafts(path.parent) if name == path.name]:
        try:
            with suppress(OSError):
                check_owner(draft)
                with _locked(draft):
                    pass
        except InputError:
            return True
    return False


def is_draft(path: Path) -> bool:
    """Whether this is a draft."""
    return path.name.endswith(_DRAFT)


def _drafts(directory: Path) -> Iterator[tuple[Path, str]]:
    for draft in directory.glob(f".*{_DRAFT}"):
        if match := re.fullmatch(rf"\.(.+?)(\.[a-z0-9_]{{8}})?{re.escape(_DRAFT)}", draft.name):
            yield draft, match[1]


@contextmanager
def _locked(folder: Path, doing: str = "is at work") -> Iterator[bool]:
    """Hold the only lock on a folder; False if the file system has no locks."""
    from filelock import lock_descriptor  # noqa: PLC0415 (slow to import, and only writers need it)

    if not hasattr(os, "O_DIRECTORY"):  # Windows
        yield False
        return
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        is_free = None
        with suppress(OSError):  # a file system without locks
            is_free = lock_descriptor(lock, blocking=False)
        if is_free is False:
            raise InputError(f"another process {doing}: wait until it has ended, or choose another directory")
        if is_free and not os.path.samestat(os.fstat(lock), os.lstat(folder)):
            raise FileNotFoundError(folder)
        yield bool(is_free)
    finally:
        os.close(lock)


@contextmanager
def _removing(draft: Path, name: str) -> Iterator[None]:
    """In the end remove a draft; put back a directory that it was replacing, if nothing has taken its place."""
    try:
        yield
    finally:
        replaced, place = draft / f"{name}{_REPLACED}", draft.with_name(name)
        if replaced.is_dir() and not replaced.is_symlink() and not os.path.lexists(place):
            os.replace(replaced, place)
        shutil.rmtree(draft, ignore_errors=True)
