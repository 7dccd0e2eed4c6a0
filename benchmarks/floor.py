"""What must every exact sweep do, and how fast can this machine do it? Shapes, arithmetic, time and memory."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from interp.products import linear


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    d_model: int
    vocabulary: int
    prompts: int = 8
    positions: int = 16
    first: int = 8  # where clean and corrupted prompts differ

    def __str__(self) -> str:
        return (
            f"{self.layers}x{self.heads}x{self.d_model}, vocabulary {self.vocabulary}, {self.prompts}x{self.positions}"
        )


GPT2 = Shape(12, 12, 768, 50_257)


def timed(job: Callable[[], object], device: torch.device) -> tuple[float, object]:
    """A job's seconds, including work on the device, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    out = job()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, out


def multiply_adds(shape: Shape, site: str, by_position: bool) -> int:
    """The multiply-adds that every exact sweep needs, over all cells and prompts; see `benchmarks.sweeps`."""
    d, last = shape.d_model, shape.layers - 1
    heads = shape.heads if site == "z" else 1
    downstream = {"z": 9, "resid_pre": 12}[site] * d * d  # in the patched layer: output and feed-forward, or all
    total = 0
    for layer in range(shape.layers):
        for position in range(shape.first, shape.positions) if by_position else [None]:
            reached = shape.positions - (shape.first if position is None else position)
            positions = 1 if site == "z" and position is not None else reached
            reads = position is None or position == shape.positions - 1 or site == "resid_pre"
            if layer == last:
                keys = 2 * d * d * reached if site == "resid_pre" else 0
                total += heads * (keys + (downstream - (2 * d * d if site == "resid_pre" else 0)) * reads)
                continue
            total += heads * (downstream * positions + (last - layer - 1) * 12 * d * d * reached)
            total += heads * (2 * d * d * reached + 10 * d * d)  # the last layer
    return total * shape.prompts


def best_rate(d_model: int, device: torch.device, dtype: torch.dtype, seconds: float = 1.5) -> float:
    """Best multiply-adds per second of products with inner dimension d_model, over sizes and both kernels."""
    d, best, until = d_model, 0.0, time.perf_counter() + seconds
    sizes = [(rows, columns) for rows in (256, 512, 768, 1536, 3072) for columns in (d, 3 * d, 4 * d)]
    products = [
        (
            torch.randn(m, d, device=device, dtype=dtype),
            torch.randn(d, n, device=device, dtype=dtype),
        )
        for m, n in sizes
    ]
    while time.perf_counter() < until:
        for a, b in products:
            for job in (lambda a=a, b=b: a @ b, lambda a=a, b=b: linear(a, b.t())):
                took, _ = timed(job, device)
                best = max(best, a.shape[0] * d * b.shape[1] / took)
    return best


_LINEAR = {torch.ops.aten.linear.default, torch.ops.mkldnn._linear_pointwise.default}  # whose weight is output first
_MULTIPLIED = {  # which arguments are multiplied
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.bmm.default: (0, 1),
    torch.ops.aten.baddbmm.default: (1, 2),
    **dict.fromkeys(_LINEAR, (0, 1)),
}


class Products(TorchDispatchMode):
    """Records the shapes of all matrix products inside the block, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = []  # the last: the second is a weight

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a product, and compute it."""
        if func in _MULTIPLIED:
            a, b = (tuple(args[index].shape) for index in _MULTIPLIED[func])
            self.shapes.append((a, b, func in _LINEAR))
        return func(*args, **(kwargs or {}))


def sustained_rate(job: Callable[[], object], device: torch.device, dtype: torch.dtype, layers: int) -> float:
    """Multiply-adds per second of only a job's matrix products, in order.

    Products of one shape cycle through as many right-hand sides as the model has layers, like weights.
    """
    with Products() as noted:
        job()
    operands: dict[Any, list[torch.Tensor]] = {}
    for a, b, _ in noted.shapes:
        if (a, b) not in operands:
            right = operands.get(b) or [torch.randn(b, device=device, dtype=dtype) for _ in range(layers)]
            operands[b], operands[a, b] = right, [torch.randn(a, device=device, dtype=dtype)]
    products = [
        (linear if weight else torch.matmul, operands[a, b][0], operands[b][index % layers])
        for index, (a, b, weight) in enumerate(noted.shapes)
    ]

    @torch.no_grad()
    def replay() -> None:
        for product, a, b in products:
            product(a, b)

    replay()
    seconds = statistics.median(timed(replay, device)[0] for _ in range(3))
    return sum(a.numel() * b.shape[0 if product is linear else -1] for product, a, b in products) / seconds


class Peak:
    """Growth of the process's peak resident memory, in MB (Linux; elsewhere not a number)."""

    def __enter__(self) -> "Peak":
        self.before = self._reset()
        return self

    def __exit__(self, *_: object) -> None:
        self.mb = (self._read("VmHWM") - self.before) / 1024

    def _reset(self) -> float:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return float("nan")
        return self._read("VmRSS")

    @staticmethod
    def _read(field: str) -> float:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return float("nan")
        return float(next(line for line in lines if line.startswith(field)).split()[1])
