"""Which rows and keys of a batch of patterns count: not padding, not special tokens; with or without the first key."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SINK_FLOOR = 0.01  # a row that keeps less than this of its mass without the first position is missing there


@dataclass(frozen=True)
class Rows:
    """What is known about the queries and keys of a batch of self-attention patterns.

    ids      prompt position             token ids
    content  prompt position             True at real tokens that are not special: keys that can satisfy a measure
    scored   prompt position             True at the content tokens whose rows are counted here
    visible  prompt query key            True where a query may attend
    """

    ids: Int[Tensor, "prompt position"]
    content: Bool[Tensor, "prompt position"]
    scored: Bool[Tensor, "prompt position"]
    visible: Bool[Tensor, "prompt query key"]

    @property
    def uniform(self) -> Float[Tensor, "prompt 1 query key"]:
        """The pattern of a head that looks at all visible keys alike: the baseline, read through the same scorers."""
        seen = self.visible.to(torch.get_default_dtype())
        return (seen / seen.sum(-1, keepdim=True))[:, None]


def remove_sink(
    pattern: Float[Tensor, "prompt head query key"],
) -> tuple[Float[Tensor, "prompt head query key"], Bool[Tensor, "prompt head query"]]:
    """The pattern without its first position, renormalised (attention sinks: Xiao 2023), and the rows that remain.

    A row keeps its second reading only where at least 0.01 of its mass remains; the others are zero and not kept.
    """
    rest = pattern.clone()
    rest[..., 0] = 0
    mass = rest.sum(-1)
    kept = mass >= SINK_FLOOR
    return rest / torch.where(kept, mass, torch.inf)[..., None], kept
