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
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analyses.experiments.experiment import ARTICLES, STORIES, Experiment, Outcome, each_source, ends, panelled, said
from analyses.experiments.prompts import readable, streams
from analyses.figures.attention_lines import literal
from analyses.figures.experiment_plots import label_layers, layer_line
from analyses.figures.style import GREY, INK, panels, styled
from interp import Model
from interp.statistics import mean_interval


@dataclass(frozen=True)
class Ambiguous:
    """A word, frames that end in it by sense, and words of one sense to set beside it."""

    source: str
    word: str
    senses: Mapping[str, Sequence[str]]
    controls: Sequence[str]


_NOUN = ("Tim saw the", "Sue found the", "He lost his", "She liked the", "Then Tom had a", "Mia looked at the")
_VERB = ("Tim wanted to", "Sue started to", "He loved to", "She liked to", "Then Tom went to", "They wanted to")
WORDS = (
    Ambiguous(
        ARTICLES,
        "mole",
        {
            "animal": (
                *("An American shrew", "Under the lawn lives a"),
                *("The owl caught a furry", "The burrow of a blind"),
            ),
            "skin": (
                *("Take a biopsy of the", "The doctor removed a skin"),
                *("On her cheek was a dark", "Sunlight changed the"),
            ),
            "amount": (
                *("The formula weighs one", "The reaction gives half a"),
                *("Grams of carbon per", "Joules of heat per"),
            ),
        },
        ("rabbit", "cell", "pound"),
    ),
    *(
        Ambiguous(STORIES, word, {"noun": _NOUN, "verb": _VERB}, ("bell", "box", "find", "hear"))
        for word in ("ring", "help", "dance", "play")
    ),
)


def measure(model: Model, *, seed: int = 0) -> Outcome:
    """Cosine distances of a word's streams by layer: 0 as embedded, then after each layer.

    Columns: source, word, role (`ambiguous`, `control`: mean over control words, or `excess`: the difference), layer,
    between (senses; mean over frames), within (a sense), gap (between - within), ci_low, ci_high (of the gain, over
    frames), n. A word of several pieces is read at its last; its layer 0 is missing, being a piece's.

    Raises:
        InputError: no word can be used, or no tokenizer.
    """
    rows, used, left_out = [], Counter[str](), Counter[str]()
    for word in WORDS:
        senses = {sense: _readable(model, frames, word.word, word, left_out) for sense, frames in word.senses.items()}
        frames = [(sense, frame) for sense, kept in senses.items() if len(kept) > 1 for frame in kept]
        if len({sense for sense, _ in frames}) < 2:
            left_out[f"of the words (“{word.word}”, without two senses of two readable frames each)"] += 1
            continue
        used[word.source] += len(frames)
        rows += [row | {"source": word.source, "word": word.word} for row in _rows(model, word, frames, left_out, seed)]
    return Outcome(pd.DataFrame(rows), used, left_out)


def _readable(model: Model, frames: Sequence[str], ends: str, word: Ambiguous, left_out: Counter[str]) -> list[str]:
    """The frames that the model can read with a word at their end."""
    return readable(model, frames, word.source, left_out, lambda frame: [f"{frame} {ends}"])


def _rows(
    model: Model, word: Ambiguous, frames: list[tuple[str, str]], left_out: Counter[str], seed: int
) -> list[dict[str, object]]:
    senses, texts = zip(*frames, strict=True)
    own = distances(model, word.word, texts, senses)
    known = [each for each in word.controls if len(_readable(model, texts, each, word, Counter())) == len(texts)]
    left_out["control words that cannot be read in all frames"] += len(word.controls) - len(known)
    roles = {"ambiguous": own}
    if known:
        beside = np.mean([distances(model, control, texts, senses) for control in known], 0)
        roles |= {"control": beside, "excess": own - beside}
    found = []
    for role, (between, within) in roles.items():
        for layer, gap in enumerate(between - within):
            value, low, high, _ = mean_interval(gap, seed=seed) if not np.isnan(gap).any() else (np.nan,) * 4
            row = {"role": role, "layer": layer, "between": between[layer].mean(), "within": within[layer].mean()}
            found.append(row | {"gap": value, "ci_low": low, "ci_high": high, "n": len(frames)})
    return found


def distances(
    model: Model, word: str, frames: Sequence[str], senses: Sequence[str]
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


@each_source
def sentence(where: str, rows: pd.DataFrame) -> str:
    """Of the first word: how far apart its senses are after the last layer."""
    last = rows.loc[(rows["word"] == rows["word"].iloc[0]) & (rows["layer"] == rows["layer"].max())]
    roles = {row["role"]: row for row in last.to_dict("records")}
    own = roles["ambiguous"]
    text = (
        f"{where}, “{own['word']}” in {own['n']} frames lies {own['between']:.2f} apart between senses after the "
        f"last layer (cosine distance) and {own['within']:.2f} within one: a gap of {said(own, 'gap')}"
    )
    if beyond := roles.get("excess"):
        text += f", beyond that of unambiguous words by {said(beyond, 'gap')}"
    return text


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """By layer: how much farther apart a word is between senses than within one, beside unambiguous words."""
    drawn = {"ambiguous": (INK, "the word"), "control": (GREY, "unambiguous words in the same frames")}
    rows = table.loc[table["role"].isin(list(drawn))]
    found = [(str(word), group) for word, group in rows.groupby("word", sort=False)]
    columns = 3 if len(found) > 4 else 2
    figure, axes = panels(title, len(found), height=2.3, columns=columns, key=0.7)
    for ax, (word, group) in zip(axes, found, strict=True):
        for role, (colour, label) in drawn.items():
            layer_line(ax, group.loc[group["role"] == role], ("gap", "ci_low", "ci_high"), colour, label)
        ax.axhline(0, color="black", lw=0.6)
        ax.set(title=f"{literal(word)} ({group['n'].iloc[0]} frames)")
    label_layers(figure, axes, "distance between\nsenses, beyond\nthat within one", columns)
    return figure


def seen(table: pd.DataFrame) -> str:
    """How each word's line goes over the layers, and that of unambiguous words."""
    names = {"ambiguous": "the word", "control": "unambiguous words"}
    return panelled(
        (str(word), ", ".join(f"{said} {ends(own.loc[own['role'] == role], 'gap')}" for role, said in names.items()))
        for word, own in table.groupby("word", sort=False)
    )


WORD_SENSE = Experiment(
    name="word-sense",
    title="Mole and ring",
    question="How far apart are the senses of one word, layer by layer?",
    command="word-sense",
    caption=(
        "The gap between two senses beyond that within one, with 95% intervals over frames; unambiguous words in the "
        "same frames move with the context alone."
    ),
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
