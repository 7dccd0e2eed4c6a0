"""In which layers can a linear probe read words' tags, relations and referents?

Each layer's stream and each head's output has its probe. The rivals do not use what the model learnt: a control task,
a rule that reads no sentence, the same model before training. Expected layer and centre of gravity measure depth.
"""

from analyses.probe.probe_runs import DEPTH_COLUMNS, LAYER_COLUMNS, Probed, measure
from analyses.probe.probe_section import section
from analyses.probe.probe_tasks import TASKS, Task

__all__ = ["DEPTH_COLUMNS", "LAYER_COLUMNS", "TASKS", "Probed", "Task", "measure", "section"]
__dir__ = __all__.copy  # `dir()` lists the public names
