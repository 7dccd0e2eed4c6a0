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
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

MOST = 16  # processes: each has memory of its own for what it measures
T = TypeVar("T")


def side_by_side(tasks: Sequence[Callable[[], T]], done: Callable[[int], object] | None = None) -> list[T]:
    """What each of `tasks` returns, in their order; several at once where threads are allowed to torch.

    What tasks change is lost: they must return it. What one raises is raised here. A task whose process is killed runs
    again in this one. Where processes cannot be forked safely (a GPU in use, another system than Linux) or torch may
    have one thread only, tasks run here, one after the other.

    Args:
        tasks: pieces of work that do not depend on each other, and whose results can be pickled.
        done: called with the number of tasks that have ended, as they end.
    """
    found: dict[int, T] = {}
    say = done or (lambda count: None)
    with _workers(tasks) as receivers:
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
                found[number] = value
                say(len(found))
    for number, task in enumerate(tasks):
        if number not in found:
            found[number] = task()
            say(len(found))
    return [found[number] for number in range(len(tasks))]


def processes(tasks: int) -> int:
    """How many processes would take so many tasks: as many as torch may have threads; 1 is this one."""
    forks = sys.platform == "linux" and not torch.cuda.is_initialized()
    return min(tasks, torch.get_num_threads(), MOST) if forks else 1


@contextmanager
def _workers(tasks: Sequence[Callable[[], object]]) -> Iterator[list[Connection]]:
    """Processes at work on the tasks, by what they send; none of them is left."""
    count = processes(len(tasks))
    if count < 2:
        yield []
        return
    fork = multiprocessing.get_context("fork")
    following = fork.Value("q", 0)
    started: list[BaseProcess] = []
    receivers: list[Connection] = []
    try:
        for _ in range(count):
            receiver, sender = fork.Pipe(duplex=False)
            worker = fork.Process(target=_work, args=(tasks, following, sender, os.getpid()), daemon=True)
            with warnings.catch_warnings():  # threads that are asleep: a fork has one of its own
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            sender.close()
            started.append(worker)
            receivers.append(receiver)
        yield receivers
    finally:
        for worker in started:
            worker.terminate()
            worker.join()


def _work(tasks: Sequence[Callable[[], object]], following: Any, sender: Connection, parent: int) -> None:
    """Take the next task as long as there is one, and somebody who waits for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits is stopped, and ends this one
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)
    torch.set_num_threads(1)  # threads do not outlive a fork
    while os.getppid() == parent:
        with following.get_lock():
            number, following.value = following.value, following.value + 1
        if number >= len(tasks):
            return
        try:
            said = tasks[number](), None
        except Exception as error:
            said = None, error  # raised where the result is waited for
        try:
            sent = pickle.dumps((number, said))
        except Exception:
            return  # what cannot be copied is done there
        sender.send_bytes(sent)
