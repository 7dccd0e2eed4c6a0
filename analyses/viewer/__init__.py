"""Where does each token of one's own sentence look? An interactive page, in one file without any library."""

from analyses.viewer.passages import Attention, Called, Passage, Viewer, address, head_named, passage, read, read_texts
from analyses.viewer.viewer_page import page, write

__all__ = [
    "Attention",
    "Called",
    "Passage",
    "Viewer",
    "address",
    "head_named",
    "page",
    "passage",
    "read",
    "read_texts",
    "write",
]
__dir__ = __all__.copy  # so that `dir()` lists only the public names
