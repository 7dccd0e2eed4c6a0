"""Who may attend to whom: the causal mask, padding and positions of one call, made once and shared by all layers."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.tokens import TokenBatch


@dataclass(frozen=True)
class Sight:
    """What each query may see.

    `positions` are the queries' places in their own texts, `columns` their places among the keys of the batch.
    """

    positions: Int[Tensor, "prompt query"]
    columns: Int[Tensor, "rows query"]  # one row for all prompts, or one each
    n_keys: int
    causal: bool
    padding: Bool[Tensor, "prompt key"] | None  # True at real tokens; None where there is no padding
    last: bool  # the queries are the last columns, in order

    @staticmethod
    def of(batch: TokenBatch, *, causal: bool, first: int = 0) -> "Sight":
        """The sight of the columns of `batch` from `first` on; their keys are all columns."""
        n_keys = batch.ids.shape[1]
        columns = torch.arange(first, n_keys, device=batch.ids.device)[None]
        return Sight(batch.positions[:, first:], columns, n_keys, causal, batch.mask if batch.padded else None, True)

    def at(self, columns: Int[Tensor, "prompt query"]) -> "Sight":
        """The same keys, seen from some of the queries: those at `columns` of the batch, which must be among them."""
        index = (columns - self.columns[:, :1]).to(self.positions.device)
        return Sight(self.positions.gather(1, index), columns, self.n_keys, self.causal, self.padding, False)

    @property
    def n_queries(self) -> int:
        """How many positions ask."""
        return self.positions.shape[1]

    def mask(self) -> Bool[Tensor, "prompt 1 query key"]:
        """True where a query may attend. A padded query sees itself, so that no row is without a key."""
        keys = torch.arange(self.n_keys, device=self.positions.device)
        columns = self.columns[..., None]
        seen = keys <= columns if self.causal else torch.ones_like(keys <= columns)
        if self.padding is not None:
            seen = seen & self.padding[:, None, :] | (keys == columns)
        return seen[:, None]

    def for_kernel(self, batch: torch.Size) -> tuple[Bool[Tensor, "flat 1 query key"] | None, bool]:
        """The mask for leading axes `batch` flattened into one, and whether the kernel's own causal mode is enough."""
        if self.padding is None and (not self.causal or (self.last and self.n_queries == 1)):
            return None, False  # everything is seen
        if self.padding is None and self.last and self.n_queries == self.n_keys:
            return None, True
        mask = self.mask()
        if mask.shape[0] == 1:
            return mask, False
        return mask.expand(*batch, *mask.shape[1:]).reshape(-1, *mask.shape[1:]), False
