"""Training: examples, a plan, and a state to resume from."""

from interp.training.loop import Progress, train
from interp.training.objectives import Examples, Masked, Pairs, Repeats, Windows
from interp.training.plan import Phase, Plan

__all__ = ["Examples", "Masked", "Pairs", "Phase", "Plan", "Progress", "Repeats", "Windows", "train"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
