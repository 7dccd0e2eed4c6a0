"""How are several processor cores kept busy? By processes of one thread each, which take calls in turn.

Small products gain little from a second thread; independent calls gain all of it. The processes are forks: they share
what this process knows at the start, and only what they receive and return is copied.
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

LIMIT = 16  # processes; each needs its own memory
T = TypeVar("T")
Keep = Callable[[Any], object] | None
_KNOWN: dict[int, Sequence[Any]] = {}  # what forks know, by number
_NUMBERS = count()
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.h


class Packer(pickle.Pickler):
    """Pickles tensors as arrays, which is much faster, and other values as `reduce` says."""

    def __init__(self, file: io.BytesIO, reduce: Callable[[Any], Any]):
        super().__init__(file)
        self.reduce = reduce

    def reducer_override(self, obj: Any) -> Any:
        """How to rebuild a value; NotImplemented means the default way."""
        if type(obj) is torch.Tensor and obj.device.type == "cpu" and obj.dtype != torch.bfloat16:
            return torch.from_numpy, (obj.detach().numpy(),)
        return self.reduce(obj)


def packed(value: Any, reduce: Callable[[Any], Any] = lambda obj: NotImplemented) -> bytes:
    """The pickled value: only for a pipe or socket of our own, never for a file."""
    file = io.BytesIO()
    Packer(file, reduce).dump(value)
    return file.getvalue()


class Call(Generic[T]):
    """A call made elsewhere, or made here when its result is requested.

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
        """What the function returned; if its process was killed, the call is made here."""
        if self._future is not None:
            with suppress(BrokenProcessPool):
                return self._read(self._future.result())
        value = self._here()
        if self._keep is not None:
            self._keep(value)
        return value


class Forks:
    """Processes that share `known` values as of their start; without processes (`n` is 0), calls are made here.

    Everything else in a call is copied.
    """

    def __init__(self, known: Sequence[Any], n: int):
        self.known, self.n, self._number = known, n, next(_NUMBERS)
        self._places = {id(value): (_known, (self._number, place)) for place, value in enumerate(known)}
        self._pool, self._children = None, list[Any]()
        if n:
            _KNOWN[self._number] = known
            self._pool = ProcessPoolExecutor(n, multiprocessing.get_context("fork"), _begin)
            with warnings.catch_warnings():  # about sleeping threads: a fork has only one of its own
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(int)  # starts them all
            self._children = [*(self._pool._processes or {}).values()]  # no public name before Python 3.14

    @property
    def alive(self) -> bool:
        """Whether no process was killed; after that, none of them works."""
        return all(child.is_alive() for child in self._children)

    def pack(self, value: Any) -> bytes:
        """Pickle a value for the processes; a `PicklingError` for what cannot be copied, and models not in `known`."""

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
        """End the processes, even if they are busy."""
        _KNOWN.pop(self._number, None)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for child in self._children:
                child.terminate()
            for child in self._children:
                wait([child.sentinel])  # with `join`, another thread may get the exit code first


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C interrupts the waiting process, which ends this one
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    torch.set_num_threads(1)  # threads do not outlive a fork
    threadpool_limits(1)  # numpy's threads would outnumber the cores


def _known(number: int, place: int) -> Any:
    return _KNOWN[number][place]


def _call(content: bytes) -> bytes:
    function, arguments = pickle.loads(content)  # over pipes of our own
    return packed(function(*arguments))


def _in_one_thread(call: Callable[[], T]) -> T:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in every process, so that results agree
    try:
        return call()
    finally:
        torch.set_num_threads(threads)


def count_of(calls: int = LIMIT) -> int:
    """How many processes to use for that many calls: up to torch's number of threads, 0 if all calls are made here.

    It is 0 if a GPU is in use, outside Linux, or within such a process.
    """
    is_fork = multiprocessing.parent_process() is not None
    forks = sys.platform == "linux" and not torch.cuda.is_initialized() and not is_fork
    n = min(calls, torch.get_num_threads(), LIMIT) if forks else 0
    return n if n > 1 else 0


@contextmanager
def begun(tasks: Sequence[Callable[[], T]]) -> Iterator[Callable[[], list[T]]]:
    """Start `tasks` in processes while this one continues; the yielded function waits for their results, in order.

    Changes that tasks make are lost; their errors are raised when waiting.
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
    """The results of `tasks`, in order; several run at once if torch may use several threads."""
    with begun([*tasks]) as ended:
        return ended()
