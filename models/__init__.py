"""Where models come from: directories, the Hugging Face hub, an installed package, the default model, memory."""

from models.block_devices import place
from models.huggingface import save, weights_digest
from models.sources import load
from models.wrapping import Wrapped, copy_weights, wrap

__all__ = ["Wrapped", "copy_weights", "load", "place", "save", "weights_digest", "wrap"]
_ROOMS = "families huggingface lens planted recipes stories"


def __dir__() -> list[str]:
    """What a user may call, and the packages that are loaded."""
    return [*__all__, *(name for name in _ROOMS.split() if name in globals())]
