"""Which text does each kind of attention read?

An encoder reads the source, a decoder's self-attention the target, cross-attention looks from the target into the
source. A text with no target of its own is its own target.
"""

import torch
from torch import Tensor

from analyses.reading.head_kinds import Heads
from interp import AnnotatedText, Model, Tokenizer
from interp.running import target_tokenizer


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
