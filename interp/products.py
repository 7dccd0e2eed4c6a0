"""Which kernel multiplies matrices faster? On an AMD processor with AVX-512 oneDNN does, twice as fast as MKL."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from interp.config import Activation

_FEWEST = 16  # rows: for fewer, laying out the weight anew takes longer
_STEPS = 5  # rows are padded to a multiple of the power of two this far below them: each number of rows has a kernel
_PLAIN = (Tensor, nn.Parameter)  # quantised or sharded weights have kernels of their own
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
_ONEDNN_NAMES = {None: "none", "gelu": "gelu", "gelu_tanh": "gelu", "relu": "relu", "silu": "swish"}


def linear(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
    then: Activation | None = None,
) -> Float[Tensor, "*batch d_out"]:
    """x Wᵀ + b as in `torch.nn.functional.linear`, by the faster kernel if there is one, and then an activation."""
    if not _faster(x, weight):
        return _through(then, F.linear(x, weight, bias))
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, weight, bias)):
        # a view, because `backward` cannot query a leaf
        return _through(then, _Linear.apply(x, weight.view_as(weight), bias))
    rows = x.flatten(0, -2)
    step = max(_FEWEST, 1 << max(0, len(rows).bit_length() - _STEPS))
    padding = -len(rows) % step
    product = _onednn(F.pad(rows, (0, 0, 0, padding)) if padding else rows, weight, bias, then)
    return product.resize_(*x.shape[:-1], len(weight))  # cut in place, so that it is no view of a longer one


def _through(activation: Activation | None, x: Tensor) -> Tensor:
    return x if activation is None else ACTIVATIONS[activation](x)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, then: Activation | None = None) -> Tensor:
    if not (weight.is_contiguous() or weight.t().is_contiguous()):  # other layouts take slow reference loops
        weight = weight.contiguous()
    settings = [1.0] if then == "silu" else [], {"gelu": "none", "gelu_tanh": "tanh"}.get(str(then), "")
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, _ONEDNN_NAMES[then], *settings)


def _faster(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and type(x) in _PLAIN
        and type(weight) in _PLAIN
        and x.numel() >= _FEWEST * weight.shape[-1]
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and _exists()
    )


@cache
def _exists() -> bool:
    """Whether torch has the kernel and the processor has AVX-512; without it MKL is as fast."""
    fits = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return fits and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _Linear(torch.autograd.Function):
    """The same product with gradients, which are products too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x.flatten(0, -2), weight, bias).resize_(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (upstream,), (x, weight) = grad, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        # skip the weight's gradient if only activations need theirs
        of_weight = of_weight and torch._C._will_engine_execute_node(ctx.next_functions[1][0])
        rows = upstream.flatten(0, -2)
        return (
            linear(upstream, weight.t()) if of_x else None,
            linear(rows.t(), x.flatten(0, -2).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
