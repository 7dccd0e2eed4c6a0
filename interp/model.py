"""What runs a model: all that reading and changing it in one call needs, whatever it is made of.

A `Transformer` is one; so is a model that another library runs. What needs more, its blocks and weights one at a time,
takes a `Transformer` (`interp.transformer.with_parts`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import TransformerConfig
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch, Tokenizer


@dataclass(frozen=True)
class Site:
    """One place. `axes` are those after the free leading ones; `head` counts key/value heads where they are shared."""

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]  # None where the text decides
    meaning: str


@runtime_checkable
class Model(Protocol):
    """What `run`, `sites`, `generate`, the analyses and every plain way (`sweep_by_forward`, ...) ask of a model."""

    @property
    def config(self) -> TransformerConfig:
        """Its stacks and their sizes."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What makes ids of the text that the first stack reads; None where it works on ids."""
        ...

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """The same of what the last stack reads."""
        ...

    @property
    def sites(self) -> Mapping[str, Site]:
        """What can be read or changed, by name, in the order in which a call passes it."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        ...

    def __call__(
        self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position, of `target` where there are two stacks; None where there is no output layer.

        On its way it passes the value of each site through `tap(name, value)`, and goes on with what comes back.
        """
        ...
