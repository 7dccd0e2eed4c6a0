"""What are heads called on a page: by their place, by an address, by their labels?"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyses.tables.head_tables import Heads
from analyses.wording.head_names import Place
from interp import InputError, Model

HeadName = tuple[str, str, int, int]  # what a `Place` holds

_STRENGTH = {"both": 0, "effect": 1, "attention": 2}  # evidence of a label, the best first
_COLUMNS = ["stack", "attention", "layer", "head", "label", "evidence", "gain", "behaviour"]


@dataclass(frozen=True)
class Called:
    """What a head is called, the behaviour whose colour it has, and the measure that says which words that is about.

    `needed` is whether an effect of it was measured, rather than its attention alone.
    """

    words: str
    behaviour: str = ""
    asks: str = ""
    needed: bool = False


def labelled(labels: pd.DataFrame) -> dict[HeadName, Called]:
    """What heads are called by a table of labels, heads with the best evidence and the largest gain first.

    A head is called by its first label.

    Raises:
        InputError: the table lacks a column.
    """
    if lacking := [column for column in _COLUMNS if column not in labels]:
        raise InputError(f"expected a table of labels (`tables/labels`), got one without {', '.join(lacking)}")
    rows = labels.assign(rank=labels["evidence"].map(_STRENGTH.get).fillna(len(_STRENGTH)))
    called: dict[HeadName, Called] = {}
    for row in rows.sort_values(["rank", "gain"], ascending=[True, False], kind="stable").to_dict("records"):
        asks, needed = str(row.get("measure", row["label"])), row["evidence"] in {"both", "effect"}
        called.setdefault(Place.of(row), Called(str(row["label"]), str(row["behaviour"]), asks, needed))
    return called


def address(model: Model, name: HeadName) -> str:
    """A head as links name it: `L2.H5` where there is one stack, else `encoder.L2.H5` or `cross.L2.H5`."""
    return Place(*name).named(several=len(Heads.every(model)) > 1)


def head_named(model: Model, name: str) -> HeadName:
    """The head that has this `address`.

    Raises:
        InputError: the model has no such head.
    """
    ends = []
    for heads in Heads.every(model):
        cells = np.ndindex(heads.n_layers, heads.n_heads)
        places = [Place(heads.stack, heads.attention, layer, head) for layer, head in cells]
        named = {address(model, place): place for place in places}
        if name in named:
            return named[name]
        ends.append(" to ".join(dict.fromkeys([next(iter(named)), [*named][-1]])))
    raise InputError(f"no head {name!r}: this model has {', '.join(ends)}, counted from 0")
