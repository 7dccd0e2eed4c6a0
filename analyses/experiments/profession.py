"""The soccer player, or the musician, walked out onto the: which positions carry the profession to the last token?

The two prompts swap activations, one layer and position at a time. In the stories' words the subject's gender is what
has to arrive.
"""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analyses.experiments.prompts import ARTICLES, STORIES, finish, largest, paragraph, sources, with_interval
from analyses.experiments.swaps import BothWays, Swap, patched, usable
from interp import Pairs, Transformer

NAME, COMMAND = "profession", "next-word"
TITLE = "The soccer player and the musician"
QUESTION = "Which positions carry the subject to the last token?"
CAPTION = (
    "Where one prompt’s activations are put into the other’s run. 1 is the whole difference between the two "
    "answers; the mean of both directions."
)

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
_SITES = ("resid_pre", "z")
SUBJECT = "(subject)"  # the token of a place where prompts differ


def measure(model: Transformer, *, seed: int = 0) -> pd.DataFrame:
    """Share of the difference between the two answers that each layer and position carries.

    Columns: source, site (`resid_pre`, or `z` of all heads), layer, place (0 is the last token, -1 the one before),
    token, share, ci_low, ci_high (over pairs), n, accuracy (of all prompts), example.

    Raises:
        InputError: no pair can be used, no output layer, no tokenizer.
    """
    left_out: Counter[str] = Counter()
    rows, used, refused = [], {}, {}
    for found in usable(model, SWAPS, left_out):
        if found.pairs is None:
            refused[found.source] = found.refused
            continue
        both = {site: patched(model, found.pairs, site, ("layer", "position")) for site in _SITES}
        if reason := both["resid_pre"].refused:
            refused[found.source] = reason
            continue
        used[found.source] = len(found.pairs)
        tokens = _tokens(model, found.pairs)
        for site, each in both.items():
            shares = _rows(each, found.pairs, tokens, seed)
            rows.append(shares.assign(source=found.source, site=site, example=found.example))
    return finish(pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(), left_out, used, refused)


def _rows(both: BothWays, pairs: Pairs, tokens: dict[int, str], seed: int) -> pd.DataFrame:
    last = pairs.last.cpu().numpy()
    from_end = np.full(both.effects.shape, np.nan)  # layer, tokens before the last, pair
    for pair, at in enumerate(last):
        from_end[:, : at + 1, pair] = both.effects[:, at::-1, pair]
    share, n = BothWays(from_end, both.whole, both.accuracy).shares(seed)
    layer, before = np.unravel_index(np.arange(len(n)), from_end.shape[:2])
    table = pd.DataFrame({"layer": layer, "place": -before, "share": share.value, "ci_low": share.low})
    table = table.assign(ci_high=share.high, n=n, accuracy=both.accuracy, token=[tokens[-at] for at in before])
    first = int((pairs.first_changed.cpu() - pairs.last.cpu()).min())
    return table.loc[(table["place"] >= first) & (n > 0)]  # nothing before the subject can carry it


def _tokens(model: Transformer, pairs: Pairs) -> dict[int, str]:
    """What stands at each place: its token where all prompts have the same, else that it is the subject."""
    assert model.tokenizer is not None
    names = {}
    for before in range(int(pairs.last.max()) + 1):
        column = pairs.last - before
        there = column >= 0
        ids = {int(id) for batch in (pairs.clean, pairs.corrupt) for id in batch.ids[there, column[there]]}
        names[-before] = model.tokenizer.label(ids.pop()).strip() if len(ids) == 1 else SUBJECT
    return names


def _where(cell: dict[str, Any]) -> str:
    return "the subject" if cell["token"] == SUBJECT else f"“{cell['token']}”"


def sentence(table: pd.DataFrame) -> str:
    """Where the subject is carried before the first and into the last layer."""
    said = []
    for where, rows in sources(table):
        stream, heads = (rows.loc[rows["site"] == site] for site in _SITES)
        last = stream.loc[stream["layer"] == stream["layer"].max()]
        best, end = largest(last, "share"), largest(last.loc[last["place"] == 0], "share")
        moves = largest(heads.loc[heads["place"] == 0], "share")
        said.append(
            f"{where} ({best['n']} pairs such as “{best['example']}”, {best['accuracy']:.0%} of prompts answered "
            f"rightly), the stream that enters the last layer carries "
            f"{with_interval(end['share'], end['ci_low'], end['ci_high'])} of the difference at the last token and "
            f"{with_interval(best['share'], best['ci_low'], best['ci_high'])} at {_where(best)}; "
            f"heads of layer {moves['layer']} bring "
            f"{with_interval(moves['share'], moves['ci_low'], moves['ci_high'])} to the last token"
        )
    return paragraph(said)
