"""Does one model have the heads that another has? The same measures side by side, matched by what heads do."""

from analyses.compare.compare_report import build, names
from analyses.compare.comparison import COMPARE_COLUMNS, Comparison, compare

__all__ = ["COMPARE_COLUMNS", "Comparison", "build", "compare", "names"]
