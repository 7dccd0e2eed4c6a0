"""Where along a model can words' tags, their relations and their referents be read off by a linear probe?

One probe a layer's stream and a head's output, beside what a probe gets without the model's help: a control task, the
rule that reads no sentence, the same model before training. Expected layer and centre of gravity say how deep.
"""

from analyses.probe.probe_runs import DEPTH_COLUMNS, LAYER_COLUMNS, Probed, measure
from analyses.probe.probe_section import section
from analyses.probe.probe_tasks import TASKS, Task

__all__ = ["DEPTH_COLUMNS", "LAYER_COLUMNS", "TASKS", "Probed", "Task", "measure", "section"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
