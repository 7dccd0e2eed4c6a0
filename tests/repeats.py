"""Texts of repeated words, and a planted model that copies them."""

import random

from interp import AnnotatedText, Transformer
from models import planted
from models.planted import Planted

WORDS = [f"w{number}" for number in range(40)]


def repeating_texts(count: int) -> list[AnnotatedText]:
    drawn = [random.Random(number).sample(WORDS, 9) for number in range(count)]
    return [AnnotatedText((*each,) * 3, (True,) * 27, f"document {number}") for number, each in enumerate(drawn)]


def copying(behind: list, beside: list) -> Transformer:
    """A previous-token head that an induction head needs, each with other heads in its layer."""
    layers = [[planted.offset(-1, remember=True), *behind], [planted.induction(10.0), *beside]]
    return Planted(WORDS, layers, n_ctx=110, start="<s>").build()
