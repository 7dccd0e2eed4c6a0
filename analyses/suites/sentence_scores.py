"""How likely is a sentence to a model? The log-probability of each token, by the model and by rivals.

A causal model predicts each token from those before it, including what its tokenizer puts before every text, such as
`<s>`. If the tokenizer puts nothing there, the first token has no probability and is left out of both sentences of a
pair. A masked model predicts each token from all others, so the sum is the pseudo-log-likelihood (Salazar et al. 2020,
equation 2). Special tokens around a text are read but not scored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from analyses.execution import lots
from interp import AnnotatedText, InputError, Model, TokenBatch, Tokenizer
from interp.losses import token_losses
from interp.model import as_batch, texts_of
from interp.tokens import Span

LOT = 2_048  # sentences
_BUDGET = 1 << 28  # bytes of one pass's logits


class TokenScores(NamedTuple):
    """Each token of a sentence: its log-probability in nats (NaN if it has none) and the characters it stands for."""

    log_probability: Float[np.ndarray, " token"]
    spans: Sequence[Span]

    def total(self) -> float:
        """The whole sentence's log-probability."""
        return float(np.nansum(self.log_probability))

    def within(self, span: Span) -> float:
        """Log-probability of the tokens that start in a span, spaces aside; NaN if it has text but no such token."""
        inside = [span[0] <= start < span[1] for start, _ in self.spans]
        return float(np.nansum(self.log_probability[inside])) if any(inside) or span[0] == span[1] else np.nan


def score_sentences(model: Model, texts: Sequence[str], *, progress: lots.Progress | None = None) -> pd.DataFrame:
    """One row per text: `log_probability` in nats, the number of `tokens` in that sum, and the mean `per_token`.

    Args:
        model: a causal or a masked model with a tokenizer.
        texts: sentences, each read alone.
        progress: called with the number of lots done, and of all lots.

    Raises:
        InputError: the model has both an encoder and a decoder, no output layer, or no tokenizer; a text is empty, or
            longer than a masked model's context.
    """
    texts = texts_of(texts)
    scores = token_scores(model, texts, progress)
    table = pd.DataFrame({"text": texts, "log_probability": [scores[text].total() for text in texts]})
    table["tokens"] = [int((~np.isnan(scores[text].log_probability)).sum()) for text in texts]
    return table.assign(per_token=table["log_probability"] / table["tokens"])


def token_scores(model: Model, texts: Iterable[str], progress: lots.Progress | None = None) -> dict[str, TokenScores]:
    """The token scores of each distinct text; texts of similar length are read together, in lots."""
    tokenizer = _tokenizer(model)
    pieces = {text: tokenizer.pieces(text) for text in texts}
    if empty := [text for text in pieces if not pieces[text].ids]:
        raise InputError(f"expected sentences, got {empty[0]!r}, which has no token")
    order = sorted(pieces, key=lambda text: len(pieces[text].ids))
    parts = [order[start : start + LOT] for start in range(0, len(order), LOT)]
    values = np.concatenate(lots.do(partial(_score_lot, model), [(part,) for part in parts], progress) or [[]])
    rows = np.split(values, np.cumsum([len(pieces[text].ids) for text in order])[:-1])
    scores = dict[str, TokenScores]()
    for text, row in zip(order, rows, strict=True):  # a token's characters exclude the spaces before it
        spans = [(end - len(text[start:end].lstrip()), end) for start, end in pieces[text].spans]
        scores[text] = TokenScores(row, spans)
    return scores


def rival_scores(
    tokenizer: Tokenizer, scores: Mapping[str, TokenScores], by_ids: Callable[[np.ndarray], np.ndarray]
) -> dict[str, TokenScores]:
    """Score the same texts by a rival; `by_ids` gets a text's ids, including special tokens before them."""
    rivals = dict[str, TokenScores]()
    for text, each in scores.items():
        values = by_ids(np.array([*tokenizer.prefix, *tokenizer.pieces(text).ids]))[len(tokenizer.prefix) :]
        rivals[text] = TokenScores(np.where(np.isnan(each.log_probability), np.nan, values), each.spans)
    return rivals


def token_ids(model: Model, texts: Iterable[str | AnnotatedText]) -> Int[np.ndarray, " token"]:
    """The tokens of all texts in order, with the special tokens around each."""
    tokenizer = _tokenizer(model)
    ids = [tokenizer.encode(each if isinstance(each, str) else each.text) for each in texts]
    return np.array([*chain.from_iterable(ids)], dtype=np.int64)


def _tokenizer(model: Model) -> Tokenizer:
    config, tokenizer = model.config, model.tokenizer
    if len(config.stacks) > 1:
        raise InputError("sentences are scored by a decoder or an encoder alone: this model has both")
    if config.output == "none" or tokenizer is None:
        lacking = "output layer" if config.output == "none" else "tokenizer"
        raise InputError(f"expected a model that gives words a probability, got one without {lacking}")
    if config.decoder is None and tokenizer.mask_id is None:
        raise InputError("expected a causal or a masked model: this one's tokenizer has no token that hides a word")
    return tokenizer


def _score_lot(model: Model, texts: Sequence[str]) -> Float[np.ndarray, " token"]:
    tokenizer = _tokenizer(model)
    if model.config.decoder is None:
        return _pseudo_log_likelihoods(model, tokenizer, texts)
    rows = [tokenizer.pieces(text).ids for text in texts]
    first = [np.nan][len(tokenizer.prefix) :]  # without a prefix, the first token has no probability
    scored = [text for text, ids in zip(texts, rows, strict=True) if len(ids) > len(first)]
    # `token_losses` assumes rows as long as the context; ours are shorter, so more fit
    budget = _BUDGET * max(1, model.config.n_ctx // max(map(len, rows)))
    losses = iter(token_losses(model, scored, budget=budget) if scored else ())
    values = (next(losses)[: len(ids) - len(first)] if len(ids) > len(first) else torch.empty(0) for ids in rows)
    return np.concatenate([np.concatenate([first, -each.double().cpu().numpy()]) for each in values])


@torch.no_grad()
def _pseudo_log_likelihoods(model: Model, tokenizer: Tokenizer, texts: Sequence[str]) -> Float[np.ndarray, " token"]:
    assert tokenizer.mask_id is not None
    begin, after = len(tokenizer.prefix), len(tokenizer.suffix)
    ids = [tokenizer.encode(text) for text in texts]
    cells = [(row, place) for row in ids for place in range(begin, len(row) - after)]
    values, size = [], max(1, _BUDGET // (max(map(len, ids)) * model.config.d_vocab * model.dtype.itemsize))
    for start in range(0, len(cells), size):
        part = cells[start : start + size]
        rows = [[*row[:place], tokenizer.mask_id, *row[place + 1 :]] for row, place in part]
        logits = model(as_batch(model, TokenBatch.from_rows(rows)))
        assert logits is not None
        hidden = logits[range(len(part)), [place for _, place in part]]
        log_probabilities = hidden.to(torch.promote_types(hidden.dtype, torch.float32)).log_softmax(-1)
        values.append(log_probabilities[range(len(part)), [row[place] for row, place in part]].double().cpu().numpy())
    return np.concatenate(values)
