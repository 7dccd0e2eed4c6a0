"""What a model reads: text, ids or a batch, made into the batch of each stack and checked against the model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interp.errors import InputError
from interp.model import Model
from interp.tokens import Text, TokenBatch, Tokenizer

Tokens = str | Sequence[Text] | TokenBatch | Tensor


def as_batches(model: Model, tokens: Tokens, target: Tokens | None) -> tuple[TokenBatch, TokenBatch | None]:
    """What the first stack reads and, where there are two, what the decoder reads."""
    batch, n_stacks = as_batch(model, tokens, pairs=True), len(model.config.stacks)
    if n_stacks == 1:
        if target is not None:
            raise InputError("this model has one stack, which reads one text: expected no target")
        return batch, None
    if target is None:
        raise InputError(f"it has an encoder and a decoder: give target=, text or ids from {model.config.target_start}")
    decoded = as_target(model, target)
    n_texts = len(batch.ids)
    if len(decoded.ids) not in {1, n_texts}:
        raise InputError(f"expected one target for each of {n_texts} texts, or one for all; got {len(decoded.ids)}")
    return batch, decoded if len(decoded.ids) == n_texts else decoded.rows(torch.zeros(n_texts, dtype=torch.long))


def check_model(model: Any) -> None:
    """Refuse what is no model, such as its name."""
    if not hasattr(model, "config"):
        load = f"models.load({model!r})" if isinstance(model, str) else 'models.load("default")'
        raise InputError(f"expected a model, as {load} gives it; got {model!r}")


def texts_of(given: Any) -> Sequence[Text]:
    """One text, or a list of texts or pairs of texts, as a list."""
    texts = [given] if isinstance(given, str) else given
    expected = "expected a text, a list of texts or of pairs of them, or ids as a tensor"
    if not isinstance(texts, Sequence) or isinstance(texts, bytes):
        raise InputError(f"{expected}; got {texts!r}, of type {type(texts).__name__}")
    for text in texts:
        if not all(isinstance(each, str) for each in (text if isinstance(text, tuple) and len(text) == 2 else [text])):
            raise InputError(f"{expected}; got {text!r} in the list, of type {type(text).__name__}")
    return texts


def as_target(model: Model, target: Tokens) -> TokenBatch:
    """`target` as the decoder reads it: text with the decoder's start id before it and no end after it."""
    if not isinstance(target, TokenBatch | Tensor):
        texts = texts_of(target)
        if not all(isinstance(text, str) for text in texts):
            raise InputError("a decoder reads single texts: expected no pair of texts as a target")
        target = TokenBatch.from_texts(texts, target_tokenizer(model))
    return as_batch(model, target, "decoder")


def target_tokenizer(model: Model) -> Tokenizer:
    """What makes a decoder's input of text: its start id, what stands before every target, and no end."""
    tokenizer, start = model.target_tokenizer, model.config.target_start
    if tokenizer is None or start is None:
        lacking = "tokenizer" if tokenizer is None else "start id"
        raise InputError(f"this model has no {lacking} for its decoder: give target ids instead of text")
    # twice where targets begin with the start id itself: in training the start id stood before whole targets
    return tokenizer.around((start, *tokenizer.prefix), ())


def as_batch(model: Model, tokens: Tokens, stack: str | None = None, *, pairs: bool = False) -> TokenBatch:
    """`tokens` as a batch on the model's device, as `stack` reads it, by default the first."""
    check_model(model)
    if isinstance(tokens, TokenBatch):
        batch = tokens
    elif isinstance(tokens, Tensor):
        batch = TokenBatch.from_ids(tokens)
    elif model.tokenizer is None:
        raise InputError("this model has no tokenizer: give ids (a tensor, prompt x position) instead of text")
    else:
        batch = TokenBatch.from_texts(texts_of(tokens), model.tokenizer)
    config = model.config.stacks[stack or next(iter(model.config.stacks))]
    n_ctx, d_vocab = config.n_ctx, config.d_vocab
    longest = int(batch.lengths.max())
    if longest > n_ctx:
        raise InputError(f"a text of {longest} tokens is longer than the model's context of {n_ctx}: shorten it")
    low, high = int(batch.ids.min()), int(batch.ids.max())
    if low < 0 or high >= d_vocab:
        raise InputError(f"token ids must lie in 0-{d_vocab - 1}, the model's vocabulary; got {low} to {high}")
    return _segmented(batch, config.n_token_types, pairs=pairs).to(model.device)


def _segmented(batch: TokenBatch, n_token_types: int, *, pairs: bool) -> TokenBatch:
    """The batch with segments only where a model tells them apart."""
    if batch.segments is None:
        return batch
    if n_token_types < 2:
        return replace(batch, segments=None)
    if not pairs:
        raise InputError("pairs of texts are read by `run` alone: give single texts here")
    if int(batch.segments.min()) < 0 or int(batch.segments.max()) >= n_token_types:
        raise InputError(f"segments must lie in 0-{n_token_types - 1}, got up to {int(batch.segments.max())}")
    return batch
