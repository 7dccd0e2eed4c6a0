"""Models that TransformerLens wraps, behind the interface of ours: `load("lens:NAME_OR_DIRECTORY")`.

Sites, `run`, captures, edits, and with them generation, every analysis, the report and plain sweeps, on each
architecture that a `TransformerBridge` exists for: an `interp.Model`, and no `Transformer`, whose parts can be called.
What its hooks are is found out on a short run (`models.lens.hooks`), and sites that it lacks, or can only read, are
said to be so. `wrap` takes a bridge that you have; `to_lens` gives you one of our model.
"""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from interp import InputError, Model, Tokenizer
from models.lens.unheard import unheard

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from models.lens.bridged_model import Bridged

__all__ = ["read", "to_lens", "wrap"]


def read(directory: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> "Bridged":
    """The model in a directory of Hugging Face's format, of any architecture that TransformerLens wraps.

    Nothing is fetched, and no code that a directory brings is run.

    Raises:
        InputError: TransformerLens is not installed or has no such architecture; files are missing or do not fit.
    """
    return _opening().open_directory(Path(directory), dtype, torch.device(device))


def wrap(
    bridge: "TransformerBridge", tokenizer: Tokenizer | None = None, target_tokenizer: Tokenizer | None = None
) -> "Bridged":
    """A bridge as one of our models; it is used as it is, and run with hooks of its own while a call lasts.

    Args:
        bridge: with weights as they were stored: not in compatibility mode, which changes what sites mean.
        tokenizer: ours, for text; without one the model works on ids.
        target_tokenizer: of what the decoder reads, where it has another.

    Raises:
        InputError: a bridge whose blocks or embedding cannot be found.
    """
    return _opening().wrap_bridge(bridge, tokenizer, target_tokenizer)


def to_lens(model: Model) -> "TransformerBridge":
    """A `TransformerBridge` with the weights of our model, whose logits are the same; `.state_dict()` has the weights.

    Raises:
        InputError: TransformerLens is not installed, or no architecture that it wraps expresses this model.
    """
    return _opening().bridge_of(model)


def _opening() -> ModuleType:
    """What imports TransformerLens: only who asks for it waits for it, and hears nothing of its imports."""
    if any(importlib.util.find_spec(name) is None for name in ("transformer_lens", "transformers")):
        raise InputError('TransformerLens is not installed: pip install "interp[lens]"')
    with unheard():
        return importlib.import_module("models.lens.bridges")


__dir__ = __all__.copy  # `dir()` gives what a user may call
