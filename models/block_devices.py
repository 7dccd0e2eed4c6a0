"""Which device holds each block of a model? Runs of blocks lie together, so the stream crosses few borders."""

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import nn

from interp import InputError, Transformer
from interp.transformer import with_parts

Placement = Literal["auto"] | Sequence[str | torch.device]


def place(model: Transformer, placement: Placement = "auto") -> Transformer:
    """Move a model's blocks to several devices, in runs, and all else to the first. It is the same model afterwards.

    `placement` lists the devices, which share the bytes of weights evenly; "auto" takes all CUDA devices here, by their
    free memory, or else the CPU. An unknown placement or device, an empty list, or more devices than blocks raise an
    `InputError`.
    """
    model = with_parts(model, "placing blocks")
    for name, device in weight_devices(model, placement).items():
        (module, _, leaf), weight = name.rpartition("."), model.get_parameter(name)
        setattr(model.get_submodule(module), leaf, nn.Parameter(weight.detach().to(device), weight.requires_grad))
    model.tie()
    return model


def weight_devices(model: Transformer, placement: Placement, block_bytes: float = 1) -> dict[str, torch.device]:
    """The device of each weight by its name; a number in a block takes `block_bytes` times a number elsewhere."""
    sizes, owners = {"": 0.0}, {}
    for name, weight in model.named_parameters():
        block = re.match(r"stacks\.\w+\.blocks\.\d+\.", name)
        owners[name] = owner = block[0] if block else ""
        size = weight.numel() * weight.element_size() * (block_bytes if block else 1)
        sizes[owner] = sizes.get(owner, 0) + size
    first, *of_blocks = sizes.values()
    devices, rooms = _devices(placement, len(of_blocks))
    homes = dict(zip(sizes, (devices[at] for at in (0, *shares(of_blocks, rooms, first))), strict=True))
    return {name: homes[owner] for name, owner in owners.items()}


def shares(sizes: Sequence[float], rooms: Sequence[int], first: float = 0) -> list[int]:
    """The device number of each block, given the bytes of blocks in order; `rooms` set the shares of devices.

    Each device has a block; the first also has `first` other bytes.
    """
    scale, borders, numbers = sum(rooms) / (first + sum(sizes)), [*accumulate(rooms)], [-1]
    for block, size in enumerate(sizes):
        at_middle = bisect(borders, (first + size / 2) * scale)
        numbers.append(max(len(rooms) - len(sizes) + block, min(at_middle, numbers[-1] + 1)))
        first += size
    return numbers[1:]


def _devices(placement: Placement, n_blocks: int) -> tuple[list[torch.device], list[int]]:
    """Devices, and the room on each."""
    if placement == "auto":
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())][:n_blocks]
        return devices or [torch.device("cpu")], [torch.cuda.mem_get_info(each)[0] for each in devices] or [1]
    if isinstance(placement, str) or not isinstance(placement, Sequence):
        raise InputError(f"no placement {placement!r}: expected 'auto' or a list such as ['cuda:0', 'cuda:1']")
    if not placement:
        raise InputError("expected at least one device to place blocks on, got none")
    if len(placement) > n_blocks:
        raise InputError(f"{len(placement)} devices are more than the {n_blocks} blocks: expected at most one a block")
    return [device_of(each) for each in placement], [1] * len(placement)


def device_of(device: str | torch.device) -> torch.device:
    """The device of that name; InputError if there is none here."""
    try:
        if str(device).split(":")[0] not in {"cpu", "cuda", "mps", "xpu"}:
            raise AssertionError("models run on cpu, cuda, mps or xpu")
        return torch.empty(0, device=device).device
    except NotImplementedError as error:  # torch lists everything it was built with, over a page
        raise InputError(f"no device {str(device)!r} here: use 'cpu' (torch was built without it)") from error
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"no device {str(device)!r} here: use 'cpu' ({reason})") from error
