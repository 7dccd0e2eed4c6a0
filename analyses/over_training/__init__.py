"""How do heads form while a model is trained? What one look measures, and the report over a whole run."""

from analyses.over_training.look import measures

__all__ = ["measures"]
