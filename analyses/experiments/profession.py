"""The soccer player, or the musician, walked out onto the: which positions carry the profession to the last token?

The two prompts swap activations, one layer and position at a time. In the stories' words the subject's gender is what
has to arrive.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from analyses.experiments.experiment import (
    ARTICLES,
    STORIES,
    Experiment,
    Outcome,
    bounded,
    each_source,
    largest,
    panelled,
    said,
    strongest,
)
from analyses.experiments.swaps import BothWays, Swap, by_swapping, shares_of, undone
from analyses.figures.attention_lines import literal
from analyses.figures.experiment_plots import layer_map, reaching, under
from analyses.figures.style import SIGNED, colour_bar, panels, styled
from interp import Model, Pairs

_PLAYERS = {"soccer player": " field", "football player": " field", "tennis player": " court", "young golfer": " green"}
_MUSICIANS = ("musician", "young musician", "violin player", "opera singer", "jazz pianist")
_OPENINGS = ("The", "Then the", "Once a")
_HIS, _HER = ("boy", "king", "man", "father", "uncle"), ("girl", "queen", "woman", "mother", "aunt")
SWAPS = [
    *(
        Swap(ARTICLES, f"{the} {player} walked out onto the", f"{the} {musician} walked out onto the", place, " stage")
        for the, (player, place), musician in product(_OPENINGS, _PLAYERS.items(), _MUSICIANS)
    ),
    *(
        Swap(
            STORIES,
            f"{the} {his} looked behind the tree and called",
            f"{the} {her} looked behind the tree and called",
            " his",
            " her",
        )
        for the, his, her in product(_OPENINGS, _HIS, _HER)
    ),
]
_SITES = {"resid_pre": "stream into the layer", "z": "heads of the layer"}
SUBJECT = "(subject)"  # the token of a place where prompts differ
_COLUMNS = (
    "layer",
    "place",
    "share",
    "ci_low",
    "ci_high",
    "n",
    "accuracy",
    "accuracy_low",
    "token",
    "source",
    "site",
    "example",
)


def measure(model: Model, *, seed: int = 0) -> Outcome:
    """Share of the difference between the two answers that each layer and position carries.

    Columns: source, site (`resid_pre`, or `z` of all heads), layer, place (0 is the last token, -1 the one before),
    token, share, ci_low, ci_high (over pairs), n, accuracy (of all prompts), accuracy_low (the lower
    end of its 95% interval), example.

    Raises:
        InputError: no pair can be used, no output layer, no tokenizer.
    """

    def rows(pairs: Pairs, both: Mapping[str, BothWays]) -> pd.DataFrame:
        tokens = _tokens(model, pairs)
        return pd.concat([_rows(each, pairs, tokens, seed).assign(site=site) for site, each in both.items()])

    return by_swapping(model, SWAPS, dict.fromkeys(_SITES, ("layer", "position")), rows, _COLUMNS)


def _rows(both: BothWays, pairs: Pairs, tokens: dict[int, str], seed: int) -> pd.DataFrame:
    from_end = np.full(both.effects.shape, np.nan)  # layer, tokens before the last, pair
    for pair, at in enumerate(pairs.last.cpu().numpy()):
        from_end[:, : at + 1, pair] = both.effects[:, at::-1, pair]
    share = shares_of(from_end, both.whole, seed)
    layer, before = np.unravel_index(np.arange(len(share.n)), from_end.shape[:2])
    table = pd.DataFrame({"layer": layer, "place": -before, **bounded(share), "n": share.n})
    table["token"] = [tokens[-at] for at in before]
    first = int((pairs.first_changed.cpu() - pairs.last.cpu()).min())
    return table.loc[(table["place"] >= first) & (share.n > 0)]  # nothing before the subject can carry it


def _tokens(model: Model, pairs: Pairs) -> dict[int, str]:
    """What stands at each place: its token where all prompts have the same, else that it is the subject."""
    assert model.tokenizer is not None
    names = {}
    for before in range(int(pairs.last.max()) + 1):
        column = pairs.last - before
        there = column >= 0
        ids = {int(id) for batch in (pairs.clean, pairs.corrupt) for id in batch.ids[there, column[there]]}
        names[-before] = model.tokenizer.label(ids.pop()).strip() if len(ids) == 1 else SUBJECT
    return names


def _where(cell: Mapping[str, Any]) -> str:
    return "the subject" if cell["token"] == SUBJECT else f"“{cell['token']}”"


@each_source
def sentence(where: str, rows: pd.DataFrame) -> str:
    """Where the subject is carried before the first and into the last layer."""
    if said_first := undone(rows.to_dict("records")[0], where):
        return said_first
    stream, heads = (rows.loc[rows["site"] == site] for site in _SITES)
    last = stream.loc[stream["layer"] == stream["layer"].max()]
    best, end = largest(last, "share"), largest(last.loc[last["place"] == 0], "share")
    moves = largest(heads.loc[heads["place"] == 0], "share")
    return (
        f"{where} ({best['n']} pairs such as “{best['example']}”, {best['accuracy']:.0%} of prompts answered "
        f"rightly), the stream that enters the last layer carries {said(end)} of the difference at the last token and "
        f"{said(best)} at {_where(best)}; heads of layer {moves['layer']} bring {said(moves)} to the last token"
    )


@styled
def draw(table: pd.DataFrame, title: str) -> Figure:
    """Share of the difference by layer and position: of the stream, and of the heads that write there."""
    sources = list(table["source"].unique())
    groups = [
        (source, site, table.loc[(table["source"] == source) & (table["site"] == site)])
        for source in sources
        for site in _SITES
    ]
    figure, axes = panels(title, len(groups), height=1.5 + 0.24 * len(set(table["layer"])), columns=2)
    scale = reaching(table["share"].to_numpy())
    for ax, (source, site, group) in zip(axes, groups, strict=True):
        grid = group.pivot(index="layer", columns="place", values="share")
        tokens = group.drop_duplicates("place").set_index("place")["token"]
        layer_map(ax, grid, scale, [literal(tokens[place]) for place in grid.columns])
        ax.tick_params("x", rotation=90)
        ax.set_title(under(_SITES[site], source, sources))
        ax.set(xlabel="", ylabel="layer" if ax in axes[::2] else "")
    colour_bar(figure, axes, ScalarMappable(scale, SIGNED), "share of the\nlogit difference")
    return figure


def seen(table: pd.DataFrame) -> str:
    """The strongest cells of each map of layers and positions."""
    panels = table["site"].map(lambda site: _SITES[str(site)]) + ", " + table["source"]
    return panelled(
        (str(name), strongest(own, "share", lambda row: f"layer {row['layer']} at {_where(row)}"))
        for name, own in table.groupby(panels, sort=False)
    )


PROFESSION = Experiment(
    name="profession",
    title="The soccer player and the musician",
    question="Which positions carry the subject to the last token?",
    command="next-word",
    caption=(
        "Where one prompt’s activations are put into the other’s run. 1 is the whole difference between the two "
        "answers; the mean of both directions."
    ),
    measure=measure,
    sentence=sentence,
    draw=draw,
    seen=seen,
)
