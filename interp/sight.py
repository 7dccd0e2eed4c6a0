"""Who may attend to whom: the causal mask, padding and positions of one call, made once and shared by all layers."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.tokens import TokenBatch


@dataclass(frozen=True)
class Sight:
    """What each query may see. `positions` are the queries' own, counted in their texts."""

    positions: Int[Tensor, "prompt query"]
    n_keys: int
    causal: bool
    padding: Bool[Tensor, "prompt key"] | None  # True at real tokens; None where there is no padding

    @staticmethod
    def of(batch: TokenBatch, *, causal: bool, first: int = 0) -> "Sight":
        """The sight of the columns of `batch` from `first` on; their keys are all columns."""
        padding = batch.mask if batch.padded else None
        return Sight(batch.positions[:, first:], batch.ids.shape[1], causal, padding)

    @property
    def n_queries(self) -> int:
        """Columns that ask; they are the last ones among the keys."""
        return self.positions.shape[1]

    def mask(self) -> Bool[Tensor, "prompt 1 query key"]:
        """True where a query may attend. A padded query sees itself, so that no row is without a key."""
        n_queries, n_keys, device = self.n_queries, self.n_keys, self.positions.device
        seen = torch.ones(1, n_queries, n_keys, dtype=torch.bool, device=device)
        if self.causal:
            seen = seen.tril(n_keys - n_queries)
        if self.padding is not None:
            itself = torch.eye(n_keys, dtype=torch.bool, device=device)[n_keys - n_queries :]
            seen = seen & self.padding[:, None, :] | itself
        return seen[:, None]

    def for_kernel(self, batch: torch.Size) -> tuple[Bool[Tensor, "flat 1 query key"] | None, bool]:
        """The mask for leading axes `batch` flattened into one, and whether the kernel's own causal mode is enough."""
        if self.padding is None and not self.causal:
            return None, False
        if self.padding is None and self.n_queries == 1:
            return None, False  # the newest token sees everything
        if self.padding is None and self.n_queries == self.n_keys:
            return None, True
        mask = self.mask()
        if mask.shape[0] == 1:
            return mask, False
        return mask.expand(*batch, *mask.shape[1:]).reshape(-1, *mask.shape[1:]), False
