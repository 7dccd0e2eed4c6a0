"""Where models come from: directories, the Hugging Face hub, an installed package, the default model, memory."""

from models.block_devices import place
from models.huggingface import save, weights_digest
from models.sources import load
from models.wrapping import Wrapped, copy_weights, wrap

__all__ = ["Wrapped", "copy_weights", "load", "place", "save", "weights_digest", "wrap"]
