"""How do heads form while a model is trained? What one look measures, and what whole runs show."""

from analyses.over_training.observe import measures

__all__ = ["measures"]
__dir__ = __all__.copy  # so that `dir()` lists only the public names
