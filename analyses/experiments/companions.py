"""Girl and boy against girl and car: how alike are they in the embedding and along the layers?

The three words stand in the same frames, at their end, so that only the word differs.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.experiments.experiment import (
    ARTICLES,
    STORIES,
    Experiment,
    Outcome,
    each_source,
    ends,
    panelled,
    rounded,
    said,
)
from analyses.experiments.prompts import readable, streams, tokenizer_of
from analyses.figures.attention_lines import literal
from analyses.figures.experiment_plots import label_layers, layer_line
from analyses.figures.style import GREY, INK, panels, styled
from interp import Model
from interp.statistics import mean_interval


@dataclass(frozen=True)
class Triple:
    """A word, one of its kind, and one of another."""

    source: str
    word: str
    near: str
    far: str


TRIPLES = (
    Triple(ARTICLES, "girl", "boy", "car"),
    Triple(STORIES, "girl", "boy", "box"),
    Triple(STORIES, "queen", "king", "tree"),
    Triple(STORIES, "mother", "father", "house"),
    Triple(STORIES, "woman", "man", "bell"),
)
_WORDS = ["word", "near", "far"]
FRAMES = (
    *("Tim saw the", "Sue looked at the", "Then he found a", "She was behind the", "There was a", "Tom liked the"),
    *("It was near the", "He saw the little", "They looked at the", "Mia found the", "This is a", "Ben went to the"),
)


def measure(model: Model, *, seed: int = 0) -> Outcome:
    """Cosine of a word's stream with that of one of its kind and of another, by layer: 0 as embedded.

    Columns: source, word, near, far (the words), layer, near_cosine, near_low, near_high, far_cosine, far_low,
    far_high, gap (near - far), ci_low, ci_high (over frames), n. A triple is used where its words have as many pieces;
    of several pieces the last is read, and layer 0 is missing.

    Raises:
        InputError: no triple can be used, or no tokenizer.
    """
    tokenizer = tokenizer_of(model)
    rows, used, left_out = [], Counter[str](), Counter[str]()
    for triple in TRIPLES:
        words = (triple.word, triple.near, triple.far)
        pieces = {len(tokenizer.continuation(f" {word}")) for word in words}
        if len(pieces) > 1:
            left_out[f"of the triples (“{'”, “'.join(words)}”, of unlike numbers of pieces)"] += 1
            continue
        wanted = [[f"{frame} {word}" for word in words] for frame in FRAMES]
        kept = [texts for texts in wanted if readable(model, texts, triple.source, left_out, lambda t: [t]) == texts]
        if kept:
            used[triple.source] += len(kept)
            rows += _rows(model, triple, kept, seed, whole=pieces == {1})
    return Outcome(pd.DataFrame(rows), used, left_out)


def _rows(model: Model, triple: Triple, kept: list[list[str]], seed: int, *, whole: bool) -> list[dict[str, object]]:
    own, near, far = (streams(model, [texts[at] for texts in kept]).numpy() for at in range(3))
    rows = []
    for layer in range(0 if whole else 1, len(own)):
        cosines = {"near": _cosine(own[layer], near[layer]), "far": _cosine(own[layer], far[layer])}
        row: dict[str, object] = {"source": triple.source, "word": triple.word, "near": triple.near, "far": triple.far}
        for side, values in cosines.items():
            columns = (f"{side}_{what}" for what in ("cosine", "low", "high"))
            row |= dict(zip(columns, mean_interval(values, seed=seed), strict=False))
        value, low, high, _ = mean_interval(cosines["near"] - cosines["far"], seed=seed)
        rows.append(row | {"layer": layer, "gap": value, "ci_low": low, "ci_high": high, "n": len(kept)})
    return rows


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


@each_source
def sentence(where: str, rows: pd.DataFrame) -> str:
    """The first triple at its first and last layer."""
    own = rows.loc[(rows[_WORDS] == rows[_WORDS].iloc[0]).all(axis=1)]
    first, *_, last = own.sort_values("layer").to_dict("records")
    begin = "in the embedding" if first["layer"] == 0 else f"after layer {first['layer']}"
    return (
        f"{where} ({first['n']} frames), the cosine of “{first['word']}” with “{first['near']}” and with "
        f"“{first['far']}” is {rounded(first['near_cosine'])} against {rounded(first['far_cosine'])} {begin} and "
        f"{rounded(last['near_cosine'])} against {rounded(last['far_cosine'])} after layer "
        f"{last['layer']}, there a gap of {said(last, 'gap')}"
    )


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """By layer: the cosine of a word with one of its kind and with one of another, over the same frames."""
    found = [group for _, group in table.groupby(_WORDS, sort=False)]
    figure, axes = panels(title, len(found), height=2.3, columns=2, key=0.7)
    for ax, group in zip(axes, found, strict=True):
        word, near, far = (literal(str(group[role].iloc[0])) for role in _WORDS)
        layer_line(ax, group, ("near_cosine", "near_low", "near_high"), INK, "with one of its kind")
        layer_line(ax, group, ("far_cosine", "far_low", "far_high"), GREY, "with one of another kind")
        ax.set(title=f"{word}: {near} against {far}")
        ax.set_ylim(min(0.0, float(np.nanmin(table["far_low"].to_numpy()))), 1.02)
    label_layers(figure, axes, "cosine", 2)
    return figure


def seen(table: pd.DataFrame) -> str:
    """How the two cosines of each word go over the layers."""
    told = []
    for _, own in table.groupby(_WORDS, sort=False):
        word, near, far = (str(own[role].iloc[0]) for role in _WORDS)
        told.append((word, f"with {near} {ends(own, 'near_cosine')}, with {far} {ends(own, 'far_cosine')}"))
    return panelled(told)


COMPANIONS = Experiment(
    name="companions",
    title="Girl, boy and car",
    question="Is a girl more like a boy than like a car, in the embedding and along the layers?",
    command="word-sense",
    caption="Cosines over the same frames, with 95% intervals.",
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
