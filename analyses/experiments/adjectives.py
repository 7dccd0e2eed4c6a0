"""A fluffy blue creature roamed the verdant forest: which heads carry the adjectives to their noun?

Two readings of every head: how much more the noun attends to its adjectives than uniform attention would, and, when
the adjectives are swapped for others, which share of the change in the noun's final stream the head itself writes.
"""

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from torch import Tensor

from analyses.experiments.experiment import (
    ARTICLES,
    STORIES,
    Experiment,
    Outcome,
    bounded,
    each_source,
    joined,
    largest,
    panelled,
    said,
    strongest,
)
from analyses.experiments.prompts import batch_of, readable, tokenizer_of
from analyses.experiments.swaps import shares_of
from analyses.figures.experiment_plots import layer_map, reaching, under
from analyses.figures.style import SIGNED, colour_bar, panels, styled
from analyses.head_names import head_name
from interp import Model, run
from interp.attribution import head_results
from interp.statistics import estimate
from interp.tokens import align

_COUNT = 24  # sentences in the stories' words
_NOUNS = {3: (1, 2), 7: (6,)}  # nouns of a scene with their adjectives, as places among its words
_CARRIED = "carried", "carried_low", "carried_high"
_TRIES = 100  # other adjectives that are tried until they have as many pieces


@dataclass(frozen=True)
class Scene:
    """A sentence of the article's form: two adjectives and a noun, a verb, one adjective and a noun."""

    source: str
    first: tuple[str, str, str]
    verb: str
    second: tuple[str, str]

    @property
    def words(self) -> list[str]:
        """Of the sentence."""
        return ["A", *self.first, self.verb, "the", *self.second]

    @property
    def text(self) -> str:
        """The sentence."""
        return " ".join(self.words)

    def other(self, adjectives: tuple[str, str, str]) -> "Scene":
        """The same with other adjectives."""
        one, two, three = adjectives
        return Scene(self.source, (one, two, self.first[2]), self.verb, (three, self.second[1]))


_ADJECTIVES = {
    ARTICLES: ["fluffy", "blue", "verdant", "tiny", "red", "frozen", "hairy", "green", "ancient", "gentle", "dark"],
    STORIES: ["little", "old", "young", "brown", "black", "white", "blue", "red", "green", "yellow", "happy", "sad"],
}
_ANIMALS, _PLACES = ("dog", "bird", "fox", "frog", "bear", "pig", "mole"), ("house", "tree", "hill", "park", "school")


def scenes(seed: int) -> list[Scene]:
    """The article's sentence and some of its form, and as many in the stories' words."""
    rng = random.Random(seed)
    first = Scene(ARTICLES, ("fluffy", "blue", "creature"), "roamed", ("verdant", "forest"))
    made = [first]
    for _ in range(_COUNT // 2):
        one, two, three = rng.sample(_ADJECTIVES[ARTICLES], 3)
        noun = rng.choice(("creature", "monster", "dragon", "rabbit"))
        place = rng.choice(("forest", "valley", "island"))
        made.append(Scene(ARTICLES, (one, two, noun), rng.choice(("roamed", "crossed", "left")), (three, place)))
    for _ in range(_COUNT):
        one, two, three = rng.sample(_ADJECTIVES[STORIES], 3)
        verb = rng.choice(("saw", "found", "liked"))
        made.append(Scene(STORIES, (one, two, rng.choice(_ANIMALS)), verb, (three, rng.choice(_PLACES))))
    return made


def measure(model: Model, *, seed: int = 0) -> Outcome:
    """What each head looks at from nouns, and what it writes there of the adjectives.

    Columns: source, layer, head, attention (share from a noun to its adjectives), uniform, gain, ci_low, ci_high (over
    sentences), carried, carried_low, carried_high (share of the change in the noun's last stream; in a model whose
    norms come first all heads and feed-forwards add up to 1), n, n_carried.

    Raises:
        InputError: no sentence can be used, or no tokenizer.
    """
    left_out, used, tables = Counter[str](), {}, []
    for source in (ARTICLES, STORIES):
        offered = [scene for scene in scenes(seed) if scene.source == source]
        kept = readable(model, offered, source, left_out, lambda scene: [scene.text], "sentences")
        if kept:
            used[source] = len(kept)
            tables.append(_rows(model, kept, left_out, seed).assign(source=source))
    return Outcome(joined(tables), used, left_out)


def _rows(model: Model, kept: list[Scene], left_out: Counter[str], seed: int) -> pd.DataFrame:
    looks = np.stack([_attention(model, scene) for scene in kept])  # sentence, head or uniform, cell
    carried = [_carried(model, scene, seed) for scene in kept]
    left_out["sentences without other adjectives of as many pieces"] += sum(each is None for each in carried)
    wrote = np.stack([np.full(looks.shape[-1], np.nan) if each is None else each for each in carried])
    ones = np.ones_like(looks[:, 0])
    attention = estimate(looks[:, 0], ones, looks[:, 1], ones, seed=seed)
    written = shares_of(wrote.T, np.ones(len(wrote)), seed)
    layer, head = np.unravel_index(np.arange(looks.shape[-1]), (model.config.n_layers, model.config.n_heads))
    columns = {"layer": layer, "head": head, "attention": attention.value, "uniform": attention.baseline}
    columns |= {"gain": attention.gain, "ci_low": attention.low, "ci_high": attention.high}
    return pd.DataFrame({**columns, **bounded(written, *_CARRIED), "n": len(kept), "n_carried": written.n})


def _places(model: Model, scene: Scene) -> list[list[int]]:
    """The tokens of each word."""
    tokenizer, text = tokenizer_of(model), scene.text
    ends = np.cumsum([len(word) + 1 for word in scene.words]) - 1
    spans = [(int(end) - len(word), int(end)) for end, word in zip(ends, scene.words, strict=True)]
    owners = align(tokenizer.pieces(text).spans, spans, text)
    shift = len(tokenizer.prefix)
    return [[shift + at for at, owner in enumerate(owners) if owner == word] for word in range(len(scene.words))]


def _attention(model: Model, scene: Scene) -> np.ndarray:
    """Mean over nouns of the attention to their adjectives, all heads' and uniform: 2 x cell.

    To a word it adds up over pieces, from a word it is averaged over them (Clark 2019).
    """
    (stack,) = model.config.stacks
    places = _places(model, scene)
    out = run(model, batch_of(model, [scene.text]), capture=f"{stack}.*.attn.pattern")
    pattern = torch.cat([each[0] for each in out.activations.values()]).double().cpu()  # cell query key
    found = []
    for noun, adjectives in _NOUNS.items():
        queries = torch.tensor(places[noun])
        keys = torch.tensor([at for word in adjectives for at in places[word]])
        share = pattern[:, queries][:, :, keys].sum(-1).mean(-1)
        found.append(torch.stack([share, (len(keys) / (queries + 1.0)).mean().expand_as(share)]))
    return torch.stack(found).mean(0).numpy()


def _carried(model: Model, scene: Scene, seed: int) -> np.ndarray | None:
    """Mean over nouns of the share of the change that each head writes; None where no other adjectives fit."""
    if (other := _other(model, scene, seed)) is None:
        return None
    (stack,) = model.config.stacks
    layers = range(model.config.n_layers)
    batch = batch_of(model, [each.text for each in (scene, other)])
    last = f"{stack}.{layers[-1]}.resid_post"
    out = run(model, batch, capture=[last, *(f"{stack}.{layer}.attn.z" for layer in layers)])
    nouns = [_places(model, scene)[noun][-1] for noun in _NOUNS]
    change = _change(out[last])[nouns]  # noun d_model
    wrote = torch.cat([_change(head_results(model, out, layer))[nouns] for layer in layers], 1)  # noun cell d_model
    share = (wrote * change[:, None]).sum(-1) / change.square().sum(-1, keepdim=True)
    return share.mean(0).detach().cpu().numpy()


def _change(site: Float[Tensor, "2 position ..."]) -> Float[Tensor, "position ..."]:
    return site[0].double() - site[1].double()


def _other(model: Model, scene: Scene, seed: int) -> Scene | None:
    """The scene with other adjectives, every word of which has as many pieces."""
    rng = random.Random(f"{seed} {scene.words}")
    own = {*scene.first, *scene.second}
    for _ in range(_TRIES):
        one, two, three = rng.sample([word for word in _ADJECTIVES[scene.source] if word not in own], 3)
        other = scene.other((one, two, three))
        if _places(model, other) == _places(model, scene):
            return other
    return None


@each_source
def sentence(where: str, rows: pd.DataFrame) -> str:
    """The head that looks most, and the head that carries most."""
    looks = largest(rows, "gain")
    text = (
        f"{where} ({looks['n']} sentences), nouns look at their adjectives most through "
        f"{head_name(looks['layer'], looks['head'])}: {said(looks, 'gain')} more than uniform attention"
    )
    if np.isnan(rows["carried"].to_numpy()).all():
        return text
    best = largest(rows, "carried")
    return (
        f"{text}; of what other adjectives change in the noun, {head_name(best['layer'], best['head'])} writes the "
        f"largest share, {said(best, *_CARRIED)}"
    )


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """Layer x head: attention from a noun to its adjectives beyond uniform, and the share of their change it writes."""
    quantities = {"gain": "looks at its adjectives", "carried": "writes what they change"}
    groups = [(str(source), group, column) for source, group in table.groupby("source") for column in quantities]
    figure, axes = panels(title, len(groups), height=0.9 + 0.24 * len(set(table["layer"])), columns=2)
    for at, (ax, (source, group, column)) in enumerate(zip(axes, groups, strict=True)):
        scale = reaching(table[column].to_numpy(), at_least=0.02)
        grid = group.pivot(index="layer", columns="head", values=column)
        layer_map(ax, grid, scale, [str(head) for head in grid.columns])
        ax.tick_params("x", rotation=0)
        ax.set_title(under(quantities[column], source, set(table["source"])))
        ax.set(xlabel="head", ylabel="layer" if at % 2 == 0 else "")
        label = "attention beyond\nuniform" if column == "gain" else "share of the change\nin the noun's stream"
        colour_bar(figure, [ax], ScalarMappable(scale, SIGNED), label)
    return figure


def seen(table: pd.DataFrame) -> str:
    """The strongest cells of each map of heads."""
    quantities = {"gain": "looks at its adjectives", "carried": "writes what they change"}
    return panelled(
        (f"{quantities[column]}, {source}", strongest(own, column, lambda row: head_name(row["layer"], row["head"])))
        for source, own in table.groupby("source")
        for column in quantities
    )


ADJECTIVES = Experiment(
    name="adjectives",
    title="A fluffy blue creature",
    question="Which heads carry the adjectives to their noun?",
    command="next-word",
    caption=(
        "A cell is a head. Left, attention from a noun to its adjectives beyond uniform attention; right, the share "
        "that the head itself writes of the change in the noun’s last stream."
    ),
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
