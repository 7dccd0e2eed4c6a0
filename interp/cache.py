"""Cached keys and values, rotated as attention uses them; generation continues from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from interp.config import StackConfig


class Growing:
    """One layer's keys and values so far, and those of its cross-attention; keeps what it is given."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.source: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append to what was kept."""
        self.k = k if self.k is None else torch.cat([self.k, k], -3)
        self.v = v if self.v is None else torch.cat([self.v, v], -3)
        return self.k, self.v

    def once(self, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The source's keys and values, made the first time."""
        self.source = self.source or make()
        return self.source


def growing_cache(config: StackConfig) -> list[Growing]:
    """An empty cache for each layer of a stack."""
    return [Growing() for _ in range(config.n_layers)]
