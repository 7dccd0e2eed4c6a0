"""How well does a causal model predict a text of any length? The cross-entropy of each next token."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.model import Model, Tokens, as_batch, texts_of
from interp.tokens import TokenBatch


def loss(model: Model, text: Tokens, *, stride: int | None = None, budget: int = 1 << 28) -> float:
    """Mean loss of next tokens over all tokens of all texts, in nats a token; arguments are those of `token_losses`."""
    return float(torch.cat(token_losses(model, text, stride=stride, budget=budget)).mean())


@torch.no_grad()
def token_losses(
    model: Model, text: Tokens, *, stride: int | None = None, budget: int = 1 << 28
) -> list[Float[Tensor, " token"]]:
    """Cross-entropy of each next token, in nats: one fewer than the text has tokens.

    A text longer than the model's context is read in overlapping windows, which begin with the model's special tokens.
    Each token is scored once: the first window scores all its tokens, each later one its last `stride`. So every
    token there has a context of at least `n_ctx - stride`.

    Args:
        model: a decoder with an output layer, edited or not.
        text: a text, a list of texts, a `TokenBatch`, or ids; of any length.
        stride: tokens from one window to the next; by default half a window.
        budget: most bytes for the logits of one pass.
    """
    config = model.config
    if len(config.stacks) > 1 or config.decoder is None or config.output == "none":
        raise InputError("only a decoder without an encoder, with an output layer, has a next-token loss")
    prefix, texts = _texts(model, text)
    if short := [number for number, ids in enumerate(texts) if len(prefix) + len(ids) < 2]:
        raise InputError(f"expected texts of two tokens or more, got fewer in text {short[0]}")
    room = config.n_ctx - len(prefix)
    stride = max(1, room // 2) if stride is None else stride
    if not 1 <= stride < room:
        raise InputError(f"stride must lie in 1-{room - 1}, below the tokens of a window; got {stride}")
    windows = [  # their ids, first scored positions and texts
        (prefix + window, first + len(prefix), number)
        for number, ids in enumerate(texts)
        for window, first in _windows(ids, room, stride)
    ]
    losses: list[list[Tensor]] = [[] for _ in texts]
    size = max(1, budget // (config.n_ctx * config.d_vocab * model.dtype.itemsize))
    for start in range(0, len(windows), size):
        batch = as_batch(model, TokenBatch.from_rows([ids for ids, _, _ in windows[start : start + size]]))
        logits = model(batch)
        assert logits is not None
        for row, (ids, first, number) in enumerate(windows[start : start + size]):
            begin = max(first, 1)  # nothing predicts the first token
            scores = logits[row, begin - 1 : len(ids) - 1].to(torch.promote_types(logits.dtype, torch.float32))
            losses[number].append(F.cross_entropy(scores, batch.ids[row, begin : len(ids)], reduction="none"))
    return [torch.cat(each) for each in losses]


def _texts(model: Model, text: Tokens) -> tuple[list[int], list[list[int]]]:
    if isinstance(text, TokenBatch | Tensor):
        return [], (text if isinstance(text, TokenBatch) else TokenBatch.from_ids(text)).id_lists()
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer: give ids (a tensor, prompt x position) instead of text")
    tokenizer = model.tokenizer
    return [*tokenizer.prefix], [[*tokenizer.pieces(each).ids, *tokenizer.suffix] for each in texts_of(text)]


def _windows(ids: Sequence[int], room: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """Windows of a text, each with the first position that it scores; the last ends with the text."""
    yield [*ids[:room]], 0
    for first in range(room, len(ids), stride):
        end = min(first + stride, len(ids))
        yield [*ids[end - room : end]], first - (end - room)
