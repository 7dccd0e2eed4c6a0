"""Which part of this model carries the difference between two prompts? Sweeps of one site, as tables, figures, a page.

`measure` gives exact effects, `estimates.measure` sets gradient estimates beside them, `build` writes everything.
"""

from analyses.patch.cell_estimates import agreement_lines, correlations
from analyses.patch.cells import DIRECTIONS, METRICS, NO_OUTPUT, measure
from analyses.patch.patch_report import Written, build
from analyses.patch.prompt_pairs import COLUMNS, make_pairs, read_pairs, read_prompts, with_space

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
