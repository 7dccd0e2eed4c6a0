"""How do we cut long work so that any process can do it, and a stopped run can continue? Into lots.

A lot calls a function on plain values (a model, texts, settings) and returns totals. Its result, the shard, is kept in
a file under a hash of everything it depends on: the model as it runs, the text, the settings, the versions, our code.
Lots share nothing, so processes of this machine or workers of a cluster do them in any order. Only this process writes
shards (`using` says where). Work that decides what comes next waits for its lots.
"""

import hashlib
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from analyses.execution.cluster import Workers
from analyses.execution.encoding import decoded, encoded
from analyses.execution.processes import Call, Forks, count_of
from analyses.execution.provenance import code, hash_of
from interp import Model
from interp.errors import InputError
from interp.training.whole_files import check_owner, replacing, sweep

Progress = Callable[[int, int | None], object]  # how many lots are finished, and of how many
AHEAD = 64  # lots submitted before we wait for the first: their arguments must fit in memory


@dataclass(frozen=True)
class Shards:
    """Results of lots as files in a folder; without a folder nothing is kept.

    `content` is the hash of what all lots depend on. `known` holds hashes of models by `id`, so that no stage hashes a
    model again.
    """

    folder: Path | None = None
    content: str = ""
    known: Mapping[int, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"read": 0, "written": 0})  # by this run
    files: set[Path] = field(default_factory=set)  # read or written by this run

    @staticmethod
    def for_output(out: Path, content: Any, known: Mapping[int, str]) -> "Shards":
        """The shards of a run that writes `out`: beside it, so that `out` is whole or absent.

        An `InputError` if the folder is a link or belongs to another user.
        """
        folder = out.with_name(f".{out.name}.shards")
        check_owner(folder)
        return Shards(folder, hash_of([content, code()]), known)

    def path(self, lot: Sequence[Any]) -> Path | None:
        """The file of a lot's shard; None if nothing is kept or a part has no hash, such as a user's code."""
        with suppress(TypeError, InputError):
            return self.folder and self.folder / f"{hash_of([self.content, *lot], self.known)}.shard"
        return None

    def read(self, path: Path) -> bytes | None:
        """A shard's content; None if it is missing or damaged."""
        with suppress(OSError):
            content = path.read_bytes()
            if hashlib.sha256(memoryview(content)[32:]).digest() == content[:32]:
                self.counts["read"] += 1
                self.files.add(path)
                return content[32:]
        return None

    def write(self, path: Path, content: bytes) -> None:
        """Keep the result of a lot. A full disk keeps nothing and stops nothing."""
        with suppress(OSError), replacing(path) as part:
            part.write_bytes(hashlib.sha256(content).digest() + content)
        if path.exists():
            self.counts["written"] += 1
            self.files.add(path)

    def clear(self) -> None:
        """Remove the shards this run read or wrote, once its output is complete. Shards of other runs stay."""
        if self.folder is not None:
            with suppress(OSError):  # no shards, or other runs have some
                for path in self.files:
                    path.unlink(missing_ok=True)
                sweep(self.folder, lambda name: True)
                self.folder.rmdir()

    def others(self) -> int:
        """The number of shards in the folder that this run neither read nor wrote."""
        return 0 if self.folder is None else len({*self.folder.glob("*.shard")} - self.files)


class Setting:
    """Who does the lots, and where their results are kept.

    An `executor` does them. Without one, processes of this machine do; they hold `models` and live until the end.
    """

    def __init__(self, shards: Shards, executor: Executor | None = None, models: Sequence[Model] = ()):
        self.shards, self.executor, self.models = shards, executor, models
        self._forks: Forks | None = None

    def forks(self, function: Callable[..., Any]) -> Forks | None:
        """The long-lived processes; None if they cannot receive such a function."""
        if not self.models:
            return None
        if self._forks is None or not self._forks.alive:
            self.close()
            self._forks = Forks(self.models, count_of())
        try:
            if self._forks.n:
                self._forks.pack(function)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        return self._forks

    def close(self) -> None:
        """End the processes."""
        if self._forks is not None:
            self._forks.close()


_SETTING: ContextVar[Setting | None] = ContextVar("setting", default=None)


@contextmanager
def using(setting: Setting) -> Iterator[None]:
    """Within the block lots follow this setting; outside, each call starts processes of its own and keeps nothing."""
    token = _SETTING.set(setting)
    try:
        yield
    finally:
        _SETTING.reset(token)
        setting.close()


def do(
    function: Callable[..., Any],
    lots: Iterable[Sequence[Any]],
    progress: Progress | None = None,
    *,
    receive: Callable[[Any], object] | None = None,
) -> list[Any]:
    """The result of `function` for each lot's arguments, in order: read from a shard or computed now.

    With `receive`, each result is handed over and not listed, so that memory need not hold them all. `progress` gets
    the number of finished lots, and the number of all lots if it is known.
    """
    results, computes = list[Any](), False
    total = len(lots) if isinstance(lots, Sequence) else None
    with _workers(function) as begin:
        for n, (is_kept, result) in enumerate(_in_order(begin, lots)):
            if progress is not None and not (is_kept or computes):
                progress(n, total)  # reading shards says nothing about speed
            computes |= not is_kept
            (receive or results.append)(result())
            if progress is not None and (computes or n + 1 == total):
                progress(n + 1, total)
    return results


@contextmanager
def begun(function: Callable[..., Any], lots: Sequence[Sequence[Any]]) -> Iterator[list[Callable[[], Any]]]:
    """Start lots in the background; yields a function for each that waits for its result."""
    with _workers(function) as begin:
        yield [begin(lot)[1] for lot in lots]


Wait = tuple[bool, Callable[[], Any]]  # whether a shard exists, and a function that waits for the result
Begin = Callable[[Sequence[Any]], Wait]


@contextmanager
def _workers(function: Callable[..., Any]) -> Iterator[Begin]:
    """A function that submits a lot. Workers start only when there is a lot to compute."""
    setting = _SETTING.get() or Setting(Shards())
    shards, executor, temporary, key = setting.shards, setting.executor, list[Forks | Workers](), ""
    if shards.folder is not None:
        with suppress(TypeError, InputError):  # users' code has no hash
            key = hash_of(function, shards.known)
    shared: list[Forks] = []

    def workers() -> Forks | Workers:
        if not shared and not temporary:
            if executor is None and (forks := setting.forks(function)):
                shared.append(forks)
            else:
                temporary.append(Workers(executor, shards.known) if executor else Forks([function], count_of()))
        return (shared or temporary)[0]

    def begin(lot: Sequence[Any]) -> Wait:
        path = shards.path([key, *lot]) if key else None
        if path is not None and (content := shards.read(path)) is not None:
            return True, partial(decoded, content)
        keep = None if path is None else partial(shards.write, path)
        call: Call[bytes] = workers().submit(_perform, (function, *lot), keep)
        return False, lambda: decoded(call.result())

    try:
        yield begin
    finally:
        for pool in temporary:
            pool.close()


def _in_order(begin: Begin, lots: Iterable[Sequence[Any]]) -> Iterator[Wait]:
    waiting: deque[Wait] = deque()
    for lot in lots:
        waiting.append(begin(lot))
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def _perform(function: Callable[..., Any], *lot: Any) -> bytes:
    with using(Setting(Shards())), threadpool_limits(1, "blas"):  # kept whole; in one thread, so all processes agree
        return encoded(function(*lot))
