"""Which heads are read: those of one kind of attention in one stack."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from interp import InputError, Model


@dataclass(frozen=True)
class Heads:
    """The heads that a table has rows for: those of one kind of attention in one stack, layer by layer."""

    stack: str
    n_layers: int
    n_heads: int
    attention: Literal["self", "cross"] = "self"
    causal: bool = True  # whether a query sees no key after it

    @staticmethod
    def of(model: Model) -> "Heads":
        """The self-attention of a model of one stack.

        Raises:
            InputError: the model has two.
        """
        heads, *more = Heads.every(model)
        if more:
            raise InputError("expected a model of one stack: this one has an encoder and a decoder, name which heads")
        return heads

    @staticmethod
    def every(model: Model) -> "list[Heads]":
        """Every kind of attention that a model has: of the encoder, of the decoder, and between them."""
        kinds = [Heads(name, s.n_layers, s.n_heads, causal=s.causal) for name, s in model.config.stacks.items()]
        crossing = [replace(each, attention="cross", causal=False) for each in kinds[1:]]
        return kinds + crossing

    @property
    def title(self) -> str:
        """How these heads are called in a sentence."""
        return "cross-attention" if self.attention == "cross" else f"the {self.stack}’s self-attention"

    @property
    def called(self) -> str:
        """What tells them from the model's other heads, in names of files and of records."""
        return "cross" if self.attention == "cross" else self.stack

    @property
    def count(self) -> int:
        """How many heads there are."""
        return self.n_layers * self.n_heads

    def columns(self, n_measures: int) -> tuple[dict[str, Any], np.ndarray]:
        """Stack, attention, layer and head of every row, measures running fastest; and each row's measure."""
        shape = self.n_layers, self.n_heads, n_measures
        layer, head, measure = np.unravel_index(np.arange(np.prod(shape)), shape)
        return {"stack": self.stack, "attention": self.attention, "layer": layer, "head": head}, measure
