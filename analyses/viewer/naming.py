"""What are heads called on a page: by their place, by an address, by what they do?"""

from dataclasses import dataclass

import numpy as np

from analyses.measures.head_tables import Heads
from analyses.wording.head_names import Place
from interp import InputError, Model

HeadName = tuple[str, str, int, int]  # what a `Place` holds


@dataclass(frozen=True)
class Called:
    """What a head is called, the behaviour whose colour it has, and the measure that says which words that is about.

    `needed` is whether an effect of it was measured, rather than its attention alone.
    """

    words: str
    behaviour: str = ""
    asks: str = ""
    needed: bool = False


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
        places = [
            Place(heads.stack, heads.attention, layer, head)
            for layer, head in np.ndindex(heads.n_layers, heads.n_heads)
        ]
        named = {address(model, place): place for place in places}
        if name in named:
            return named[name]
        ends.append(" to ".join(dict.fromkeys([next(iter(named)), [*named][-1]])))
    raise InputError(f"no head {name!r}: this model has {', '.join(ends)}, counted from 0")
