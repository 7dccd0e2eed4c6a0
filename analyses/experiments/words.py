"""How does a word's residual stream change with its context, and how near is it to the streams of other words?

Mole in three contexts, ring as noun and verb: the distance between senses, beside that within a sense and that of
unambiguous words in the same frames. Girl and boy against girl and car: how alike are they, in the same frames? Every
word ends its frame, so that a causal model has read the context.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.experiments.experiment import Outcome, experiment_data, readable, streams, tokenizer_of
from interp import Model
from interp.statistics import mean_interval

_COSINES = "near_cosine near_low near_high", "far_cosine far_low far_high", "gap ci_low ci_high"


def measure_word_sense(model: Model, *, seed: int = 0) -> Outcome:
    """Cosine distances of a word's streams by layer: 0 as embedded, then after each layer."""
    tables, used, left_out = [pd.DataFrame()], Counter[str](), Counter[str]()
    for group in experiment_data("word-sense")["prompts"]:
        source = group["source"]
        for word in group["words"]:
            senses = {
                sense: readable(model, frames, source, left_out, lambda frame, word=word: [f"{frame} {word}"])
                for sense, frames in group["senses"].items()
            }
            frames = [(sense, frame) for sense, usable in senses.items() if len(usable) > 1 for frame in usable]
            if len({sense for sense, _ in frames}) < 2:
                left_out[f"of the words (“{word}”, without two senses of two readable frames each)"] += 1
                continue
            used[source] += len(frames)
            table = _sense_rows(model, word, group["controls"], source, frames, left_out, seed)
            tables.append(table.assign(n=len(frames), source=source, word=word))
    return Outcome(pd.concat(tables[1:] or tables, ignore_index=True), used, left_out)


def _sense_rows(
    model: Model,
    word: str,
    controls: Sequence[str],
    source: str,
    frames: Sequence[tuple[str, str]],
    left_out: Counter[str],
    seed: int,
) -> pd.DataFrame:
    senses, texts = zip(*frames, strict=True)
    known = [
        control
        for control in controls
        if len(readable(model, texts, source, Counter(), lambda text, end=control: [f"{text} {end}"])) == len(texts)
    ]
    left_out["control words that cannot be read in all frames"] += len(controls) - len(known)
    roles = {"ambiguous": distances(model, word, texts, senses)}
    if known:
        roles["control"] = np.mean([distances(model, control, texts, senses) for control in known], 0)
        roles["excess"] = roles["ambiguous"] - roles["control"]
    rows = []
    for role, (between, within) in roles.items():
        for layer, gap in enumerate(between - within):
            value, low, high, _ = mean_interval(gap, seed=seed) if not np.isnan(gap).any() else (np.nan,) * 4
            means = {"between": between[layer].mean(), "within": within[layer].mean()}
            rows.append({"role": role, "layer": layer, **means, "gap": value, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


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
    means = np.stack([between, within])
    if model.tokenizer is not None and len(model.tokenizer.continuation(f" {word}")) > 1:
        means[:, 0] = np.nan
    return means


def measure_companions(model: Model, *, seed: int = 0) -> Outcome:
    """Cosine of a word's stream with that of one of its kind and of another, by layer: 0 as embedded."""
    tokenizer, data = tokenizer_of(model), experiment_data("companions")
    rows, used, left_out = [], Counter[str](), Counter[str]()
    for triple in data["triples"]:
        words = triple["word"], triple["near"], triple["far"]
        pieces = {len(tokenizer.continuation(f" {word}")) for word in words}
        if len(pieces) > 1:
            left_out[f"of the triples (“{'”, “'.join(words)}”, of unlike numbers of pieces)"] += 1
            continue
        texts = [[f"{frame} {word}" for word in words] for frame in data["frames"]]
        usable = [row for row in texts if readable(model, row, triple["source"], left_out, lambda text: [text]) == row]
        if usable:
            used[triple["source"]] += len(usable)
            x = [streams(model, side).numpy() for side in zip(*usable, strict=True)]
            x = [side / np.linalg.norm(side, axis=-1, keepdims=True) for side in x]
            near, far = ((x[0] * side).sum(-1) for side in x[1:])  # layer frame
            for layer in range(0 if pieces == {1} else 1, len(near)):
                row = {**triple, "layer": layer}
                for columns, values in zip(_COSINES, (near, far, near - far), strict=True):
                    row |= zip(columns.split(), mean_interval(values[layer], seed=seed), strict=False)
                rows.append(row | {"n": len(usable)})
    return Outcome(pd.DataFrame(rows), used, left_out)
