"""Which part of this model carries the difference between two prompts? Sweeps of one site, as tables and sections.

`measure` gives exact effects, `find` computes what `interp patch` shows, and `page` makes its page.
"""

from analyses.patch.cell_estimates import agreement_lines, correlations
from analyses.patch.cells import DIRECTIONS, METRICS, NO_OUTPUT, Answers, measure
from analyses.patch.patch_page import page
from analyses.patch.patch_run import COLUMNS, Patched, find, make_pairs, read_pairs, read_places, read_prompts
from analyses.patch.patch_run import with_corrupt as with_corrupt

__all__ = ["COLUMNS", "DIRECTIONS", "METRICS", "NO_OUTPUT", "Answers", "Patched", "agreement_lines", "with_corrupt"]
__all__ += ["correlations", "find", "make_pairs", "measure", "page", "read_pairs", "read_places", "read_prompts"]
__dir__ = __all__.copy  # `dir()` lists the public names
