"""Calls shared by several processes give what one process gives, whatever happens to the others."""

import multiprocessing
import os
import signal
import warnings
from functools import partial

import pytest
import torch

from analyses.execution.processes import Forks, all_of, begun, count_of
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
    results = all_of([partial(squared, number) for number in range(7)])
    assert [each.tolist() for _, each in results] == [[number**2] * 3 for number in range(7)]
    assert os.getpid() not in {pid for pid, _ in results}
    assert all_of([torch.get_num_threads, lambda: count_of(5)]) == [1, 0]
    assert torch.get_num_threads() == 2


def in_a_pool(number: int) -> list[int]:
    torch.set_num_threads(2)
    return [os.getpid(), *all_of([os.getpid] * 2)]


def test_a_worker_of_a_pool_which_may_start_no_process_does_all_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking while threads may run
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pids = pool.apply(in_a_pool, (1,))
    assert len({*pids}) == 1
    assert os.getpid() not in pids


def test_other_processes_begin_while_this_one_goes_on(tmp_path):
    started = tmp_path / "started"

    def long() -> int:
        started.touch()
        while not (tmp_path / "go on").exists():
            pass
        return os.getpid()

    with begun([partial(bytes, 1 << 22), long]) as ended:  # more than a pipe holds, before anybody reads
        while not started.exists():
            pass
        (tmp_path / "go on").touch()
        many, pid = ended()
        assert pid != os.getpid()
        assert many == bytes(1 << 22)


def test_what_was_begun_and_not_waited_for_is_ended():
    def forever() -> None:
        while True:
            pass

    with pytest.raises(KeyboardInterrupt), begun([forever]):
        raise KeyboardInterrupt
    while multiprocessing.active_children():  # they have ended, but perhaps not been noticed
        pass
    assert torch.get_num_threads() == 2


def test_what_a_task_raises_is_raised_here():
    def wrong() -> None:
        raise InputError("expected something else")

    with pytest.raises(InputError, match="expected something else"):
        all_of([lambda: None, wrong, lambda: None])


def test_what_a_process_that_is_killed_did_not_do_is_done_here():
    pid = os.getpid()

    def killed() -> int:
        if os.getpid() != pid:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    pids = all_of([killed, os.getpid, killed, os.getpid])
    assert pids[0] == pids[2] == pid


def total(tensor: torch.Tensor) -> float:
    return float(tensor.sum())


@pytest.mark.parametrize("n", [0, 2])
def test_a_result_is_kept_as_soon_as_it_is_there(n):
    results: list[float] = []
    forks = Forks([total], n)
    try:
        calls = [forks.submit(total, [torch.full((2,), float(each), dtype=kind)], results.append)
                 for each, kind in enumerate([torch.float32, torch.bfloat16, torch.float64])]  # fmt: skip
        assert [call.result() for call in calls] == [0.0, 2.0, 4.0]
    finally:
        forks.close()
    assert sorted(results) == [0.0, 2.0, 4.0]
