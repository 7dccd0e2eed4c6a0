"""How are several processor cores kept busy? By processes, each with one thread, that take what is to be done in turn.

Small products gain little from a second thread, and lose where threads wait for each other; pieces of work that share
nothing gain all of it. The processes are forks of this one: they see all that it knows, and only results are copied.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from threadpoolctl import threadpool_limits

MOST = 16  # processes: each has memory of its own for what it measures
T = TypeVar("T")


class _Counts(NamedTuple):
    """How many tasks somebody has begun with, and how many other processes have done; in memory that they share."""

    begun: Any
    done: Any


def side_by_side(tasks: Sequence[Callable[[], T]], done: Callable[[int], object] | None = None) -> list[T]:
    """What each of `tasks` returns, in their order; several at once where threads are allowed to torch.

    What tasks change is lost: they must return it. What one raises is raised here. A task whose process is killed runs
    again in this one. Where processes cannot be forked safely (a GPU in use, another system than Linux, a worker of a
    pool) or torch may have one thread only, tasks run here, one after the other.

    Args:
        tasks: pieces of work that do not depend on each other, and whose results can be pickled.
        done: called with the number of tasks that have ended, as they end.
    """
    count = processes(len(tasks))
    with _workers(tasks, count if count > 1 else 0) as (receivers, _):
        results = _received(receivers, done)
    return _whole(tasks, results, done)


class Elsewhere(Generic[T]):
    """Tasks that other processes have begun with; called for what each returned, in their order.

    This process then does those that nobody has begun, and waits for the rest.
    """

    def __init__(self, tasks: Sequence[Callable[[], T]], receivers: Sequence[Connection], counts: "_Counts | None"):
        self._tasks, self._receivers, self._counts = tasks, receivers, counts
        self._threads, self._found = torch.get_num_threads(), list[T]()

    def take_back(self) -> None:
        """Have the threads again that other processes had, if these have done all tasks."""
        if self._counts is None or self._counts.done.value >= len(self._tasks):
            torch.set_num_threads(self._threads)

    def __call__(self) -> list[T]:
        """What all tasks returned."""
        if not self._found:
            results: dict[int, T] = {}
            torch.set_num_threads(self._threads)
            while self._counts is not None and (number := _next(self._counts)) < len(self._tasks):
                results[number] = self._tasks[number]()
            self._found = _whole(self._tasks, results | _received(self._receivers))
        return self._found


@contextmanager
def meanwhile(tasks: Sequence[Callable[[], T]], *, crowded: bool = False) -> Iterator[Elsewhere[T]]:
    """Other processes begin with `tasks` while this one goes on, with the threads that they leave to it.

    What is yielded is called for what the tasks returned. Where there is no other process, this one does them then. For
    the rest as `side_by_side`.

    Args:
        tasks: as of `side_by_side`.
        crowded: this process keeps all its threads, and there is one process more for every two of them: what goes on
            has processes of its own, and stretches in which only one of them is busy.
    """
    threads = torch.get_num_threads()
    free = (threads + 1) // 2 if crowded else threads - 1
    others = min(len(tasks), free, MOST) if processes(len(tasks) + 1) > 1 else 0
    with _workers(tasks, others) as (receivers, counts):
        ended = Elsewhere(tasks, receivers, counts)
        torch.set_num_threads(threads if crowded else threads - len(receivers))
        try:
            yield ended
        finally:
            torch.set_num_threads(threads)


def processes(tasks: int) -> int:
    """How many processes would take so many tasks: as many as torch may have threads; 1 is this one."""
    forks = sys.platform == "linux" and not torch.cuda.is_initialized()
    forks = forks and not multiprocessing.current_process().daemon  # as a pool's workers, which may start none
    return min(tasks, torch.get_num_threads(), MOST) if forks else 1


def _received(receivers: Sequence[Connection], done: Callable[[int], object] | None = None) -> dict[int, Any]:
    """What processes send until they have ended, by the number of its task."""
    results: dict[int, Any] = {}
    open_ends = [*receivers]
    while open_ends:
        for end in wait(open_ends):
            assert isinstance(end, Connection)
            try:
                number, (value, error) = pickle.loads(end.recv_bytes())  # from our own fork, over a pipe of its own
            except EOFError:
                open_ends.remove(end)
                continue
            if error is not None:
                raise error
            results[number] = value
            if done is not None:
                done(len(results))
    return results


def _whole(
    tasks: Sequence[Callable[[], T]], found: dict[int, T], done: Callable[[int], object] | None = None
) -> list[T]:
    """What all tasks returned; those that no process has done are done here."""
    for number, task in enumerate(tasks):
        if number not in found:
            found[number] = task()
            if done is not None:
                done(len(found))
    return [found[number] for number in range(len(tasks))]


@contextmanager
def _workers(tasks: Sequence[Callable[[], object]], count: int) -> Iterator[tuple[list[Connection], _Counts | None]]:
    """So many processes at work on the tasks, by what they send, and how far they are; none of them is left."""
    if not count:
        yield [], None
        return
    fork = multiprocessing.get_context("fork")
    counts = _Counts(fork.Value("q", 0), fork.Value("q", 0))
    started: list[BaseProcess] = []
    receivers: list[Connection] = []
    try:
        for _ in range(count):
            receiver, sender = fork.Pipe(duplex=False)
            worker = fork.Process(target=_work, args=(tasks, counts, sender, os.getpid()), daemon=True)
            with warnings.catch_warnings():  # threads that are asleep: a fork has one of its own
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            sender.close()
            started.append(worker)
            receivers.append(receiver)
        yield receivers, counts
    finally:
        for worker in started:
            worker.terminate()
            worker.join()


def _next(counts: _Counts) -> int:
    """The number of the next task that nobody has begun."""
    with counts.begun.get_lock():
        number, counts.begun.value = counts.begun.value, counts.begun.value + 1
    return number


def _work(tasks: Sequence[Callable[[], object]], counts: _Counts, sender: Connection, parent: int) -> None:
    """Take the next task as long as there is one, and somebody who waits for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits is stopped, and ends this one
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)
    torch.set_num_threads(1)  # threads do not outlive a fork
    threadpool_limits(1)  # and numpy's would be more than there are cores for
    with ThreadPoolExecutor(1) as sending:  # who reads may be busy, and a pipe holds little
        while os.getppid() == parent and (number := _next(counts)) < len(tasks):
            try:
                said = tasks[number](), None
            except Exception as error:
                said = None, error  # raised where the result is waited for
            with counts.done.get_lock():
                counts.done.value += 1
            try:
                sent = pickle.dumps((number, said))
            except Exception:
                return  # what cannot be copied is done there
            sending.submit(sender.send_bytes, sent)
