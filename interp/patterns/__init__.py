"""Statistics of attention patterns: pure functions of a batch of patterns, and totals over a corpus."""

from interp.patterns.nulls import Null
from interp.patterns.rows import Rows, membership, pool
from interp.patterns.totals import N_GROUPS, Totals, group_of

__all__ = ["N_GROUPS", "Null", "Rows", "Totals", "group_of", "membership", "pool"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
