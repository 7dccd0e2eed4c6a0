"""Which text does each kind of attention read, and what are its patterns there?

An encoder reads the source, a decoder's self-attention the target, cross-attention looks from the target into the
source. A text with no target of its own is its own target.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.head_tables import Heads
from interp import AnnotatedText, InputError, Model, TokenBatch, Tokenizer
from interp.finite import check_finite
from interp.patterns.captured import read_patterns
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


def patterns(
    model: Model, heads: Heads, ids: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None
) -> tuple[TokenBatch, Float[Tensor, "prompt head query key"], TokenBatch | None]:
    """The tokens that ask, the pattern of every head, layer by layer, and the source where there is one.

    `sources` are what the encoder reads where the heads are a decoder's that has one.

    Raises:
        InputError: a pattern is undefined; the first site that is so is named.
    """
    place = f"{heads.stack}.*.{'cross_attn' if heads.attention == 'cross' else 'attn'}.pattern"
    tokens = TokenBatch.from_rows(ids).to(model.device)
    if sources is None:
        source, read, target = None, tokens, least_target(model, len(ids))
    else:
        source = read = TokenBatch.from_rows(sources).to(model.device)
        target = tokens
    pattern = read_patterns(model, read, place, target)
    undefined = pattern.sum((1, 3)).isnan() & tokens.mask
    if bool(undefined.any()):
        row = int(undefined.any(1).int().argmax())
        alone = [each.ids[row][each.mask[row]][None] for each in (read, tokens)]
        check_finite(model, alone[0], None if len(model.config.stacks) == 1 or sources is None else alone[1])
        raise InputError(f"{place} holds NaN in {model.dtype} on a text of {len(ids[row])} tokens, though not alone")
    return tokens, pattern, source


def least_target(model: Model, count: int) -> Tensor | None:
    """The least that a decoder can read while its encoder is looked at; None where there is one stack."""
    if len(model.config.stacks) == 1:
        return None
    return torch.full((count, 1), model.config.target_start or 0)
