"""Annotated corpora: what is read, from which formats, and as which stream of texts."""

from analyses.corpora.corpus import FORMATS, GENERATED, Corpus, read

__all__ = ["FORMATS", "GENERATED", "Corpus", "read"]
