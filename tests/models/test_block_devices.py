"""Blocks are put on devices in runs, by size in bytes."""

import pytest
import torch
from refusals import refusal
from torch.testing import assert_close

from interp import generate, run
from models import load, place
from models.block_devices import shares, weight_devices
from tests.pretend import FIRST, SECOND, Pretend
from tests.tiny import model, token_ids, two_stacks


@pytest.mark.parametrize(
    ("sizes", "rooms", "first", "numbers"),
    [
        ([1, 1, 1, 1], [1, 1], 0, [0, 0, 1, 1]),
        ([4, 1, 1, 1, 1], [1, 1], 0, [0, 1, 1, 1, 1]),  # uneven blocks
        ([1, 1, 1, 1], [1, 1], 3, [0, 1, 1, 1]),  # the embedding counts
        ([1, 1, 1, 1], [1, 1], 99, [0, 1, 1, 1]),  # but never fills a device alone
        ([1] * 8, [4, 2, 2], 0, [0, 0, 0, 0, 1, 1, 2, 2]),  # by free memory
        ([1, 1, 1], [1, 99, 1], 0, [0, 1, 2]),  # each gets a block
        ([9, 1, 1], [1, 1, 1], 0, [0, 1, 2]),
        ([1, 1], [7], 0, [0, 0]),
    ],
)
def test_each_device_has_a_run_of_blocks_in_proportion_to_its_room(sizes, rooms, first, numbers):
    assert shares(sizes, rooms, first) == numbers


def test_weights_outside_blocks_lie_on_the_first_device_and_blocks_in_runs():
    built = two_stacks("modern")
    with Pretend():
        devices = weight_devices(built, ["cuda:0", "cuda:1"])
    runs = [device for name, device in devices.items() if name.endswith("attn.qkv.weight") and "cross" not in name]
    assert runs == [FIRST, FIRST, SECOND, SECOND]
    assert {device for name, device in devices.items() if ".blocks." not in name} == {FIRST}


def test_what_is_placed_is_the_same_model():
    placed, plain = load("default", placement=["cpu", "cpu"]), load("default")
    assert place(placed, ["cpu"] * 3) is placed
    assert_close(run(placed, token_ids(2, 7)).logits, run(plain, token_ids(2, 7)).logits, atol=0, rtol=0)
    tied = place(model("llama", "tied"), ["cpu", "cpu"])
    assert tied.output.weight is tied.last.embed.token.weight
    assert next(tied.parameters()).requires_grad


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("cuda:0", "expected 'auto' or a list such as"),
        (2, "expected 'auto' or a list such as"),
        ([], "expected at least one device"),
        (["cpu"] * 9, "9 devices are more than the 4 blocks"),
        (["cpu", "cuda:99"], "no device 'cuda:99' here"),
        (["tpu"], "no device 'tpu' here"),
    ],
)
def test_placements_that_are_none_get_one_line(placement, message):
    assert message in refusal(load, "default", placement=placement)


def test_one_says_where_a_model_lies_once():
    assert "expected no device as well" in refusal(load, "default", placement="auto", device="mps")
    assert "no placement" in refusal(load, "lens:default", placement="auto")


def test_alone_a_machines_devices_are_what_auto_means():
    expected = {torch.device("cuda", index) for index in range(torch.cuda.device_count())} or {torch.device("cpu")}
    placed = load("default", placement="auto")
    assert {block.device for block in placed.last.blocks} <= expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, better two")
def test_real_devices_give_the_numbers_of_one():
    placed = load("default", placement=["cuda:0", "cuda:1" if torch.cuda.device_count() > 1 else "cpu"])
    assert len({block.device for block in placed.last.blocks}) == 2
    plain, ids = load("default"), token_ids(2, 7)
    assert_close(run(placed, ids).logits.cpu(), run(plain, ids).logits, atol=1e-3, rtol=1e-3)
    assert generate(placed, ids, 5).ids.tolist() == generate(plain, ids, 5).ids.tolist()
