"""Pretend devices: tensors stay where they are, but carry a label, and those on two devices must not meet.

As on real devices, CPU scalars may meet anything, indices may be on the CPU, and numpy reads only the CPU.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from interp import Transformer

CPU = torch.device("cpu")
FIRST, SECOND, THIRD = (torch.device("cuda", index) for index in range(3))
_INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
_READING = {Tensor.numpy, Tensor.__array__}


class Mixed(Exception):
    """An operation got tensors from several devices."""


def place_of(tensor: Tensor) -> torch.device:
    """The device that the tensor pretends to be on."""
    return getattr(tensor, "_place", CPU)


def put(value: Any, device: torch.device) -> Any:
    """Label every tensor in `value`."""
    for tensor in tree_leaves(value):
        if isinstance(tensor, Tensor):
            tensor.__dict__["_place"] = device
    return value


def spread(model: Transformer, *devices: torch.device) -> Transformer:
    """Put the model's blocks on `devices`, stack after stack; the first also gets all else and what blocks share."""
    put([*model.parameters()], FIRST)
    blocks = [block for name in model.config.stacks for block in model.stack(name).blocks]
    for block, device in zip(blocks, devices, strict=True):
        put([weight for name, weight in block.named_parameters() if not name.startswith("attn.bias.")], device)
    return model


class Pretend(TorchFunctionMode):
    """In this mode, devices are what tensors pretend; `moves` lists moves of activations: from, to and shape."""

    def __init__(self):
        super().__init__()
        self.moves: list[tuple[torch.device, torch.device, tuple[int, ...]]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return place_of(args[0])
        if func in {Tensor.to, Tensor.cpu}:
            return self._moved(*args, **kwargs) if func is Tensor.to else self._moved(*args, CPU)
        if func is torch.autograd.grad:
            gradients, inputs = func(*args, **kwargs), [args[1]] if isinstance(args[1], Tensor) else args[1]
            return tuple(put(*each) for each in zip(gradients, map(place_of, inputs), strict=True))
        device = kwargs.pop("device", None)
        place = meet(func, [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)])
        return put(func(*args, **kwargs), torch.device(device or place))

    def _moved(self, tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        before, dtype, values = place_of(tensor), tensor.dtype, [*args, *kwargs.values()]
        after = before
        for arg in values:
            after = place_of(arg) if isinstance(arg, Tensor) else after if isinstance(arg, torch.dtype) else arg
            dtype = getattr(arg, "dtype", arg if isinstance(arg, torch.dtype) else dtype)
        after = torch.device(after)
        if after != before and tensor.is_floating_point() and tensor.ndim:
            self.moves.append((before, after, tuple(tensor.shape)))
        return put(tensor.to(dtype, copy=copy or after != before), after)


def meet(func: Any, tensors: list[Tensor]) -> torch.device:
    """The common device of an operation's tensors."""
    places = {place_of(each) for each in tensors if each.ndim or place_of(each) != CPU}
    places -= {CPU} if func in _INDEXING else set()
    if len(places) > 1 or (func in _READING and places - {CPU}):
        raise Mixed(f"{func.__name__} of {[(str(place_of(each)), (*each.shape,)) for each in tensors]}")
    return next(iter(places), CPU)
