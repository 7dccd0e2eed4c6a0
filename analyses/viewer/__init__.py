"""Where does each token of one's own sentence look? A page to be pointed at, in one file without any library."""

from analyses.viewer.naming import Said, address, head_named, labelled, labelled_by
from analyses.viewer.passages import Attention, Passage, Viewer, passage, read
from analyses.viewer.viewer_page import fragment, frame, page, script, style, write

__all__ = [
    "Attention",
    "Passage",
    "Said",
    "Viewer",
    "address",
    "fragment",
    "frame",
    "head_named",
    "labelled",
    "labelled_by",
    "page",
    "passage",
    "read",
    "script",
    "style",
    "write",
]
