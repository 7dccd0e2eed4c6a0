"""Does one model have the heads that another has? The same measures side by side, matched by what heads do."""

from analyses.compare.compare_page import page
from analyses.compare.comparison import COMPARE_COLUMNS, Comparison, compare, names

__all__ = ["COMPARE_COLUMNS", "Comparison", "compare", "names", "page"]
__dir__ = __all__.copy  # so that `dir()` lists only the public names
