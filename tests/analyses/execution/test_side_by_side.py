"""Work that several processes share: what comes back is what one process finds, whatever happens to the others."""

import multiprocessing
import os
import signal
import warnings
from functools import partial

import pytest
import torch

from analyses.execution.side_by_side import meanwhile, processes, side_by_side
from interp import InputError


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def squared(number: int) -> tuple[int, torch.Tensor]:
    return os.getpid(), torch.full((3,), float(number)) ** 2


def test_tasks_end_in_their_order_in_other_processes_of_one_thread():
    told: list[int] = []
    found = side_by_side([partial(squared, number) for number in range(7)], told.append)
    assert [each.tolist() for _, each in found] == [[number**2] * 3 for number in range(7)]
    assert told == [*range(1, 8)]
    assert os.getpid() not in {pid for pid, _ in found}
    assert side_by_side([torch.get_num_threads, lambda: processes(5)]) == [1, 1]
    assert torch.get_num_threads() == 2


def in_a_pool(number: int) -> tuple[int, list[int]]:
    torch.set_num_threads(2)
    with meanwhile([os.getpid]) as ended:
        return os.getpid(), [*side_by_side([os.getpid] * 2), *ended()]


def test_a_worker_of_a_pool_which_may_start_no_process_does_all_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where threads may run
        with multiprocessing.get_context("fork").Pool(1) as pool:
            here, there = pool.apply(in_a_pool, (1,))
    assert there == [here] * 3
    assert here != os.getpid()


def test_another_process_begins_while_this_one_goes_on_and_this_one_does_what_is_left(tmp_path):
    begun = tmp_path / "begun"

    def long() -> int:
        begun.touch()
        while not (tmp_path / "go on").exists():
            pass
        return os.getpid()

    with meanwhile([partial(bytes, 1 << 22), long, os.getpid]) as ended:  # more than a pipe holds, and nobody reads yet
        ended.take_back()
        assert torch.get_num_threads() == 1  # one core each
        while not begun.exists():
            pass
        (tmp_path / "go on").touch()
        many, there, _ = found = ended()
        assert there != os.getpid()
        assert many == bytes(1 << 22)
        assert torch.get_num_threads() == 2
        assert ended() == found
    with meanwhile([int]) as ended:
        while torch.get_num_threads() == 1:
            ended.take_back()  # of a process that has done all there was
        assert ended() == [0]
    with meanwhile([lambda: lambda: 1]) as ended:  # which cannot be copied
        assert ended()[0]() == 1
    assert torch.get_num_threads() == 2


def test_where_it_is_crowded_this_process_keeps_its_threads_and_may_fork_again():
    with meanwhile([os.getpid] * 2, crowded=True) as ended:
        assert torch.get_num_threads() == 2
        assert os.getpid() not in side_by_side([os.getpid] * 2)
        assert len(ended()) == 2
    assert torch.get_num_threads() == 2


def test_what_was_begun_and_not_waited_for_is_ended():
    def forever() -> None:
        while True:
            pass

    with pytest.raises(KeyboardInterrupt), meanwhile([forever]):
        raise KeyboardInterrupt
    assert not multiprocessing.active_children()
    assert torch.get_num_threads() == 2


def test_what_a_task_raises_is_raised_here():
    def wrong() -> None:
        raise InputError("expected something else")

    with pytest.raises(InputError, match="expected something else"):
        side_by_side([lambda: None, wrong, lambda: None])


def test_the_task_of_a_process_that_is_killed_is_done_here():
    here = os.getpid()

    def killed() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    found = side_by_side([killed, os.getpid, killed, os.getpid])
    assert found[0] == found[2] == here
