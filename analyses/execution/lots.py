"""How is long work cut, done anywhere, and gone on with after a stop? In lots.

A lot is a call of a function of plain values (a model, texts, settings) that returns totals. What it returned, its
shard, is kept in a file under a hash of all that it depends on: the model as it runs, the text, the settings, the
versions, our own code. Lots share nothing, so they are done in any order, by processes of this machine or by the
workers of a cluster; this process alone writes shards (`using` says where). Work that decides what comes next waits
for its lots.
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

from analyses.execution.cluster import Workers
from analyses.execution.encoding import decoded, encoded
from analyses.execution.processes import Call, Forks, count_of
from analyses.execution.provenance import code, hash_of
from interp import Model
from interp.errors import InputError
from interp.training.whole_files import check_owner, replacing, sweep

Progress = Callable[[int, int | None], object]  # how many lots are there, and of how many
AHEAD = 64  # lots that are begun before the first is waited for: what they are given must fit in memory


@dataclass(frozen=True)
class Shards:
    """What lots returned, in files of a folder; None: nothing is kept.

    `content` is the hash of what all of them depend on, `known` the hashes of models by their `id`, so that none is
    hashed at every stage.
    """

    folder: Path | None = None
    content: str = ""
    known: Mapping[int, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"read": 0, "written": 0})  # by this run
    files: set[Path] = field(default_factory=set)  # that this run read or wrote

    @staticmethod
    def for_output(out: Path, content: Any, known: Mapping[int, str]) -> "Shards":
        """Those of a run that writes `out`: beside it, so that `out` is whole or not there.

        An `InputError` where their folder is a link, or another user's.
        """
        folder = out.with_name(f".{out.name}.shards")
        check_owner(folder)
        return Shards(folder, hash_of([content, code()]), known)

    def path(self, lot: Sequence[Any]) -> Path | None:
        """Where the shard of a lot lies; None where nothing is kept, or a part of it has no hash, as code of a user."""
        with suppress(TypeError, InputError):
            return self.folder and self.folder / f"{hash_of([self.content, *lot], self.known)}.shard"
        return None

    def read(self, path: Path) -> bytes | None:
        """A shard that is whole; None where there is none."""
        with suppress(OSError):
            content = path.read_bytes()
            if hashlib.sha256(memoryview(content)[32:]).digest() == content[:32]:
                self.counts["read"] += 1
                self.files.add(path)
                return content[32:]
        return None

    def write(self, path: Path, content: bytes) -> None:
        """Keep what a lot returned. A full disk keeps nothing, and stops nothing."""
        with suppress(OSError), replacing(path) as part:
            part.write_bytes(hashlib.sha256(content).digest() + content)
        if path.exists():
            self.counts["written"] += 1
            self.files.add(path)

    def clear(self) -> None:
        """Remove those that this run read or wrote: what they were kept for stands. Those of others stay."""
        if self.folder is not None:
            with suppress(OSError):  # none was kept, or there are others'
                for path in self.files:
                    path.unlink(missing_ok=True)
                sweep(self.folder, lambda name: True)
                self.folder.rmdir()

    def others(self) -> int:
        """How many shards lie there that this run neither read nor wrote."""
        return 0 if self.folder is None else len({*self.folder.glob("*.shard")} - self.files)


class Setting:
    """Where lots are done, and where what they return is kept.

    An `executor` does them, or else processes of this machine, which know `models` and go on until the end.
    """

    def __init__(self, shards: Shards, executor: Executor | None = None, models: Sequence[Model] = ()):
        self.shards, self.executor, self.models = shards, executor, models
        self._forks: Forks | None = None

    def forks(self, function: Callable[..., Any]) -> Forks | None:
        """The processes that go on, if they can be sent such a function."""
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
    """Within, lots are done and kept as this says; else by processes that each call begins, and not kept."""
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
    """What `function` returns of the arguments of each lot, in their order: found in a shard, or done now.

    With `receive` results are handed on one by one and not listed, so that memory need not hold them all. `progress` is
    called with the number of lots that are there, and that of all where it is known.
    """
    results, has_new = list[Any](), False
    total = len(lots) if isinstance(lots, Sequence) else None
    with _workers(function) as begin:
        for n, (is_found, result) in enumerate(_in_order(begin, lots)):
            if progress is not None and not (is_found or has_new):
                progress(n, total)  # those that were found tell nothing of how fast it goes
            has_new |= not is_found
            (receive or results.append)(result())
            if progress is not None and (has_new or n + 1 == total):
                progress(n + 1, total)
    return results


@contextmanager
def begun(function: Callable[..., Any], lots: Sequence[Sequence[Any]]) -> Iterator[list[Callable[[], Any]]]:
    """Lots that are done while this process goes on; each of what is yielded waits for what one returned."""
    with _workers(function) as begin:
        yield [begin(lot)[1] for lot in lots]


Wait = tuple[bool, Callable[[], Any]]  # whether a shard was found, and what waits for the result
Begin = Callable[[Sequence[Any]], Wait]


@contextmanager
def _workers(function: Callable[..., Any]) -> Iterator[Begin]:
    """What begins a lot, and returns what waits for its result; workers are asked for once there is a lot to do."""
    setting = _SETTING.get() or Setting(Shards())
    shards, executor, own, key = setting.shards, setting.executor, list[Forks | Workers](), ""
    if shards.folder is not None:
        with suppress(TypeError, InputError):  # code of the user's own has no hash
            key = hash_of(function, shards.known)
    shared: list[Forks] = []

    def workers() -> Forks | Workers:
        if not shared and not own:
            if executor is None and (forks := setting.forks(function)):
                shared.append(forks)
            else:
                own.append(Workers(executor, shards.known) if executor else Forks([function], count_of()))
        return (shared or own)[0]

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
        for each in own:
            each.close()


def _in_order(begin: Begin, lots: Iterable[Sequence[Any]]) -> Iterator[Wait]:
    waiting: deque[Wait] = deque()
    for lot in lots:
        waiting.append(begin(lot))
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def _perform(function: Callable[..., Any], *lot: Any) -> bytes:
    with using(Setting(Shards())):  # a lot is kept as a whole
        return encoded(function(*lot))
