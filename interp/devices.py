"""How do tensors on several devices meet? Each is moved, once, to the device that needs it.

A device holds whole blocks and all that is computed in them. Embeddings, final norms and the output layer are on the
first device, where each stack's stream ends. With one device nothing is moved or copied.
"""

from operator import is_
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Value = TypeVar("Value")


class Movable:
    """An object made of tensors, with a copy on each device that has used it."""

    def to(self: Value, device: torch.device) -> Value:
        """The same on `device`; itself if it is there already."""
        copies = vars(self).setdefault("_copies", {})
        if device not in copies:
            parts = {name: move(part, device) for name, part in vars(self).items() if name != "_copies"}
            is_here = all(part is vars(self)[name] for name, part in parts.items())
            moved = copies[device] = None if is_here else object.__new__(type(self))  # itself would keep itself alive
            vars(moved or self).update(parts)
        return copies[device] or self


def move(value: Value, device: torch.device) -> Value:
    """A tensor, an object made of tensors, or a list or tuple of these, on `device`; anything else as it is."""
    if isinstance(value, Tensor | Movable):
        return cast(Value, value.to(device))
    if type(value) in {list, tuple}:
        parts = cast(list[Any], value)
        moved = [move(part, device) for part in parts]
        return value if all(map(is_, moved, parts)) else cast(Value, type(parts)(moved))
    return value


def pick(value: Tensor, index: tuple[Tensor, ...]) -> Tensor:
    """`value[index]` on the index's device; no more of the value is moved."""
    return value[move(index, value.device)].to(index[0].device)
