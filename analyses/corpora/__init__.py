"""Annotated corpora: what is read, from which formats or rows, and as which stream of texts."""

from analyses.corpora.corpus import FORMATS, GENERATED, Corpus, read
from analyses.corpora.joining import join
from analyses.corpora.taken import take

__all__ = ["FORMATS", "GENERATED", "Corpus", "join", "read", "take"]
