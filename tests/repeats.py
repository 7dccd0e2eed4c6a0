"""Texts of repeated words, and a planted model that copies them."""

import random

from interp import AnnotatedText, Transformer
from models import planted
from models.planted import Planted

WORDS = [f"w{number}" for number in range(40)]
PREVIOUS, COPIES = planted.offset(-1, remember=True), planted.induction(10.0)


def repeating_texts(count: int) -> list[AnnotatedText]:
    segments = [random.Random(number).sample(WORDS, 9) for number in range(count)]
    return [AnnotatedText((*each,) * 3, (True,) * 27, f"document {number}") for number, each in enumerate(segments)]


def two_layers(*first, then=COPIES, rest: list | None = None) -> Transformer:
    """The heads of the first layer, and a second of one head and the rest, which attend evenly if not given."""
    layers = [[*first], [then, *([planted.uniform] * (len(first) - 1) if rest is None else rest)]]
    return Planted(WORDS, layers, n_ctx=110, start="<s>").build()


def copying(first: list, second: list) -> Transformer:
    """A previous-token head that an induction head needs, each with other heads in its layer."""
    return two_layers(PREVIOUS, *first, rest=second)
