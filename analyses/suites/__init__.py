"""Linguists' test suites: reading them, scoring sentences, and what a model knows of a contrast."""

from analyses.suites.knowledge import by_paradigm, measure
from analyses.suites.sentence_scores import score_sentences
from analyses.suites.suite_files import read

__all__ = ["by_paradigm", "measure", "read", "score_sentences"]
