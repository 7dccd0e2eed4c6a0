"""Directories in Hugging Face's format: config.json, safetensors weights (one file or shards), tokenizer.json.

Everything is checked before a weight is read, so a model that loads computes what its files say. Weights go straight
into the parameters that they fill. Pickles can run code and are never opened.
"""

from models.huggingface.loader import described, read, read_tokenizer, read_tokenizers
from models.huggingface.model_files import CONFIG, read_json, weight_files, weights_digest
from models.huggingface.saver import save

__all__ = [
    "CONFIG",
    "described",
    "read",
    "read_json",
    "read_tokenizer",
    "read_tokenizers",
    "save",
    "weight_files",
    "weights_digest",
]
__dir__ = __all__.copy  # `dir()` gives what a user may call
