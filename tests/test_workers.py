"""Work is shared out among processes, and comes back as if one had done all of it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from learners import ended, process

from analyses.workers import shared_out
from interp import InputError

PARTS = [3, 1, 4, 1, 5, 9, 2, 6]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def test_parts_come_back_in_order_from_other_processes():
    weights = torch.arange(10.0)  # held by what does the work: it is forked, not sent
    found = [*shared_out(lambda part: (float(weights[part]), os.getpid()), PARTS)]
    assert [value for value, _ in found] == PARTS
    assert os.getpid() not in {process for _, process in found}


@pytest.mark.parametrize("reason", ["one thread", "one part", "an accelerator"])
def test_one_process_does_all_where_others_are_of_no_use(reason, monkeypatch):
    if reason == "one thread":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    parts = PARTS[:1] if reason == "one part" else PARTS
    device = torch.device("cuda") if reason == "an accelerator" else torch.device("cpu")
    assert {*shared_out(lambda part: os.getpid(), parts, device)} == {os.getpid()}


def test_what_a_part_raises_is_raised_here():
    def work(part: int) -> int:
        if part == 4:
            raise InputError("four is too many")
        return part

    found = shared_out(work, PARTS)
    assert [next(found), next(found)] == [3, 1]
    with pytest.raises(InputError, match=r"^four is too many$"):
        next(found)


def test_a_process_that_is_ended_is_one_line():
    def work(part: int) -> int:
        if part == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    with pytest.raises(InputError, match=r"ended one of the processes .* OMP_NUM_THREADS lower"):
        [*shared_out(work, PARTS)]


def test_no_part_changes_this_process():
    before = [0]

    def work(part: int) -> int:
        before[0] += part
        return before[0]

    assert sum(shared_out(work, PARTS)) >= sum(PARTS)
    assert before == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_works_for_a_process_that_is_killed_ends_too():
    reading, writing = os.pipe()

    def work(part: int) -> None:
        os.write(writing, f"{os.getpid()} ".encode())
        time.sleep(60)

    child = process(lambda: [*shared_out(work, PARTS)])
    told = ""
    while told.count(" ") < 2:
        told += os.read(reading, 99).decode()
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    workers = [*map(int, told.split())]
    for _ in range(100):
        if not any(map(alive, workers)):
            return
        time.sleep(0.1)
    pytest.fail(f"{workers} are left")


def alive(number: int) -> bool:
    """Whether it runs: one that has ended may wait to be collected."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
