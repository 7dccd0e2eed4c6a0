"""Annotated corpora: streams of texts from files, generators or rows."""

from analyses.corpora.corpus import FORMATS, GENERATED, Corpus, join, read
from analyses.corpora.in_memory import from_rows

__all__ = ["FORMATS", "GENERATED", "Corpus", "from_rows", "join", "read"]
__dir__ = __all__.copy  # `dir()` lists the public names
