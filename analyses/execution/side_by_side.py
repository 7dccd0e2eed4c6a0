"""How are several processor cores kept busy? By processes, each with one thread, that take what is to be done in turn.

Small products gain little from a second thread; pieces of work that share nothing gain all of it. The processes are
forks of this one: they see all that it knows, and only results are copied.
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
from typing import Generic, TypeVar

import torch
from threadpoolctl import threadpool_limits

LIMIT = 16  # processes: each has memory of its own for what it measures
Progress = Callable[[int], object] | None
T = TypeVar("T")


def side_by_side(tasks: Sequence[Callable[[], T]], progress: Progress = None) -> list[T]:
    """What each of `tasks` returns, in their order; several at once where threads are allowed to torch.

    What tasks change is lost, and what one raises is raised here. What cannot be done by another process, or copied
    from it, is done here. `progress` is called with the number of tasks that have ended.
    """
    count = processes(len(tasks))
    with Workers(tasks, count if count > 1 else 0) as workers:
        workers.receive(progress)
    return workers.whole(progress)


class Workers(Generic[T]):
    """Tasks that other processes have begun with; called for what each returned, in their order.

    This process then does those that nobody has begun, and waits for the rest.
    """

    def __init__(self, tasks: Sequence[Callable[[], T]], count: int):
        self.tasks, self._threads = tasks, torch.get_num_threads()
        self._begun, self._done = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
        self._results: dict[int, T] = {}
        self._processes: list[BaseProcess] = []
        self.receivers: list[Connection] = []
        for _ in range(count):
            fork = multiprocessing.get_context("fork")
            receiver, sender = fork.Pipe(duplex=False)
            worker = fork.Process(target=self._work, args=(sender, os.getpid()), daemon=True)
            with warnings.catch_warnings():  # threads that are asleep: a fork has one of its own
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            sender.close()
            self._processes.append(worker)
            self.receivers.append(receiver)

    def __call__(self) -> list[T]:
        """What all tasks returned."""
        torch.set_num_threads(self._threads)
        while self.receivers and (number := self._next()) < len(self.tasks):
            self._results[number] = self.tasks[number]()
        self.receive()
        return self.whole()

    def take_back(self) -> None:
        """Have the threads again that other processes had, if these have done all tasks."""
        if not self.receivers or self._done.value >= len(self.tasks):
            torch.set_num_threads(self._threads)

    def receive(self, progress: Progress = None) -> None:
        """Take in what processes send until they have ended."""
        while self.receivers:
            for end in wait(self.receivers):
                assert isinstance(end, Connection)
                try:
                    number, (value, error) = pickle.loads(end.recv_bytes())  # from our own fork, over a pipe of its own
                except EOFError:
                    self.receivers.remove(end)
                    continue
                if error is not None:
                    raise error
                self._results[number] = value
                if progress is not None:
                    progress(len(self._results))

    def whole(self, progress: Progress = None) -> list[T]:
        """What all tasks returned; those that no process has done are done here."""
        for number, task in enumerate(self.tasks):
            if number not in self._results:
                self._results[number] = task()
                if progress is not None:
                    progress(len(self._results))
        return [self._results[number] for number in range(len(self.tasks))]

    def __enter__(self) -> "Workers[T]":
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._processes:  # none is left at work
            worker.terminate()
            worker.join()

    def _next(self) -> int:
        """The number of the next task that nobody has begun."""
        with self._begun.get_lock():
            number, self._begun.value = self._begun.value, self._begun.value + 1
        return number

    def _work(self, sender: Connection, parent: int) -> None:
        """Take the next task as long as there is one, and somebody who waits for it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits is stopped, and ends this one
        for stop in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(stop, signal.SIG_DFL)
        torch.set_num_threads(1)  # threads do not outlive a fork
        threadpool_limits(1)  # and numpy's would be more than there are cores for
        with ThreadPoolExecutor(1) as sending:  # who reads may be busy, and a pipe holds little
            while os.getppid() == parent and (number := self._next()) < len(self.tasks):
                try:
                    outcome = self.tasks[number](), None
                except Exception as error:
                    outcome = None, error  # raised where the result is waited for
                with self._done.get_lock():
                    self._done.value += 1
                try:
                    content = pickle.dumps((number, outcome))
                except Exception:
                    return  # what cannot be copied is done there
                sending.submit(sender.send_bytes, content)


@contextmanager
def meanwhile(tasks: Sequence[Callable[[], T]], *, crowded: bool = False) -> Iterator[Workers[T]]:
    """Other processes begin with `tasks` while this one goes on, with the threads that they leave to it.

    What is yielded is called for what the tasks returned; for the rest as `side_by_side`. Where it is `crowded`, this
    process keeps all its threads, and there is one process more for every two of them: what goes on has processes of
    its own, and stretches in which only one of them is busy.
    """
    threads = torch.get_num_threads()
    free = (threads + 1) // 2 if crowded else threads - 1
    count = min(len(tasks), free, LIMIT) if processes(len(tasks) + 1) > 1 else 0
    with Workers(tasks, count) as workers:
        torch.set_num_threads(threads if crowded else threads - count)
        try:
            yield workers
        finally:
            torch.set_num_threads(threads)


def processes(tasks: int) -> int:
    """How many processes would take so many tasks: as many as torch may have threads; 1 is this one.

    It is 1 where a GPU is in use, the system is another than Linux, or this is a worker of a pool.
    """
    is_worker = multiprocessing.current_process().daemon
    forks = sys.platform == "linux" and not torch.cuda.is_initialized() and not is_worker
    return min(tasks, torch.get_num_threads(), LIMIT) if forks else 1
