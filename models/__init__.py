"""Where models come from: directories, the Hugging Face hub, an installed package, the default model."""

from models.huggingface import save, weights_digest
from models.sources import load

__all__ = ["load", "save", "weights_digest"]
