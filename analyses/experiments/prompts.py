"""Which of an experiment's prompts can a model use, and what does it hold where they end?"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.experiments.experiment import ARTICLES, STORIES
from interp import InputError, Model, TokenBatch, Tokenizer, run

# Tokens a word on average beyond which a text reaches the model as letters. Stories' words may have more: a small
# vocabulary spells even the words that its model knows best.
_MOST_PIECES = {ARTICLES: 2.0, STORIES: 3.0}
Item = TypeVar("Item")


@cache
def experiment_data(name: str) -> Any:
    """The texts, the plot and the prompts of an experiment, of `prompts.toml`."""
    return tomllib.loads(files("analyses.experiments").joinpath("prompts.toml").read_text(encoding="utf-8"))[name]


def tokenizer_of(model: Model, *, unfinished: bool = True) -> Tokenizer:
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


def _unreadable(model: Model, text: str, source: str) -> str | None:
    """Why the model cannot use a text; None if it can."""
    tokenizer = tokenizer_of(model)
    ids = tokenizer.pieces(text).ids
    if tokenizer.unknown_id is not None and tokenizer.unknown_id in ids:
        return "words outside the vocabulary"
    if len(ids) > _MOST_PIECES[source] * len(text.split()):
        return f"words that come apart (over {_MOST_PIECES[source]:g} pieces each on average)"
    if len(tokenizer.prefix) + len(ids) > model.config.n_ctx:
        return "more tokens than the context"
    return None


def readable(
    model: Model,
    items: Iterable[Item],
    source: str,
    left_out: Counter[str],
    texts: Callable[[Item], Iterable[str]],
    what: str = "prompts",
) -> list[Item]:
    """The items of one source of which the model can use every text; `left_out` counts the others by reason."""
    usable = []
    for item in items:
        reasons = (_unreadable(model, text, source) for text in texts(item))
        if reason := next(filter(None, reasons), None):
            left_out[f"{what} with {reason}"] += 1
        else:
            usable.append(item)
    return usable


def batch_of(model: Model, texts: Sequence[str]) -> TokenBatch:
    """Unfinished texts: what the model expects before them, nothing behind."""
    tokenizer = tokenizer_of(model)
    return TokenBatch.from_rows([[*tokenizer.prefix, *tokenizer.pieces(text).ids] for text in texts]).to(model.device)


def streams(model: Model, texts: Sequence[str]) -> Float[Tensor, "layer text d_model"]:
    """The residual stream at each text's last token: as embedded, then after every layer."""
    (stack,) = model.config.stacks
    batch = batch_of(model, texts)
    sites = [f"{stack}.embed", *(f"{stack}.{layer}.resid_post" for layer in range(model.config.n_layers))]
    out = run(model, batch, capture=sites)
    row = torch.arange(len(texts), device=model.device)
    return torch.stack([out[site][row, batch.lengths - 1] for site in sites]).double().cpu()
