"""What may each head be called, and on what evidence?

`hiding` says which rows and keys a label speaks of, `readouts` how a model is read there, `knockouts` what hiding them
costs; `evidence` gathers attention and effects of two halves of a text, and `judgement` makes labels of them.
"""

from analyses.labels.judgement import LABEL_COLUMNS, Labelled, label

__all__ = ["LABEL_COLUMNS", "Labelled", "label"]
__dir__ = __all__.copy  # `dir()` gives what a user may call
