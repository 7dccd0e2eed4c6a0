"""Which query may attend to which key? Causal mask, padding and positions of one call, shared by all layers."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.devices import Movable
from interp.tokens import TokenBatch


@dataclass(frozen=True)
class Visibility(Movable):
    """The keys that each query may see."""

    positions: Int[Tensor, "prompt query"]  # of the queries in their texts
    columns: Int[Tensor, "rows query"]  # of the queries among the keys: one row for all prompts, or one each
    n_keys: int
    causal: bool
    padding: Bool[Tensor, "prompt key"] | None  # True at real tokens; None without padding
    last: bool  # the queries are the last columns, in order
    reach: int | None = None  # a query sees no keys beyond this distance
    across: bool = False  # the keys are another sequence's

    @staticmethod
    def from_batch(batch: TokenBatch, *, causal: bool, first: int = 0) -> "Visibility":
        """The queries are the columns of `batch` from `first` on, the keys all columns."""
        n_keys = batch.ids.shape[1]
        columns = torch.arange(first, n_keys, device=batch.ids.device)[None]
        padding = batch.mask if batch.padded else None
        return Visibility(batch.positions[:, first:], columns, n_keys, causal, padding, True)

    def at(self, columns: Int[Tensor, "prompt query"]) -> "Visibility":
        """The same keys for some of the queries, those at these `columns` of the batch."""
        index = (columns - self.columns[:, :1]).to(self.positions.device)
        return replace(self, positions=self.positions.gather(1, index), columns=columns, last=False)

    def near(self, reach: int | None) -> "Visibility":
        """The same without keys more than `reach` tokens away."""
        return self if reach is None or reach >= self.n_keys - 1 else replace(self, reach=reach)

    def distance(self) -> Int[Tensor, "rows query key"]:
        """Key minus query, in tokens."""
        return torch.arange(self.n_keys, device=self.columns.device) - self.columns[..., None]

    def mask(self) -> Bool[Tensor, "prompt 1 query key"]:
        """True where a query may attend. A padded query sees itself, so that no row is without a key."""
        distance = self.distance()
        visible = distance <= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.reach is not None:
            visible = visible & (distance.abs() <= self.reach)
        if self.padding is not None:
            visible = visible & self.padding[:, None, :]
            visible = visible if self.across else visible | (distance == 0)
        return visible[:, None]

    def for_kernel(self, batch: torch.Size) -> tuple[Bool[Tensor, "flat 1 query key"] | None, bool]:
        """The mask for leading axes `batch` flattened into one, and whether the kernel's own causal mode is enough."""
        if self.padding is None and self.reach is None:
            n_queries = self.positions.shape[1]
            if not self.causal or (self.last and n_queries == 1):
                return None, False  # every key is visible
            if self.last and n_queries == self.n_keys:
                return None, True
        return for_all(self.mask(), batch), False


def for_all(rows: Tensor, batch: torch.Size) -> Tensor:
    """Rows of each prompt, or one for all, for leading axes `batch` flattened into one."""
    return rows if rows.shape[0] == 1 else rows.expand(*batch, *rows.shape[1:]).reshape(-1, *rows.shape[1:])


@dataclass(frozen=True)
class Source(Movable):
    """What cross-attention reads: the encoder's last stream, and which of its positions are padding."""

    stream: Float[Tensor, "... position d_model"]
    padding: Bool[Tensor, "prompt position"] | None

    @staticmethod
    def from_stream(stream: Float[Tensor, "... position d_model"], batch: TokenBatch) -> "Source":
        """The encoder's last stream of `batch`."""
        return Source(stream, batch.mask if batch.padded else None)

    def seen_by(self, queries: Visibility) -> Visibility:
        """Every query sees every real token of the source."""
        n_keys = self.stream.shape[-2]
        return Visibility(queries.positions, queries.columns, n_keys, False, self.padding, False, across=True)
