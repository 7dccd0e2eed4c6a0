"""Which text does each kind of attention read, and what are its patterns there?

An encoder reads the source, a decoder's self-attention the target, cross-attention looks from the target into the
source. A text with no target of its own is its own target.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from analyses.reading.head_kinds import Heads
from interp import AnnotatedText, InputError, Model, TokenBatch, Tokenizer
from interp.finite import check_finite
from interp.patterns.norm_weighted import NormWeighted
from interp.patterns.one_attention import read_patterns
from interp.patterns.rows import Pattern
from interp.running import Tokens, target_tokenizer


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


class Given(NamedTuple):
    """What a model reads so that some heads' patterns can be.

    tokens   those that the heads' queries stand on
    source   what the encoder reads, where the heads are a decoder's that has one
    read     what the first stack reads
    target   what the decoder reads, where there is an encoder
    """

    tokens: TokenBatch
    source: TokenBatch | None
    read: TokenBatch
    target: Tokens | None


def given(model: Model, ids: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None) -> Given:
    """What is read of `ids`; `sources` are what the encoder reads where the heads are a decoder's that has one."""
    tokens = TokenBatch.from_rows(ids).to(model.device)
    if sources is None:
        return Given(tokens, None, tokens, least_target(model, len(ids)))
    source = TokenBatch.from_rows(sources).to(model.device)
    return Given(tokens, source, source, tokens)


def patterns(model: Model, heads: Heads, given: Given) -> Pattern:
    """The pattern of every head, layer by layer.

    Raises:
        InputError: a pattern is undefined; the first site that is so is named.
    """
    pattern = read_patterns(model, given.read, _place(heads), given.target)
    _check_defined(model, heads, given, pattern)
    return pattern


def patterns_by_norm(weighted: NormWeighted, heads: Heads, given: Given) -> tuple[Pattern, Pattern]:
    """As `patterns`, with the patterns weighed by the norm of what is written behind the model's own; of one pass.

    Raises:
        InputError: as `patterns`.
    """
    pattern, by_norm = weighted.beside(given.read, given.target)
    _check_defined(weighted.model, heads, given, pattern)
    return pattern, by_norm


def _place(heads: Heads) -> str:
    return f"{heads.stack}.*.{'cross_attn' if heads.attention == 'cross' else 'attn'}.pattern"


def _check_defined(model: Model, heads: Heads, given: Given, pattern: Tensor) -> None:
    undefined = pattern.sum((1, 3)).isnan() & given.tokens.mask
    if not bool(undefined.any()):
        return
    row = int(undefined.any(1).int().argmax())
    alone = [each.ids[row][each.mask[row]][None] for each in (given.read, given.tokens)]
    check_finite(model, alone[0], None if given.source is None else alone[1])
    n_tokens = int(given.tokens.mask[row].sum())
    raise InputError(f"{_place(heads)} holds NaN in {model.dtype} on a text of {n_tokens} tokens, though not alone")


def least_target(model: Model, count: int) -> Tensor | None:
    """The least that a decoder can read while its encoder is looked at; None where there is one stack."""
    if len(model.config.stacks) == 1:
        return None
    return torch.full((count, 1), model.config.target_start or 0)
