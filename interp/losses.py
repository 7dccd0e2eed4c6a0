"""How well does a causal model predict a text? Cross-entropy of each next token, of texts of any length."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.model import Model, Tokens, as_batch, texts_of
from interp.tokens import TokenBatch

_Window = tuple[list[int], int, int]  # its ids, the first that is scored, and which text's it is


def loss(model: Model, text: Tokens, *, stride: int | None = None, budget: int = 1 << 28) -> float:
    """Mean loss of next tokens, in nats a token, over all tokens of all texts alike; arguments as of `token_losses`."""
    return float(torch.cat(token_losses(model, text, stride=stride, budget=budget)).mean())


@torch.no_grad()
def token_losses(
    model: Model, text: Tokens, *, stride: int | None = None, budget: int = 1 << 28
) -> list[Float[Tensor, " token"]]:
    """Cross-entropy of each next token, in nats; of each text one less than it has tokens.

    A text longer than the model's context is read in overlapping windows, which begin with the model's special tokens.
    Each token is scored once: in the first window all, in each later one the last `stride`, so that each has a context
    of at least `n_ctx - stride` there.

    Args:
        model: a decoder with an output layer, edited or not.
        text: a text, a list of texts, a `TokenBatch`, or ids; of any length.
        stride: by how many tokens windows move; by default half of what a window holds.
        budget: bytes that the logits of one pass may take.
    """
    config = model.config
    if len(config.stacks) > 1 or config.decoder is None or config.output == "none":
        raise InputError("a loss of next tokens is of a decoder alone, with an output layer: this model is none")
    prefix, texts = _texts(model, text)
    if short := [number for number, ids in enumerate(texts) if len(prefix) + len(ids) < 2]:
        raise InputError(f"expected texts of two tokens or more, got fewer in text {short[0]}")
    room = config.n_ctx - len(prefix)
    stride = max(1, room // 2) if stride is None else stride
    if not 1 <= stride < room:
        raise InputError(f"stride must lie in 1-{room - 1}, less than a window holds; got {stride}")
    windows = [
        (prefix + window, first + len(prefix), number)
        for number, ids in enumerate(texts)
        for window, first in _windows(ids, room, stride)
    ]
    losses: list[list[Tensor]] = [[] for _ in texts]
    size = max(1, budget // (config.n_ctx * config.d_vocab * model.dtype.itemsize))
    for start in range(0, len(windows), size):
        batch = windows[start : start + size]
        for (_, _, number), values in zip(batch, _losses(model, batch), strict=True):
            losses[number].append(values)
    return [torch.cat(each) for each in losses]


def _texts(model: Model, text: Tokens) -> tuple[list[int], list[list[int]]]:
    if isinstance(text, TokenBatch | Tensor):
        batch = text if isinstance(text, TokenBatch) else TokenBatch.from_ids(text)
        return [], batch.id_lists()
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer: give ids (a tensor, prompt x position) instead of text")
    tokenizer = model.tokenizer
    return [*tokenizer.prefix], [[*tokenizer.pieces(each).ids, *tokenizer.suffix] for each in texts_of(text)]


def _windows(ids: Sequence[int], room: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """Windows of a text, and the first token that each scores; the last ends with the text."""
    yield [*ids[:room]], 0
    for first in range(room, len(ids), stride):
        end = min(first + stride, len(ids))
        yield [*ids[end - room : end]], first - (end - room)


def _losses(model: Model, windows: Sequence[_Window]) -> Iterator[Tensor]:
    batch = as_batch(model, TokenBatch.from_rows([ids for ids, _, _ in windows]))
    logits = model(batch)
    assert logits is not None
    at_least_float32 = torch.promote_types(logits.dtype, torch.float32)
    for row, (ids, first, _) in enumerate(windows):
        start = max(first, 1)  # nothing predicts the first token
        scores = logits[row, start - 1 : len(ids) - 1].to(at_least_float32).log_softmax(-1)
        yield -scores.gather(-1, batch.ids[row, start : len(ids), None])[:, 0]
