"""What does a command leave? One directory with tables, figures, a page and a record, written here for every command.

`build` makes a model's full report; the other functions are named after their commands.
"""

from analyses.report.builders import Written, circuit, compare, experiments, over_training, patch, probe, suite
from analyses.report.full_report import build

__all__ = ["Written", "build", "circuit", "compare", "experiments", "over_training", "patch", "probe", "suite"]
__dir__ = __all__.copy  # so that `dir()` lists only the public names
