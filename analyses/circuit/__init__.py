"""Which set of a model's edges is enough for a task, and how sure are we?

`prompts_of` and `task_prompts` make pairs with their templates. `find` computes what `interp circuit` shows, `page`
makes its page, and `mib` reads and writes MIB's circuits.
"""

from analyses.circuit.circuit_page import blocks, page, sentence, short
from analyses.circuit.circuit_pairs import TASKS, Prompts, prompts_of, task_prompts
from analyses.circuit.circuit_run import ALL, STAGES, Ablation, Found, Method, Settings, find

__all__ = ["ALL", "STAGES", "TASKS", "Ablation", "Found", "Method", "Prompts", "Settings", "blocks", "find", "page"]
__all__ += ["prompts_of", "sentence", "short", "task_prompts"]
__dir__ = __all__.copy  # `dir()` lists the public names
