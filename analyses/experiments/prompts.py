"""Which of an experiment's prompts can a model use, and what does it hold where they end?"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import InputError, TokenBatch, Tokenizer, Transformer, run

ARTICLES, STORIES = "articles", "stories"  # where prompts come from: the source articles, or the words of our stories
# Tokens a word on average beyond which a text reaches the model as letters. Stories' words may have more: a small
# vocabulary spells even the words that its model knows best.
_MOST_PIECES = {ARTICLES: 2.0, STORIES: 3.0}
_SAYS = {ARTICLES: "on the articles' own prompts", STORIES: "on prompts in the stories' words"}


def tokenizer_of(model: Transformer, *, unfinished: bool = True) -> Tokenizer:
    """The tokenizer of a model that an experiment can run on; one with texts that stop midway needs a causal model.

    Raises:
        InputError: the model has no tokenizer or two stacks, or reads unfinished texts and is not causal.
    """
    if len(model.config.stacks) > 1:
        raise InputError("this experiment reads one text: expected a model of one stack, got an encoder and a decoder")
    if unfinished and not model.config.last.causal:
        raise InputError("this experiment reads unfinished texts: expected a causal model, got an encoder")
    if model.tokenizer is None:
        raise InputError("this experiment reads words: expected a model with a tokenizer, got one without")
    return model.tokenizer


def unreadable(model: Transformer, text: str, source: str) -> str | None:
    """Why the model cannot use a text; None where it can."""
    tokenizer = tokenizer_of(model)
    ids = tokenizer.pieces(text).ids
    if tokenizer.unknown_id is not None and tokenizer.unknown_id in ids:
        return "words outside the vocabulary"
    if len(ids) > _MOST_PIECES[source] * len(text.split()):
        return f"words that come apart (over {_MOST_PIECES[source]:g} pieces each on average)"
    if len(tokenizer.prefix) + len(ids) > model.config.n_ctx:
        return "more tokens than the context"
    return None


def readable(model: Transformer, texts: Iterable[str], source: str, left_out: Counter[str]) -> list[str]:
    """The texts that the model can use; the others are counted by reason."""
    reasons = {text: unreadable(model, text, source) for text in texts}
    left_out.update(f"prompts with {reason}" for reason in reasons.values() if reason)
    return [text for text, reason in reasons.items() if reason is None]


def batch_of(model: Transformer, texts: Sequence[str]) -> TokenBatch:
    """Unfinished texts: what the model expects before them, nothing behind."""
    tokenizer = tokenizer_of(model)
    return TokenBatch.from_rows([[*tokenizer.prefix, *tokenizer.pieces(text).ids] for text in texts]).to(model.device)


def streams(model: Transformer, texts: Sequence[str]) -> Float[Tensor, "layer text d_model"]:
    """The residual stream at each text's last token: as embedded, then after every layer."""
    (stack,) = model.config.stacks
    batch = batch_of(model, texts)
    sites = [f"{stack}.embed", *(f"{stack}.{layer}.resid_post" for layer in range(model.config.n_layers))]
    out = run(model, batch, capture=sites)
    row = torch.arange(len(texts), device=model.device)
    return torch.stack([out[site][row, batch.lengths - 1] for site in sites]).double().cpu()


def finish(
    table: pd.DataFrame, left_out: Counter[str], used: Mapping[str, int], refused: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """The table with what it was made from: prompts used by source, prompts left out, sources refused and why.

    Raises:
        InputError: nothing could be used.
    """
    if table.empty:
        reasons = [f"{count} {reason}" for reason, count in left_out.items()]
        reasons += [f"{source}: {why}" for source, why in (refused or {}).items()]
        raise InputError(
            f"no prompt of this experiment can be used with this model: {'; '.join(reasons) or 'none fit'}"
        )
    table.attrs = {"left_out": dict(left_out), "used": dict(used), "refused": dict(refused or {})}
    return table


def sources(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The table's rows by where their prompts come from, each with words that say so."""
    return [(_SAYS[source], table.loc[table["source"] == source]) for source in table["source"].unique()]


def paragraph(said: Sequence[str]) -> str:
    """What was said of each source as one sentence."""
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def remark(table: pd.DataFrame) -> str:
    """What was left out and refused, as sentences; nothing where nothing was."""
    left_out, refused = table.attrs.get("left_out", {}), table.attrs.get("refused", {})
    said = [f"{count} {reason}" for reason, count in left_out.items() if count]
    parts = [f"Left out: {', '.join(said)}."] if said else []
    parts += [f"Nothing is said {_SAYS[source]}: {why}." for source, why in refused.items()]
    return " ".join(parts)


def largest(table: pd.DataFrame, column: str) -> dict[str, Any]:
    """The row that has the largest value in a column."""
    return table.loc[[table[column].idxmax()]].to_dict("records")[0]


def with_interval(value: float, low: float, high: float) -> str:
    """A number and its 95% interval as text."""
    return rounded(value) if isnan(low) else f"{rounded(value)} (95% {rounded(low)} to {rounded(high)})"


def rounded(value: float) -> str:
    """A number to two digits; nothing has no sign."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
