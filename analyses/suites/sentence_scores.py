"""How likely is a sentence to a model? The log-probability of each of its tokens, and the same of rivals.

A causal model scores each token after all those before it, and after what its tokenizer puts before every text, such as
`<s>`. Where it puts nothing there, the first token has no probability and is left out, in both sentences of a pair. In
a masked model each token in turn is hidden and foretold from all others, so that the sum is the pseudo-log-likelihood
(Salazar et al. 2020, equation 2). What a tokenizer puts around a text is read and not scored.
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
_BUDGET = 1 << 28  # bytes of the logits of one pass


class TokenScores(NamedTuple):
    """Of a sentence's tokens: log-probability in nats, NaN where there is none, and the characters it stands for."""

    log_probability: Float[np.ndarray, " token"]
    spans: Sequence[Span]

    def total(self) -> float:
        """Of the whole sentence."""
        return float(np.nansum(self.log_probability))

    def within(self, span: Span) -> float:
        """Of the tokens whose first visible character lies in a span; NaN where the span has text and no such token."""
        inside = [span[0] <= start < span[1] for start, _ in self.spans]
        return float(np.nansum(self.log_probability[inside])) if any(inside) or span[0] == span[1] else np.nan


def score_sentences(model: Model, texts: Sequence[str], *, progress: lots.Progress | None = None) -> pd.DataFrame:
    """One row a text: `log_probability` in nats, `tokens` that it adds up, and `per_token`, one by the other.

    Args:
        model: a causal or a masked model; its tokenizer cuts the texts.
        texts: each read by itself, as the module says.
        progress: is called with how many lots of sentences are done, and of how many.

    Raises:
        InputError: the model has an encoder and a decoder (a sentence would have no one probability), no output layer,
            or no tokenizer; a text is empty, or longer than a masked model's context.
    """
    texts = texts_of(texts)
    scores = token_scores(model, texts, progress)
    table = pd.DataFrame({"text": texts, "log_probability": [scores[text].total() for text in texts]})
    table["tokens"] = [int((~np.isnan(scores[text].log_probability)).sum()) for text in texts]
    return table.assign(per_token=table["log_probability"] / table["tokens"])


def token_scores(model: Model, texts: Iterable[str], progress: lots.Progress | None = None) -> dict[str, TokenScores]:
    """Every different text with its tokens' scores; those of similar length are read together, in lots."""
    tokenizer = _tokenizer(model)
    pieces = {text: tokenizer.pieces(text) for text in texts}
    if empty := [text for text in pieces if not pieces[text].ids]:
        raise InputError(f"expected sentences, got {empty[0]!r}, which has no token")
    order = sorted(pieces, key=lambda text: len(pieces[text].ids))
    parts = [order[start : start + LOT] for start in range(0, len(order), LOT)]
    values = np.concatenate(lots.do(partial(_score_lot, model), [(part,) for part in parts], progress) or [[]])
    rows = np.split(values, np.cumsum([len(pieces[text].ids) for text in order])[:-1])
    scores = dict[str, TokenScores]()
    for text, row in zip(order, rows, strict=True):  # the characters of tokens are those without spaces before them
        spans = [(end - len(text[start:end].lstrip()), end) for start, end in pieces[text].spans]
        scores[text] = TokenScores(row, spans)
    return scores


def rival_scores(
    tokenizer: Tokenizer, scores: Mapping[str, TokenScores], by_ids: Callable[[np.ndarray], np.ndarray]
) -> dict[str, TokenScores]:
    """The same texts and tokens scored by a rival; `by_ids` takes the ids of a text with the tokens before it."""
    rivals = dict[str, TokenScores]()
    for text, each in scores.items():
        values = by_ids(np.array([*tokenizer.prefix, *tokenizer.pieces(text).ids]))[len(tokenizer.prefix) :]
        rivals[text] = TokenScores(np.where(np.isnan(each.log_probability), np.nan, values), each.spans)
    return rivals


def token_ids(model: Model, texts: Iterable[str | AnnotatedText]) -> Int[np.ndarray, " token"]:
    """All texts in the model's own tokens, one after the other, each with what its tokenizer puts around it."""
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
    """Of the tokens of all texts, one after the other."""
    tokenizer = _tokenizer(model)
    if model.config.decoder is None:
        return _pseudo_log_likelihoods(model, tokenizer, texts)
    rows = [tokenizer.pieces(text).ids for text in texts]
    first = [np.nan][len(tokenizer.prefix) :]  # nothing foretells it where nothing comes before it
    scored = [text for text, ids in zip(texts, rows, strict=True) if len(ids) > len(first)]
    # the budget is of rows as long as the context: these are shorter, so that more go together
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
