"""Keys and values computed before, as attention uses them: rotated. Generation continues from them."""

import torch
from torch import Tensor

from interp.config import StackConfig


class Growing:
    """One layer's keys and values so far; keeps what it is given."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append to what was kept."""
        self.k = k if self.k is None else torch.cat([self.k, k], -3)
        self.v = v if self.v is None else torch.cat([self.v, v], -3)
        return self.k, self.v


def growing_cache(config: StackConfig) -> list[Growing]:
    """An empty cache for each layer of a stack."""
    return [Growing() for _ in range(config.n_layers)]
