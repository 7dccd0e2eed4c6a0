"""Statistics of attention patterns: pure functions of a batch of patterns, and totals over a corpus."""

from interp.patterns.nulls import Null
from interp.patterns.rows import Rows, remove_sink
from interp.patterns.totals import N_GROUPS, Totals, group_of
from interp.patterns.word_pooling import membership, pool

__all__ = ["N_GROUPS", "Null", "Rows", "Totals", "group_of", "membership", "pool", "remove_sink"]
