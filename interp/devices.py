"""How do tensors that lie on several devices meet? What is combined is moved, once, to where that is done.

A device holds whole blocks, and all that is computed in a block stays with it. Embeddings, final norms and the output
layer lie on the first device, where each stack's stream ends. Of a model on one device nothing is moved or copied.
"""

from operator import is_
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Value = TypeVar("Value")


class Movable:
    """An object made of tensors that has a copy on each device where it is used, made the first time."""

    def to(self: Value, device: torch.device) -> Value:
        """The same on `device`; itself where it is there already."""
        copies = vars(self).setdefault("_copies", {})
        if device not in copies:
            parts = {name: move(part, device) for name, part in vars(self).items() if name != "_copies"}
            is_here = all(part is vars(self)[name] for name, part in parts.items())
            moved = copies[device] = None if is_here else object.__new__(type(self))  # itself would keep itself alive
            vars(moved or self).update(parts)
        return copies[device] or self


def move(value: Value, device: torch.device) -> Value:
    """A tensor, what is made of tensors, or a list or tuple of such, on `device`; anything else as it is."""
    if isinstance(value, Tensor | Movable):
        return cast(Value, value.to(device))
    if type(value) in {list, tuple}:
        parts = cast(list[Any], value)
        moved = [move(part, device) for part in parts]
        return value if all(map(is_, moved, parts)) else cast(Value, type(parts)(moved))
    return value


def pick(value: Tensor, index: tuple[Tensor, ...]) -> Tensor:
    """`value[index]`, where the index lies: of a value elsewhere no more is moved."""
    return value[move(index, value.device)].to(index[0].device)
