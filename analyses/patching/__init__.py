"""Which part of this model carries the difference between two prompts? Sweeps of one site, as tables, figures, a page.

`measure` gives exact effects, `estimates.measure` sets gradient estimates beside them, `build` writes everything.
"""

from analyses.patching.building import Written, build
from analyses.patching.cells import DIRECTIONS, METRICS, NO_OUTPUT, measure
from analyses.patching.estimates import agreement_lines, correlations
from analyses.patching.prompts import COLUMNS, make_pairs, read_pairs, read_prompts, with_space

__all__ = [
    "COLUMNS",
    "DIRECTIONS",
    "METRICS",
    "NO_OUTPUT",
    "Written",
    "agreement_lines",
    "build",
    "correlations",
    "make_pairs",
    "measure",
    "read_pairs",
    "read_prompts",
    "with_space",
]
