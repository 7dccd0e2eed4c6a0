"""Linguists' test suites: which sentences are likelier, which contrasts does a model know, which heads carry them?"""

from analyses.suites.frames import BUILTIN, builtin
from analyses.suites.items import Suite, joined
from analyses.suites.knowledge import by_paradigm, measure
from analyses.suites.sentence_scores import score_sentences
from analyses.suites.suite_files import read
from analyses.suites.suite_page import page
from analyses.suites.suite_run import Found, find

__all__ = ["BUILTIN", "Found", "Suite", "builtin", "by_paradigm", "find", "joined", "measure", "page", "read"]
__all__ += ["score_sentences"]
__dir__ = __all__.copy  # `dir()` lists the public names
