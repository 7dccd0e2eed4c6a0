"""Where does each token of one's own sentence look? A page to be pointed at, in one file without any library."""

from analyses.viewer.passages import Attention, Passage, Said, Viewer, labelled, passage, read
from analyses.viewer.viewer_page import fragment, frame, page, script, style

__all__ = [
    "Attention",
    "Passage",
    "Said",
    "Viewer",
    "fragment",
    "frame",
    "labelled",
    "page",
    "passage",
    "read",
    "script",
    "style",
]
