"""A fluffy blue creature roamed the verdant forest: which heads carry the adjectives to their noun?

Two readings of every head: how much more the noun attends to its adjectives than uniform attention would, and, when
the adjectives are swapped for others, which share of the change in the noun's final stream the head itself writes.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.experiments.experiment import Outcome, bounded
from analyses.experiments.prompts import batch_of, experiment_data, readable, tokenizer_of
from analyses.experiments.swaps import shares_of
from interp import Model, run
from interp.attribution import head_results
from interp.statistics import estimate
from interp.tokens import align

_NOUNS = {3: (1, 2), 7: (6,)}  # nouns of a scene with their adjectives, as places among its words
_ADJECTIVES = (1, 2, 6)
_CARRIED = "carried", "carried_low", "carried_high"
Words = list[str]
_TRIES = 100  # other adjectives that are tried until they have as many pieces


def scenes(group: Mapping[str, Any], rng: random.Random) -> list[Words]:
    """A group's sentences: two adjectives and a noun, a verb, one adjective and a noun, as the article's."""
    drawn = [group["first"]] if "first" in group else []
    for _ in range(group["count"]):
        one, two, three = rng.sample(group["adjectives"], 3)
        word = {slot: rng.choice(words) for slot, words in group["slots"].items()}
        drawn.append(["A", one, two, word["noun"], word["verb"], "the", three, word["place"]])
    return drawn


def measure(model: Model, *, seed: int = 0) -> Outcome:
    """What each head looks at from nouns, and what it writes there of the adjectives.

    Raises:
        InputError: no sentence can be used, or no tokenizer.
    """
    left_out, used, tables, rng = Counter[str](), {}, [pd.DataFrame()], random.Random(seed)
    for group in experiment_data("adjectives")["prompts"]:
        source, offered = group["source"], scenes(group, rng)
        usable = readable(model, offered, source, left_out, lambda scene: [" ".join(scene)], "sentences")
        if usable:
            used[source] = len(usable)
            tables.append(_rows(model, usable, group["adjectives"], left_out, seed).assign(source=source))
    return Outcome(pd.concat(tables[1:] or tables, ignore_index=True), used, left_out)


def _rows(model: Model, usable: list[Words], adjectives: list[str], left_out: Counter[str], seed: int) -> pd.DataFrame:
    attention = np.stack([_attention(model, scene) for scene in usable])  # sentence, head or uniform, cell
    others = [_with_others(model, scene, adjectives, seed) for scene in usable]
    left_out["sentences without other adjectives of as many pieces"] += others.count(None)
    unknown = np.full(attention.shape[-1], np.nan)
    pairs = zip(usable, others, strict=True)
    carried = np.stack([unknown if other is None else _carried(model, scene, other) for scene, other in pairs])
    ones = np.ones_like(attention[:, 0])
    gain = estimate(attention[:, 0], ones, attention[:, 1], ones, seed=seed)
    share = shares_of(carried.T, np.ones(len(carried)), seed)
    layer, head = np.unravel_index(np.arange(attention.shape[-1]), (model.config.n_layers, model.config.n_heads))
    columns = {"layer": layer, "head": head, "attention": gain.value, "uniform": gain.baseline}
    columns |= {"gain": gain.gain, "ci_low": gain.low, "ci_high": gain.high}
    return pd.DataFrame({**columns, **bounded(share, *_CARRIED), "n": len(usable), "n_carried": share.n})


def _places(model: Model, scene: Words) -> list[list[int]]:
    """The tokens of each word."""
    tokenizer, text = tokenizer_of(model), " ".join(scene)
    ends = np.cumsum([len(word) + 1 for word in scene]) - 1
    spans = [(int(end) - len(word), int(end)) for end, word in zip(ends, scene, strict=True)]
    owners = align(tokenizer.pieces(text).spans, spans, text)
    shift = len(tokenizer.prefix)
    return [[shift + token for token, owner in enumerate(owners) if owner == word] for word in range(len(scene))]


def _attention(model: Model, scene: Words) -> np.ndarray:
    """Mean over nouns of the attention to their adjectives, all heads' and uniform: 2 x cell.

    To a word it adds up over pieces, from a word it is averaged over them (Clark 2019).
    """
    (stack,) = model.config.stacks
    places = _places(model, scene)
    out = run(model, batch_of(model, [" ".join(scene)]), capture=f"{stack}.*.attn.pattern")
    pattern = torch.cat([value[0] for value in out.activations.values()]).double().cpu()  # cell query key
    by_noun = []
    for noun, adjectives in _NOUNS.items():
        queries = torch.tensor(places[noun])
        keys = torch.tensor([token for word in adjectives for token in places[word]])
        share = pattern[:, queries][:, :, keys].sum(-1).mean(-1)
        by_noun.append(torch.stack([share, (len(keys) / (queries + 1.0)).mean().expand_as(share)]))
    return torch.stack(by_noun).mean(0).numpy()


def _with_others(model: Model, scene: Words, adjectives: list[str], seed: int) -> Words | None:
    """The scene with other adjectives, every word of which has as many pieces; None if there are none."""
    rng = random.Random(f"{seed} {scene}")
    choices = [word for word in adjectives if word not in scene]
    for _ in range(_TRIES):
        changed = dict[int, str](zip(_ADJECTIVES, rng.sample(choices, 3), strict=True))
        other = [changed.get(place, word) for place, word in enumerate(scene)]
        if _places(model, other) == _places(model, scene):
            return other
    return None


def _carried(model: Model, scene: Words, other: Words) -> np.ndarray:
    """Mean over nouns of the share of the change between two scenes that each head writes."""
    (stack,) = model.config.stacks
    layers = range(model.config.n_layers)
    last = f"{stack}.{layers[-1]}.resid_post"
    sites = [last, *(f"{stack}.{layer}.attn.z" for layer in layers)]
    out = run(model, batch_of(model, [" ".join(words) for words in (scene, other)]), capture=sites)
    nouns = [_places(model, scene)[noun][-1] for noun in _NOUNS]
    change = _change(out[last])[nouns]  # noun d_model
    written = torch.cat([_change(head_results(model, out, layer))[nouns] for layer in layers], 1)  # noun cell d_model
    share = (written * change[:, None]).sum(-1) / change.square().sum(-1, keepdim=True)
    return share.mean(0).detach().cpu().numpy()


def _change(site: Float[Tensor, "2 position ..."]) -> Float[Tensor, "position ..."]:
    return site[0].double() - site[1].double()
