"""Girl and boy against girl and car: how alike are they in the embedding and along the layers?

The three words stand in the same frames, at their end, so that only the word differs.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyses.experiments.prompts import (
    ARTICLES,
    STORIES,
    finish,
    paragraph,
    readable,
    sources,
    streams,
    tokenizer_of,
    with_interval,
)
from interp import Transformer
from interp.statistics import mean_interval

NAME, COMMAND = "companions", "word-sense"
TITLE = "Girl, boy and car"
QUESTION = "Is a girl more like a boy than like a car, in the embedding and along the layers?"
CAPTION = "Cosines over the same frames, with 95% intervals."


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
FRAMES = (
    *("Tim saw the", "Sue looked at the", "Then he found a", "She was behind the", "There was a", "Tom liked the"),
    *("It was near the", "He saw the little", "They looked at the", "Mia found the", "This is a", "Ben went to the"),
)


def measure(model: Transformer, *, seed: int = 0) -> pd.DataFrame:
    """Cosine of a word's stream with that of one of its kind and of another, by layer: 0 as embedded.

    Columns: source, word, near, far (the words), layer, near_cosine, near_low, near_high, far_cosine, far_low,
    far_high, gap (near - far), ci_low, ci_high (over frames), n. A triple is used where its words have as many pieces;
    of several pieces the last is read, and layer 0 is missing.

    Raises:
        InputError: no triple can be used, or no tokenizer.
    """
    tokenizer = tokenizer_of(model)
    left_out: Counter[str] = Counter()
    rows, used = [], Counter[str]()
    for triple in TRIPLES:
        words = (triple.word, triple.near, triple.far)
        pieces = {len(tokenizer.continuation(f" {word}")) for word in words}
        if len(pieces) > 1:
            left_out[f"of the triples (“{'”, “'.join(words)}”, of unlike numbers of pieces)"] += 1
            continue
        wanted = [[f"{frame} {word}" for word in words] for frame in FRAMES]
        kept = [texts for texts in wanted if len(readable(model, texts, triple.source, left_out)) == len(words)]
        if kept:
            used[triple.source] += len(kept)
            rows += _rows(model, triple, kept, seed, whole=pieces == {1})
    return finish(pd.DataFrame(rows), left_out, used)


def _rows(
    model: Transformer, triple: Triple, kept: list[list[str]], seed: int, *, whole: bool
) -> list[dict[str, object]]:
    own, near, far = (streams(model, [texts[at] for texts in kept]).numpy() for at in range(3))
    rows = []
    for layer in range(0 if whole else 1, len(own)):
        cosines = {"near": _cosine(own[layer], near[layer]), "far": _cosine(own[layer], far[layer])}
        row: dict[str, object] = {"source": triple.source, "word": triple.word, "near": triple.near, "far": triple.far}
        for side, values in cosines.items():
            value, low, high, _ = mean_interval(values, seed=seed)
            row |= {f"{side}_cosine": value, f"{side}_low": low, f"{side}_high": high}
        value, low, high, _ = mean_interval(cosines["near"] - cosines["far"], seed=seed)
        rows.append(row | {"layer": layer, "gap": value, "ci_low": low, "ci_high": high, "n": len(kept)})
    return rows


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def sentence(table: pd.DataFrame) -> str:
    """The first triple of each source at its first and last layer."""
    said = []
    for where, rows in sources(table):
        own = rows.loc[(rows[["word", "near", "far"]] == rows[["word", "near", "far"]].iloc[0]).all(axis=1)]
        first, *_, last = own.sort_values("layer").to_dict("records")
        begin = "in the embedding" if first["layer"] == 0 else f"after layer {first['layer']}"
        said.append(
            f"{where} ({first['n']} frames), the cosine of “{first['word']}” with “{first['near']}” and with "
            f"“{first['far']}” is {first['near_cosine']:.2f} against {first['far_cosine']:.2f} {begin} and "
            f"{last['near_cosine']:.2f} against {last['far_cosine']:.2f} after layer {last['layer']}, there a gap of "
            f"{with_interval(last['gap'], last['ci_low'], last['ci_high'])}"
        )
    return paragraph(said)
