"""What does a command leave? One directory with tables, figures, a page and a record, made here for every command.

`build` makes the full report of a model; the others are called as what they are about.
"""

from analyses.report.builders import Written, circuit, compare, experiments, over_training, patch, probe, suite
from analyses.report.full_report import build

__all__ = ["Written", "build", "circuit", "compare", "experiments", "over_training", "patch", "probe", "suite"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
