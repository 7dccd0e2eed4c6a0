"""Who may attend to whom? Causal mask, padding and positions of one call, shared by all layers."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.devices import Movable
from interp.tokens import TokenBatch


@dataclass(frozen=True)
class Visibility(Movable):
    """What each query may see."""

    positions: Int[Tensor, "prompt query"]  # of the queries in their texts
    columns: Int[Tensor, "rows query"]  # of the queries among the keys: one row for all prompts, or one each
    n_keys: int
    causal: bool
    padding: Bool[Tensor, "prompt key"] | None  # True at real tokens; None where there is no padding
    last: bool  # the queries are the last columns, in order
    reach: int | None = None  # keys farther away are not seen
    across: bool = False  # the keys are another sequence's

    @staticmethod
    def from_batch(batch: TokenBatch, *, causal: bool, first: int = 0) -> "Visibility":
        """The visibility of the columns of `batch` from `first` on; their keys are all columns."""
        n_keys = batch.ids.shape[1]
        columns = torch.arange(first, n_keys, device=batch.ids.device)[None]
        padding = batch.mask if batch.padded else None
        return Visibility(batch.positions[:, first:], columns, n_keys, causal, padding, True)

    def at(self, columns: Int[Tensor, "prompt query"]) -> "Visibility":
        """The same keys, seen from some of the queries: those at `columns` of the batch, which must be among them."""
        index = (columns - self.columns[:, :1]).to(self.positions.device)
        return replace(self, positions=self.positions.gather(1, index), columns=columns, last=False)

    def near(self, reach: int | None) -> "Visibility":
        """The same, with no key seen that is more than `reach` tokens away."""
        return self if reach is None or reach >= self.n_keys - 1 else replace(self, reach=reach)

    @property
    def n_queries(self) -> int:
        """How many positions ask."""
        return self.positions.shape[1]

    def distance(self) -> Int[Tensor, "rows query key"]:
        """Key less query, in tokens."""
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
            if not self.causal or (self.last and self.n_queries == 1):
                return None, False  # everything is seen
            if self.last and self.n_queries == self.n_keys:
                return None, True
        return for_all(self.mask(), batch), False


def for_all(rows: Tensor, batch: torch.Size) -> Tensor:
    """What is given for each prompt, or once for all, for leading axes `batch` flattened into one."""
    return rows if rows.shape[0] == 1 else rows.expand(*batch, *rows.shape[1:]).reshape(-1, *rows.shape[1:])


@dataclass(frozen=True)
class Source(Movable):
    """What cross-attention reads: the encoder's last stream, and which of its positions are padding."""

    stream: Float[Tensor, "... position d_model"]
    padding: Bool[Tensor, "prompt position"] | None

    @staticmethod
    def from_stream(stream: Float[Tensor, "... position d_model"], batch: TokenBatch) -> "Source":
        """The stream that an encoder made of `batch`."""
        return Source(stream, batch.mask if batch.padded else None)

    def seen_by(self, queries: Visibility) -> Visibility:
        """Every query sees every real token of the source."""
        n_keys = self.stream.shape[-2]
        return Visibility(queries.positions, queries.columns, n_keys, False, self.padding, False, across=True)
