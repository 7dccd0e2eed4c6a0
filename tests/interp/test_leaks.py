"""What is held after many calls: nothing. No activation, descriptor or thread stays."""

import gc
import os
import threading
from pathlib import Path

import pytest
import torch
from tiny import model, token_ids

from interp import run, zero


def held() -> tuple[int, int, int]:
    """Tensors, open files and threads of this process."""
    gc.collect()
    tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
    return tensors, len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux tells them")
@pytest.mark.parametrize("times", [30, pytest.param(1_000, marks=pytest.mark.slow)])
def test_runs_with_captures_and_edits_hold_nothing(times: int) -> None:
    transformer, ids = model("gpt2"), token_ids(1, 5)

    def once() -> None:
        out = run(transformer, ids, capture="*", edit={"decoder.1.attn.z": zero(head=1)})
        assert len(out.activations) > 10

    once()
    before = held()
    for _ in range(times):
        once()
    assert held() == before
