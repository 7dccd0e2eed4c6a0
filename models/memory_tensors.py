"""Tensors in memory: a module's, named as in the files of its library, or those of a dict, ready to fill a model."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interp import InputError, Transformer
from models.tensor_files import BLOCK, DTYPES, blocks, copy_block

KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


@dataclass(frozen=True)
class MemoryTensor:
    """One tensor in memory; `original` says whether it is the model's own or was computed from it."""

    tensor: Tensor
    original: bool = True

    @property
    def kind(self) -> str:
        """Its dtype, by safetensors' name where it has one."""
        return KINDS.get(self.tensor.dtype, str(self.tensor.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.tensor.shape)

    def fill(self, place: Tensor) -> None:
        """Copy it into `place`, a view of equally many numbers in the same order, of any dtype, strides and device."""
        flat, start = self.tensor.detach().reshape(-1), 0
        for part in blocks(place, BLOCK if place.device.type == "cpu" else place.nbytes):
            copy_block(part, flat[start : start + part.numel()].view(part.shape))
            start += part.numel()

    def equals(self, values: Tensor) -> bool:
        """Whether `values` holds the same numbers in the same order, once rounded to its dtype."""
        ours, theirs = self.tensor.detach(), values.detach()
        same_memory = (ours.data_ptr(), ours.stride(), ours.dtype) == (theirs.data_ptr(), theirs.stride(), theirs.dtype)
        return same_memory or torch.equal(ours.reshape(theirs.shape).to(theirs), theirs)


@dataclass(frozen=True)
class MemoryTensors:
    """A model's tensors and configuration, under the name of its class."""

    called: str
    tensors: dict[str, MemoryTensor]
    buffers: frozenset[str] = frozenset()  # those that are not parameters
    config: Any = None
    generation: Any = None  # generation settings, if `transformers` keeps them apart


def in_memory(model: Any) -> MemoryTensors:
    """What `model` holds; InputError if it is ours, TransformerLens's or no model, or its tensors hold no numbers."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    called = type(model).__name__
    if isinstance(model, Transformer):
        raise InputError(f"this {called} is one of ours already: expected one to wrap, or to take weights from")
    if type(model).__module__.startswith("transformer_lens"):
        raise InputError(f"a {called} is TransformerLens's: models.lens.wrap takes a TransformerBridge")
    if isinstance(model, Mapping):
        return MemoryTensors("these tensors", _by_name(model, model.values()))
    if not isinstance(model, nn.Module):
        raise InputError(
            f"expected a model of transformers, another torch module or tensors by name, got {called}; models.load "
            "opens a directory or a name"
        )
    config = getattr(model, "config", None)
    state = model.state_dict(keep_vars=True)  # tied tensors stay one object
    written = _as_written(model, state) if hasattr(config, "to_json_string") else state
    buffers = frozenset(state) - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    generation = getattr(model, "generation_config", None)
    return MemoryTensors(called, _by_name(written, state.values()), buffers, config, generation)


def _by_name(tensors: Mapping[str, Any], originals: Iterable[Any]) -> dict[str, MemoryTensor]:
    """Plain tensors by name; a tensor that shares no memory with the `originals` was computed."""
    for name, tensor in tensors.items():
        if type(tensor) not in {Tensor, nn.Parameter}:
            raise InputError(f"{name} is a {type(tensor).__name__}: expected plain tensors by name")
        if tensor.is_meta:
            raise InputError(f"{name} has no numbers (it is on the meta device): load the model without offloading")
    memory = {each.untyped_storage().data_ptr() for each in originals}
    return {name: MemoryTensor(each, each.untyped_storage().data_ptr() in memory) for name, each in tensors.items()}


def _as_written(model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors of a model of `transformers` as its files name them: in memory some are doubled, fused or renamed."""
    twice: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    once = {name: each for name, each in state.items() if name not in twice or each is not state.get(twice[name])}
    try:
        loading: Any = importlib.import_module("transformers.core_model_loading")
    except ImportError:  # before version 5 there was no difference
        return once
    with torch.no_grad():
        return loading.revert_weight_conversion(model, once)
