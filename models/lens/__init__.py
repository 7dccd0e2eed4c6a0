"""Models that TransformerLens wraps, behind our interface: `load("lens:NAME_OR_DIRECTORY")`.

Sites, `run`, captures and edits work on each architecture that has a `TransformerBridge`, and with them generation,
every analysis, the report and plain sweeps. The model is an `interp.Model`; it is no `Transformer`, whose parts can be
called. A short run tests what its hooks are (`models.lens.hooks`) and which sites are missing or read-only. `wrap`
takes a bridge of yours; `to_lens` turns our model into one.
"""

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from interp import InputError, Model, Tokenizer

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
    """A bridge as one of our models; it is not changed, and each call adds its own hooks and removes them.

    Args:
        bridge: with weights as stored: not in compatibility mode, which changes what sites mean.
        tokenizer: ours, for text; without one the model works on ids.
        target_tokenizer: the decoder's, if it has its own.

    Raises:
        InputError: the bridge has no blocks or no embedding.
    """
    return _opening().wrap_bridge(bridge, tokenizer, target_tokenizer)


def to_lens(model: Model) -> "TransformerBridge":
    """A `TransformerBridge` with the weights of our model, whose logits are the same; `.state_dict()` has the weights.

    Raises:
        InputError: TransformerLens is not installed, or no architecture that it wraps expresses this model.
    """
    return _opening().bridge_of(model)


def _opening() -> ModuleType:
    """The module that imports TransformerLens, which is slow and noisy."""
    if any(importlib.util.find_spec(name) is None for name in ("transformer_lens", "transformers")):
        raise InputError('TransformerLens is not installed: pip install "interp[lens]"')
    with unheard():
        return importlib.import_module("models.lens.bridges")


@contextmanager
def unheard() -> Iterator[None]:
    """Let no library warn, or log less than an error: what goes wrong they raise, and we say it in one line."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


__dir__ = __all__.copy  # `dir()` gives what a user may call
