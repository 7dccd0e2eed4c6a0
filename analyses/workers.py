"""Work that falls into independent parts, shared out among processes where a machine has cores for them.

Small matrices leave several threads of one process waiting for one another; a process a core does not wait.
"""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch

from interp import InputError

Part = TypeVar("Part")
Found = TypeVar("Found")


def shared_out(
    work: Callable[[Part], Found], parts: Sequence[Part], device: torch.device | None = None
) -> Iterator[Found]:
    """What `work` finds of each part, in order.

    As many processes as torch has threads take parts in turn, each with one thread. They are forked, so `work` and the
    parts may be anything; what is found is pickled. Where nothing can be forked safely (on an accelerator, outside
    Linux) or there is one thread, this process does all of it.

    Args:
        work: does one part, and depends on nothing that changes meanwhile.
        parts: what to do.
        device: where it is done; None is the processor.

    Raises:
        InputError: the system ended a process, as it does where memory runs out; and whatever `work` raises.
    """
    processes = min(torch.get_num_threads(), len(parts))
    if processes < 2 or sys.platform != "linux" or (device is not None and device.type != "cpu"):
        yield from map(work, parts)
        return
    pool = ProcessPoolExecutor(processes, get_context("fork"), initializer=_begin, initargs=(work, parts, os.getpid()))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            waiting = [pool.submit(_part, at) for at in range(len(parts))]
        for each in waiting:
            yield each.result()
    except BrokenProcessPool as error:
        raise InputError(
            "the system ended one of the processes that share the work, perhaps for want of memory: set "
            "OMP_NUM_THREADS lower, or to 1 for a single process"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_mine: tuple[Callable[[Any], Any], Sequence[Any]]  # of a worker: set when it begins


def _begin(work: Callable[[Any], Any], parts: Sequence[Any], parent: int) -> None:
    global _mine  # noqa: PLW0603 (a worker is told once, not with every part)
    torch.set_num_threads(1)  # threads of the process that was forked are not there
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word: the process it works for says what
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (a thread that drew progress may hold the others)
    Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _mine = work, parts


def _leave_with(parent: int) -> None:
    """End this process when the one that it works for has ended, even by a kill, after which nobody tells it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _part(at: int) -> Any:
    work, parts = _mine
    return work(parts[at])
