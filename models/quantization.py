"""Matrices as whole numbers of eight bits, a scale for each output: a quarter of float32's memory, half of bfloat16's.

Only the weights of attention and feed-forwards are rounded (torchao's weight-only int8). Embeddings, norms, routers and
the output layer stay as they are. Activations, and so everything captured or edited, have the model's dtype.
"""

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

from interp import InputError, Transformer
from interp.config import Activation
from interp.parts import Linear
from interp.products import linear

_ROWS = 256


class Int8(nn.Module):
    """A linear layer with rounded weights.

    Each access computes `weight` and its per-head views (`W_Q`, ...) anew. Writing to them would change nothing, so
    torch raises an error.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        ao: Any = importlib.import_module("torchao.quantization")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # rounding takes several copies in float32, so some rows at a time; each row has its own scale
        parts = [ao.Int8Tensor.from_hp(rows.contiguous(), ao.PerRow()) for rows in linear.weight.detach().split(_ROWS)]
        whole, scale = torch.cat([part.qdata for part in parts]), torch.cat([part.scale for part in parts])
        rounded = ao.Int8Tensor(whole, scale, [1, linear.in_features], linear.weight.dtype)
        self.rounded: Any = nn.Parameter(rounded, requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The rounded weight in the model's dtype, shaped (out, in)."""
        if torch.is_grad_enabled():
            return self.rounded.dequantize().requires_grad_()
        with torch.inference_mode():
            return self.rounded.dequantize()

    def forward(self, x: Tensor, then: Activation | None = None) -> Tensor:
        """x times the weight, plus a bias, then an activation where there is one."""
        return linear(x, self.rounded, self.bias, then)


def require(quantize: str, dtype: torch.dtype) -> None:
    """Raise InputError if weights cannot be quantized by `quantize` for activations of `dtype`."""
    if quantize != "int8":
        raise InputError(f"quantize {quantize!r} is not supported: expected 'int8'")
    if dtype == torch.float64:
        raise InputError('quantize="int8" rounds by more than float64 keeps: expected float32, bfloat16 or float16')
    if importlib.util.find_spec("torchao") is None:
        raise InputError('quantize="int8" needs torchao, which is not installed: pip install "interp[int8]"')


def replace(model: Transformer, parameter: str) -> None:
    """Round the matrix called `parameter` in place, if a linear layer other than a router has it."""
    path, _, leaf = parameter.rpartition(".")
    module = model.get_submodule(path)
    if leaf == "weight" and isinstance(module, Linear) and not path.endswith("router"):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, Int8(module))
