"""Mole in three contexts, ring as noun and verb: how far apart are the word's residual streams, layer by layer?

Every word ends its frame, so that a causal model has read the context. Any word moves with its context; so the distance
between senses is set against that within a sense, and against unambiguous words in the same frames.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.experiments.prompts import (
    ARTICLES,
    STORIES,
    finish,
    paragraph,
    readable,
    sources,
    streams,
    with_interval,
)
from interp import Transformer
from interp.statistics import mean_interval

NAME, COMMAND = "word-sense", "word-sense"
TITLE = "Mole and ring"
QUESTION = "How far apart are the senses of one word, layer by layer?"
CAPTION = (
    "The gap between two senses beyond that within one, with 95% intervals over frames; unambiguous words in the "
    "same frames move with the context alone."
)


@dataclass(frozen=True)
class Ambiguous:
    """A word, frames that end in it by sense, and words of one sense to set beside it."""

    source: str
    word: str
    senses: Mapping[str, Sequence[str]]
    controls: Sequence[str]


_NOUN = ("Tim saw the", "Sue found the", "He lost his", "She liked the", "Then Tom had a", "Mia looked at the")
_VERB = ("Tim wanted to", "Sue started to", "He loved to", "She liked to", "Then Tom went to", "They wanted to")
_NOUN_OR_VERB = {"noun": _NOUN, "verb": _VERB}
WORDS = (
    Ambiguous(
        ARTICLES,
        "mole",
        {
            "animal": (
                "An American shrew",
                "Under the lawn lives a",
                "The owl caught a furry",
                "The burrow of a blind",
            ),
            "skin": (
                "Take a biopsy of the",
                "The doctor removed a skin",
                "On her cheek was a dark",
                "Sunlight changed the",
            ),
            "amount": (
                "The formula weighs one",
                "The reaction gives half a",
                "Grams of carbon per",
                "Joules of heat per",
            ),
        },
        ("rabbit", "cell", "pound"),
    ),
    Ambiguous(STORIES, "ring", _NOUN_OR_VERB, ("bell", "box", "find", "hear")),
    Ambiguous(STORIES, "help", _NOUN_OR_VERB, ("bell", "box", "find", "hear")),
    Ambiguous(STORIES, "dance", _NOUN_OR_VERB, ("bell", "box", "find", "hear")),
    Ambiguous(STORIES, "play", _NOUN_OR_VERB, ("bell", "box", "find", "hear")),
)


def measure(model: Transformer, *, seed: int = 0) -> pd.DataFrame:
    """Cosine distances of a word's streams by layer: 0 as embedded, then after each layer.

    Columns: source, word, role (`ambiguous`, `control`: mean over control words, or `excess`: the difference), layer,
    between (senses; mean over frames), within (a sense), gap (between - within), ci_low, ci_high (of the gain, over
    frames), n. A word of several pieces is read at its last; its layer 0 is missing, being a piece's.

    Raises:
        InputError: no word can be used, or no tokenizer.
    """
    left_out: Counter[str] = Counter()
    rows, used = [], Counter[str]()
    for word in WORDS:
        senses = {sense: _kept(model, frames, word, left_out) for sense, frames in word.senses.items()}
        frames = [(sense, frame) for sense, kept in senses.items() if len(kept) > 1 for frame in kept]
        if len({sense for sense, _ in frames}) < 2:
            left_out[f"of the words (“{word.word}”, without two senses of two readable frames each)"] += 1
            continue
        used[word.source] += len(frames)
        rows += [row | {"source": word.source, "word": word.word} for row in _rows(model, word, frames, left_out, seed)]
    return finish(pd.DataFrame(rows), left_out, used)


def _kept(model: Transformer, frames: Sequence[str], word: Ambiguous, left_out: Counter[str]) -> list[str]:
    texts = readable(model, [f"{frame} {word.word}" for frame in frames], word.source, left_out)
    return [text.removesuffix(f" {word.word}") for text in texts]


def _rows(
    model: Transformer, word: Ambiguous, frames: list[tuple[str, str]], left_out: Counter[str], seed: int
) -> list[dict[str, object]]:
    senses = [sense for sense, _ in frames]
    own = distances(model, word.word, [frame for _, frame in frames], senses)
    texts = {control: [f"{frame} {control}" for _, frame in frames] for control in word.controls}
    known = [
        control for control, each in texts.items() if len(readable(model, each, word.source, Counter())) == len(frames)
    ]
    left_out["control words that cannot be read in all frames"] += len(texts) - len(known)
    roles = {"ambiguous": own}
    if known:
        beside = [distances(model, control, [frame for _, frame in frames], senses) for control in known]
        roles |= {"control": np.mean(beside, 0), "excess": own - np.mean(beside, 0)}
    found = []
    for role, (between, within) in roles.items():
        for layer, gap in enumerate(between - within):
            value, low, high, _ = mean_interval(gap, seed=seed) if not np.isnan(gap).any() else (np.nan,) * 4
            row = {"role": role, "layer": layer, "between": between[layer].mean(), "within": within[layer].mean()}
            found.append(row | {"gap": value, "ci_low": low, "ci_high": high, "n": len(frames)})
    return found


def distances(
    model: Transformer, word: str, frames: Sequence[str], senses: Sequence[str]
) -> Float[NDArray[np.float64], "2 layer frame"]:
    """1 - cosine of the word's stream in each frame and in frames of other senses, and of its own: means."""
    x = streams(model, [f"{frame} {word}" for frame in frames]).numpy()
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    apart = 1 - x @ x.swapaxes(1, 2)  # layer frame frame
    same = np.equal.outer(*[np.unique(senses, return_inverse=True)[1]] * 2)
    itself = np.eye(len(senses), dtype=bool)
    between, within = ((apart * pick).sum(-1) / pick.sum(-1) for pick in (~same, same & ~itself))
    found = np.stack([between, within])
    if model.tokenizer is not None and len(model.tokenizer.continuation(f" {word}")) > 1:
        found[:, 0] = np.nan
    return found


def sentence(table: pd.DataFrame) -> str:
    """Of the first word of each source: how far apart its senses are after the last layer."""
    said = []
    for where, rows in sources(table):
        last = rows.loc[(rows["word"] == rows["word"].iloc[0]) & (rows["layer"] == rows["layer"].max())]
        roles = {row["role"]: row for row in last.to_dict("records")}
        own, beyond = roles["ambiguous"], roles.get("excess")
        text = (
            f"{where}, “{own['word']}” in {own['n']} frames lies {own['between']:.2f} apart between senses after the "
            f"last layer (cosine distance) and {own['within']:.2f} within one: a gap of "
            f"{with_interval(own['gap'], own['ci_low'], own['ci_high'])}"
        )
        if beyond:
            more = with_interval(beyond["gap"], beyond["ci_low"], beyond["ci_high"])
            text += f", beyond that of unambiguous words by {more}"
        said.append(text)
    return paragraph(said)
