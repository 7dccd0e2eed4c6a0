"""Randomly composed planted models, and texts over their words, for checking the analyses.

`compose` plants known behaviours among noise in a decoder, an encoder or with grouped queries, and says which head has
which. `rungs` plants a head for every rule. `planted_texts` and `linked_texts` write sentences over the planted words
with gold tags, relations and chains.
"""

from benchmarks.planted.random_models import BEHAVIOURS, FORMS, Composed, Placed, compose

__all__ = ["BEHAVIOURS", "FORMS", "Composed", "Placed", "compose"]
