"""Which answers flip when one, two or more heads get their outputs for the other prompt?"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from analyses.wording.head_names import head_name
from interp import Model, TokenBatch, Transformer
from interp.patching import Metric, Pairs, function, patch_together, unpatched
from interp.statistics import shares

ANSWER_COLUMNS = ["behaviour", "task", "heads", "pair", "right", "wrong"]
FLIP_COLUMNS = ["behaviour", "task", "heads", "n", "flips", "flips_low", "flips_high"]
TOP = 8  # heads to patch in pairs, and together in growing sets
ANSWERED = "right", "wrong"  # the answers of a pair, and the names of their probabilities
_LONGEST = 40  # words in a prompt that a person can read


class Flips(NamedTuple):
    """The rows of `tables/prompts`, `tables/flips` and `tables/answers`, without behaviour and task."""

    prompts: pd.DataFrame
    flips: pd.DataFrame
    answers: pd.DataFrame


def clusters_in(clusters: Sequence[Sequence[str]], half: Bool[np.ndarray, " prompt"]) -> list[list[str]]:
    """The clusters of one half of the prompts."""
    return [[name for name, here in zip(way, half, strict=True) if here] for way in clusters]


def flip_counts(
    changed: Bool[np.ndarray, "cell prompt"], clusters: Sequence[Sequence[str]], seed: int
) -> dict[str, Float[np.ndarray, " cell"]]:
    """How many prompts flip, with a 95% interval over prompts or clusters."""
    n, options = changed.shape[1], {"clusters": clusters, "seed": seed}
    # the upper end comes from prompts that do not flip, so the interval has a width even if none flips
    flipped, same = (shares(part.T.astype(float), np.ones(n), **options) for part in (changed, ~changed))
    ends = {"flips_low": flipped.low, "flips_high": 1 - same.low}
    return {"flips": changed.sum(1).astype(float)} | {name: (end * n).clip(0, n) for name, end in ends.items()}


def flips_of(
    model: Model,
    pairs: Pairs,
    effect: Float[np.ndarray, "layer head"],
    reports: Bool[np.ndarray, " prompt"],
    clusters: Sequence[Sequence[str]],
    seed: int,
) -> Flips:
    """Both answers' probabilities after every prompt, and with heads patched in the reporting prompts.

    `effect` comes from the choosing half. The `TOP` heads with the largest effects get their outputs for the corrupted
    prompt: each alone, every two, then the first three, four and so on. An answer flips if the other one becomes more
    probable. For another library's models only prompts are read, because we cannot patch their heads together.
    """
    metrics = answer_probabilities(pairs)
    plain = unpatched(model, pairs, metrics)
    half = np.where(reports, "reports", "chooses")
    columns = {"pair": range(len(pairs)), "half": half}
    columns |= {"clean": texts_of(model, pairs.clean), "corrupted": texts_of(model, pairs.corrupt)}
    columns |= {metric.name: tokens_of(model, getattr(pairs, metric.name)) for metric in metrics}
    for prompt, values in zip(("clean", "corrupted"), plain, strict=True):
        columns |= {f"{prompt}_{metric.name}": values[metric.name].cpu().numpy() for metric in metrics}
    prompts = pd.DataFrame(columns)
    if not isinstance(model, Transformer):
        return Flips(prompts, pd.DataFrame(columns=FLIP_COLUMNS), pd.DataFrame(columns=ANSWER_COLUMNS))
    order = np.argsort(-effect, axis=None, kind="stable")[:TOP]
    top = [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, effect.shape), strict=True)]
    sets = [*([head] for head in top), *map(list, combinations(top, 2))]
    sets += [top[:size] for size in range(3, len(top) + 1)]
    reporting = pairs.take(torch.from_numpy(np.flatnonzero(reports)).to(pairs.last.device))
    values = patch_together(model, reporting, answer_probabilities(reporting), sets, direction="noise")
    patched = {name: each.cpu().numpy() for name, each in values.items()}
    before = prompts.loc[reports]
    was_right = (before["clean_right"] > before["clean_wrong"]).to_numpy()
    changed = (patched["right"] > patched["wrong"]) != was_right
    names = ["+".join(head_name(*head) for head in heads) for heads in sets]
    counts = flip_counts(changed, clusters_in(clusters, reports), seed)
    flips = pd.DataFrame({"heads": names, "n": len(reporting), **counts})
    answers = {"heads": np.repeat(names, len(reporting)), "pair": np.tile(np.flatnonzero(reports), len(names))}
    return Flips(prompts, flips, pd.DataFrame({**answers, **{name: each.ravel() for name, each in patched.items()}}))


def are_readable(prompts: Iterable[str]) -> bool:
    """Whether a person can read the prompts: short texts of valid characters, not random tokens."""
    return all(prompt.isprintable() and len(prompt.split()) <= _LONGEST for prompt in prompts)


def answer_probabilities(pairs: Pairs) -> list[Metric]:
    """The probabilities of both answers, `right` and `wrong`, after each prompt."""

    def read(logits: Float[torch.Tensor, "*cells prompt read d_vocab"], ids: torch.Tensor) -> torch.Tensor:
        shares = logits[..., 0, :].softmax(-1)
        return shares.gather(-1, ids[:, None].expand(*shares.shape[:-1], 1))[..., 0]

    return [function(read, name, reference=getattr(pairs, name)) for name in ANSWERED]


def texts_of(model: Model, batch: TokenBatch) -> list[str]:
    """Prompts as texts, or as ids if the model has no tokenizer."""
    rows = (ids[: int(length)].tolist() for ids, length in zip(batch.ids, batch.lengths, strict=True))
    if model.tokenizer is None:
        return [" ".join(map(str, ids)) for ids in rows]
    return [model.tokenizer.decode(ids) for ids in rows]


def tokens_of(model: Model, ids: torch.Tensor) -> list[str]:
    """Tokens as text, or as ids if the model has no tokenizer."""
    label = str if model.tokenizer is None else model.tokenizer.label
    return [label(number) for number in ids.tolist()]
