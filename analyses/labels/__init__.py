"""Which labels does each head get, and on what evidence?

`hiding` draws the rows and keys of a label, `readouts` reads the model there, and `knockouts` measures what hiding the
keys costs. `evidence` gathers attention and effects on two halves of a text, and `judgement` turns them into labels.
"""

from analyses.labels.judgement import LABEL_COLUMNS, Labelled, label

__all__ = ["LABEL_COLUMNS", "Labelled", "label"]
__dir__ = __all__.copy  # `dir()` lists the public names
