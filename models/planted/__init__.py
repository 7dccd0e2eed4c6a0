"""Transformers with hand-set weights whose heads are known: what the analyses must find, and nothing else.

`Planted` builds a transformer from heads that are named one by one; `compose` plants known behaviours among noise at
random, in a decoder, an encoder or with grouped queries, and says what sits where. `texts` writes sentences over the
planted words with gold tags, relations and chains.
"""

from models.planted.build import UNKNOWN, Planted
from models.planted.heads import antecedent, first_token, induction, noise, offset, same_token, uniform, word_to_word
from models.planted.random_models import BEHAVIOURS, FORMS, Composed, Placed, compose
from models.planted.search_heads import seek
from models.planted.slots import GAIN, Head, Plan, Slots

__all__ = [
    "BEHAVIOURS",
    "FORMS",
    "GAIN",
    "UNKNOWN",
    "Composed",
    "Head",
    "Placed",
    "Plan",
    "Planted",
    "Slots",
    "antecedent",
    "compose",
    "first_token",
    "induction",
    "noise",
    "offset",
    "same_token",
    "seek",
    "uniform",
    "word_to_word",
]
