"""Keys and values computed before, as attention uses them: rotated. Generation and sweeps continue from them."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import StackConfig


@runtime_checkable
class Past(Protocol):
    """One layer's earlier keys and values."""

    def extend(
        self, k: Float[Tensor, "*batch key kv_head d_head"], v: Float[Tensor, "*batch2 key kv_head d_head"]
    ) -> tuple[Tensor, Tensor]:
        """All keys and values that the new positions may attend to: the earlier ones, then theirs."""
        ...


class Growing:
    """Keeps what it is given: for generation, and to record a run whose positions a sweep will share."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append to what was kept."""
        self.k = k if self.k is None else torch.cat([self.k, k], -3)
        self.v = v if self.v is None else torch.cat([self.v, v], -3)
        return self.k, self.v


class Frozen:
    """Gives the same earlier positions to every caller, whatever leading axes (cells) theirs have."""

    def __init__(self, k: Float[Tensor, "prompt key kv_head d_head"], v: Float[Tensor, "prompt key kv_head d_head"]):
        self.k, self.v = k, v

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put the earlier positions before the caller's."""
        return _prepend(self.k, k), _prepend(self.v, v)


def _prepend(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat([old.expand(*new.shape[:-3], *old.shape[-3:]), new], -3)


def growing_cache(config: StackConfig) -> list[Growing]:
    """An empty cache for each layer of a stack."""
    return [Growing() for _ in range(config.n_layers)]
