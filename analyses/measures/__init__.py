"""Measures, the tables of heads that they make, and which rows are findings."""

from analyses.measures.definitions import Behaviour, Measure

__all__ = ["Behaviour", "Measure"]
__dir__ = __all__.copy  # `dir()` lists the public names
