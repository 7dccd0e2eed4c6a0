"""What is measured, the tables of heads that it gives, and which of their rows are findings."""

from analyses.measures.definitions import Behaviour, Measure

__all__ = ["Behaviour", "Measure"]
