"""What can no exact sweep avoid, and what does this machine make of it? Shapes, arithmetic, time and memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

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
    """Seconds that a job takes, all of it done, and what it gave."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    out = job()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, out


def multiply_adds(shape: Shape, site: str, by_position: bool) -> int:
    """What no exact sweep can avoid, over all cells and prompts; see the text of `benchmarks.sweeps`."""
    d, last = shape.d_model, shape.layers - 1
    heads = shape.heads if site == "z" else 1
    downstream = {"z": 9, "resid_pre": 12}[site] * d * d  # of the patched layer: the output and feed-forward, or all
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
    """Best multiply-adds a second of a product with inner dimension d_model, of several sizes and by both kernels."""
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
