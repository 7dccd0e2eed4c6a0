"""Transformers with hand-set weights whose heads are known: what the analyses must find, and nothing else.

`Planted` builds a transformer from heads that are named one by one.
"""

from models.planted.build import UNKNOWN, Planted
from models.planted.heads import (
    antecedent,
    first_token,
    induction,
    noise,
    offset,
    same_token,
    seek,
    uniform,
    word_to_word,
)
from models.planted.slots import GAIN, Head, Plan, Slots

__all__ = [
    "GAIN",
    "UNKNOWN",
    "Head",
    "Plan",
    "Planted",
    "Slots",
    "antecedent",
    "first_token",
    "induction",
    "noise",
    "offset",
    "same_token",
    "seek",
    "uniform",
    "word_to_word",
]
__dir__ = __all__.copy  # `dir()` gives what a user may call
