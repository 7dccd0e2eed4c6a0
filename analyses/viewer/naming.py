"""What are heads called on a page: by their place, by an address, by their labels?"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analyses.head_names import Place
from analyses.head_tables import Heads
from interp import InputError, Model

HeadName = tuple[str, str, int, int]  # what a `Place` holds

_STRENGTH = {"both": 0, "effect": 1, "attention": 2}  # evidence of a label, the best first
_NEEDED = {"both", "effect"}
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
    ranks = [_STRENGTH.get(str(each), len(_STRENGTH)) for each in labels["evidence"]]
    rows = labels.assign(rank=ranks).sort_values(["rank", "gain"], ascending=[True, False], kind="stable")
    found: dict[HeadName, Called] = {}
    for row in rows.to_dict("records"):
        name = str(row["stack"]), str(row["attention"]), int(row["layer"]), int(row["head"])
        asks = str(row.get("measure", row["label"]))
        needed = str(row["evidence"]) in _NEEDED
        found.setdefault(name, Called(str(row["label"]), str(row["behaviour"]), asks, needed))
    return found


def address(model: Model, name: HeadName) -> str:
    """A head as links name it: `L2.H5` where there is one stack, else `encoder.L2.H5` or `cross.L2.H5`."""
    return Place(*name).named(several=len(Heads.every(model)) > 1)


def head_named(model: Model, name: str) -> HeadName:
    """The head that has this `address`.

    Raises:
        InputError: the model has no such head.
    """
    kinds = Heads.every(model)
    for heads in kinds:
        for layer, head in ((layer, head) for layer in range(heads.n_layers) for head in range(heads.n_heads)):
            if address(model, place := (heads.stack, heads.attention, layer, head)) == name:
                return place
    raise InputError(f"no head {name!r}: this model has {_known(model, kinds)}, counted from 0")


def _known(model: Model, kinds: Sequence[Heads]) -> str:
    """`encoder.L0.H0 to encoder.L3.H7, ...`."""
    ends = [
        [
            address(model, (each.stack, each.attention, *place))
            for place in ((0, 0), (each.n_layers - 1, each.n_heads - 1))
        ]
        for each in kinds
    ]
    return ", ".join(" to ".join(dict.fromkeys(each)) for each in ends)
