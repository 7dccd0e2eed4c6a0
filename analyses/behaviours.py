"""Which behaviours are there, and which module measures one in a kind of attention?"""

from typing import Any

from analyses import coreference, cross_attention, part_of_speech, position
from analyses.head_tables import Heads

MODULES: dict[str, Any] = {module.BEHAVIOUR: module for module in (position, part_of_speech, coreference)}
ACROSS: dict[str, Any] = {module.BEHAVIOUR: module for module in (cross_attention,)}


def modules_for(heads: Heads) -> dict[str, Any]:
    """The modules, by behaviour, that measure these heads."""
    return ACROSS if heads.attention == "cross" else MODULES
