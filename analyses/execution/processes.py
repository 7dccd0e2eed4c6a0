"""How are several processor cores kept busy? By processes of one thread each, which take calls in turn.

Small products gain little from a second thread; calls that share nothing gain all of it. The processes are forks of
this one: they know what it knows by then, and only what they are sent and what they return is copied.
"""

import ctypes
import io
import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

import torch
from threadpoolctl import threadpool_limits

LIMIT = 16  # processes: each has memory of its own for what it measures
T = TypeVar("T")
Keep = Callable[[Any], object] | None
_KNOWN: dict[int, Sequence[Any]] = {}  # what forks know, by number
_NUMBERS = count()
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.h


class Packer(pickle.Pickler):
    """Packs tensors as arrays, for a fraction of the time, and what `reduce` knows in its own way."""

    def __init__(self, file: io.BytesIO, reduce: Callable[[Any], Any]):
        super().__init__(file)
        self.reduce = reduce

    def reducer_override(self, obj: Any) -> Any:
        """How a value is made again; NotImplemented: as it is by default."""
        if type(obj) is torch.Tensor and obj.device.type == "cpu" and obj.dtype != torch.bfloat16:
            return torch.from_numpy, (obj.detach().numpy(),)
        return self.reduce(obj)


def packed(value: Any, reduce: Callable[[Any], Any] = lambda obj: NotImplemented) -> bytes:
    """The value, pickled: for a pipe or a socket of our own, never for a file."""
    file = io.BytesIO()
    Packer(file, reduce).dump(value)
    return file.getvalue()


class Call(Generic[T]):
    """A call that was made elsewhere, or else is made when its result is asked for.

    `keep` is called with the result as soon as it is there.
    """

    def __init__(self, here: Callable[[], T], future: "Future[bytes] | None", read: Callable[[bytes], T], keep: Keep):
        self._here, self._future, self._read, self._keep = here, future, read, keep
        if future is not None and keep is not None:
            future.add_done_callback(self._done)

    def _done(self, future: "Future[bytes]") -> None:
        if self._keep is not None and not future.cancelled() and future.exception() is None:
            self._keep(self._read(future.result()))

    def result(self) -> T:
        """What the function returned; what a process that was killed did not do is done here."""
        if self._future is not None:
            with suppress(BrokenProcessPool):
                return self._read(self._future.result())
        value = self._here()
        if self._keep is not None:
            self._keep(value)
        return value


class Forks:
    """Processes that know some values, as they are when these begin; with none (`n` is 0) calls are made here.

    Whatever else a call holds is copied.
    """

    def __init__(self, known: Sequence[Any], n: int):
        self.known, self.n, self._number = known, n, next(_NUMBERS)
        self._places = {id(value): (_known, (self._number, place)) for place, value in enumerate(known)}
        self._pool, self._children = None, list[Any]()
        if n:
            _KNOWN[self._number] = known
            self._pool = ProcessPoolExecutor(n, multiprocessing.get_context("fork"), _begin)
            with warnings.catch_warnings():  # threads that are asleep: a fork has one of its own
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(int)  # starts them all
            self._children = [*(self._pool._processes or {}).values()]  # which has no public name before Python 3.14

    @property
    def alive(self) -> bool:
        """Whether none was killed: then the others do nothing more either."""
        return all(child.is_alive() for child in self._children)

    def pack(self, value: Any) -> bytes:
        """The value as processes are sent it; what cannot be copied is a `PicklingError`, as are models not known."""

        def reduce(obj: Any) -> Any:
            if isinstance(obj, torch.nn.Module) and hasattr(obj, "config") and id(obj) not in self._places:
                raise pickle.PicklingError("a model")
            return self._places.get(id(obj), NotImplemented)

        return packed(value, reduce)

    def submit(self, function: Callable[..., Any], arguments: Sequence[Any], keep: Keep = None) -> Call[Any]:
        """Begin a call."""
        here, future = partial(function, *arguments), None
        if self._pool is not None:
            here = partial(_in_one_thread, here)
            with suppress(BrokenProcessPool):
                future = self._pool.submit(_call, self.pack((function, arguments)))
        return Call(here, future, pickle.loads, keep)  # from our own fork

    def close(self) -> None:
        """End the processes, whatever they are at."""
        _KNOWN.pop(self._number, None)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for child in self._children:
                child.terminate()
            for child in self._children:
                wait([child.sentinel])  # another thread may be told first by `join`


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits is stopped, and ends this one
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    torch.set_num_threads(1)  # threads do not outlive a fork
    threadpool_limits(1)  # and numpy's would be more than there are cores for


def _known(number: int, place: int) -> Any:
    return _KNOWN[number][place]


def _call(content: bytes) -> bytes:
    function, arguments = pickle.loads(content)  # over pipes of our own
    return packed(function(*arguments))


def _in_one_thread(call: Callable[[], T]) -> T:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as everywhere, so that all agree
    try:
        return call()
    finally:
        torch.set_num_threads(threads)


def count_of(calls: int = LIMIT) -> int:
    """How many processes would share so many calls: as many as torch may have threads; 0 where all are made here.

    That is where a GPU is in use, the system is another than Linux, or this is such a process itself.
    """
    is_fork = multiprocessing.parent_process() is not None
    forks = sys.platform == "linux" and not torch.cuda.is_initialized() and not is_fork
    n = min(calls, torch.get_num_threads(), LIMIT) if forks else 0
    return n if n > 1 else 0


@contextmanager
def begun(tasks: Sequence[Callable[[], T]]) -> Iterator[Callable[[], list[T]]]:
    """Processes begin with `tasks` while this one goes on; what is yielded waits for what they return, in order.

    What tasks change is lost, and what one raises is raised where it is waited for.
    """

    def done(number: int) -> T:
        return tasks[number]()

    forks = Forks([done], count_of(len(tasks) + 1) if tasks else 0)
    try:
        calls = [forks.submit(done, [number]) for number in range(len(tasks))]
        yield lambda: [call.result() for call in calls]
    finally:
        forks.close()


def all_of(tasks: Iterable[Callable[[], T]]) -> list[T]:
    """What each of `tasks` returns, in their order; several at once where threads are allowed to torch."""
    with begun([*tasks]) as ended:
        return ended()
