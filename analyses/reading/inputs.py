"""Which heads are read, and which text does each kind of attention read?

An encoder reads the source, a decoder's self-attention the target, cross-attention looks from the target into the
source. A text with no target of its own is its own target.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interp import AnnotatedText, InputError, Model, Tokenizer
from interp.running import target_tokenizer


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
        heads, *rest = Heads.every(model)
        if rest:
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


def is_paired(model: Model, heads: Heads) -> bool:
    """Whether these heads belong to a decoder that has a source."""
    return heads.stack == "decoder" and "encoder" in model.config.stacks


def tokenizer_of(model: Model, heads: Heads) -> Tokenizer:
    """What makes the tokens that the heads' queries stand on.

    Raises:
        InputError: the model does not say how its decoder's input begins.
    """
    assert model.tokenizer is not None  # a `Reading` sees to it
    return target_tokenizer(model) if is_paired(model, heads) else model.tokenizer


def shown_to(model: Model, heads: Heads, text: AnnotatedText) -> AnnotatedText:
    """The text that the heads' queries stand on: the target of one that has its own, where they are a decoder's."""
    if text.target is None or not is_paired(model, heads):
        return text
    return AnnotatedText.plain(text.target, text.document)


def least_target(model: Model, count: int) -> Tensor | None:
    """The least that a decoder can read while its encoder is looked at; None where there is one stack."""
    if len(model.config.stacks) == 1:
        return None
    return torch.full((count, 1), model.config.target_start or 0)
