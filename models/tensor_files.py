"""Tensors in safetensors files: which are there, and how are they read and written without a second copy?

Blocks of a tensor go through a buffer that fits a processor's cache, straight into the parameter that they fill. A
mapped file would count as resident memory until it is released, so a model would need twice its size. A matrix that is
transposed as a whole leaves the cache at every step, which is six times as slow.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interp import InputError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BLOCK, BLOCK_ELSEWHERE = 1 << 20, 1 << 26  # bytes; a device with memory of its own wants few transfers


@dataclass(frozen=True)
class Stored:
    """One tensor of a file."""

    file: Path
    kind: str  # safetensors' name of the dtype
    shape: tuple[int, ...]
    start: int  # its first byte in the file

    def fill(self, place: Tensor) -> None:
        """Copy it into `place`, a view of equally many numbers in the same order, of any dtype, strides and device.

        InputError if the file has become shorter, or numbers are not finite, there or once in `place`.
        """
        assert place.numel() == math.prod(self.shape)
        largest = torch.finfo(place.dtype).max
        for part, block in self._blocks(place, BLOCK if place.device.type == "cpu" else BLOCK_ELSEWHERE):
            low, high = (float(each) for each in torch.aminmax(block))
            if not (math.isfinite(low) and math.isfinite(high)):
                raise InputError(
                    f"it holds {'NaN' if math.isnan(low) else 'infinite numbers'}: the weights are damaged"
                )
            if max(high, -low) > largest:
                raise InputError(
                    f"it holds {max(high, -low):.3g}, more than {place.dtype} can: load it as torch.float32"
                )
            copy_block(part, block.to(part.device))

    def equals(self, values: Tensor) -> bool:
        """Whether `values` holds the same numbers in the same order, once rounded to its dtype."""
        assert values.numel() == math.prod(self.shape)
        return all(torch.equal(block.to(part), part) for part, block in self._blocks(values.detach(), BLOCK))

    def _blocks(self, place: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of `place`, each with its numbers from the file, which the next part overwrites."""
        buffer = bytearray()
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.start)
            for part in blocks(place, size):
                length = part.numel() * DTYPES[self.kind].itemsize
                if len(buffer) < length:
                    buffer = bytearray(length)
                room = memoryview(buffer)[:length]
                while room and (n_bytes := stream.readinto(room)):
                    room = room[n_bytes:]
                if room:
                    raise InputError(f"{self.file} is damaged or cut short; fetch or save it again")
                yield part, torch.frombuffer(buffer, dtype=DTYPES[self.kind], count=part.numel()).view(part.shape)


def blocks(place: Tensor, size: int) -> Iterator[Tensor]:
    """`place` cut along its first axes, in order, into parts of at most about `size` bytes."""
    if place.numel() == 0:
        return
    if place.ndim > 2:
        for part in place:
            yield from blocks(part, size)
    elif place.ndim == 0:
        yield place
    else:
        rows = max(1, size // (place[0].numel() * place.element_size()))
        yield from place.split(rows)


def copy_block(place: Tensor, block: Tensor) -> None:
    """Copy a block that fits the cache into `place`, which may be transposed."""
    if place.ndim == 2 and place.stride(0) == 1:
        place.T.copy_(block.T.contiguous())  # transposed within the cache, then written in runs
    else:
        place.copy_(block)


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file by name; InputError if it is damaged or cut short."""
    try:
        with safe_open(file, framework="pt"):  # checks the header against the file, to the byte
            pass
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} is damaged or cut short; fetch or save it again ({error})") from error
    header.pop("__metadata__", None)
    return {
        name: Stored(file, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def write(file: Path, tensors: Mapping[str, tuple[Tensor, tuple[int, ...]]]) -> None:
    """Write a safetensors file of tensors, each with the shape to store and its numbers in the same order.

    One tensor at a time is made contiguous: `safetensors.torch.save_file` wants all of them contiguous at once.
    """
    kinds = {dtype: kind for kind, dtype in DTYPES.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (tensor, shape) in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kinds[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the first tensor starts at a multiple of 8
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor, _ in tensors.values():
            stream.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def folded(names: Iterable[str]) -> str:
    """Names in one line; those that differ in a number are joined: `layers.0-3.norm.weight`."""
    paths = {tuple(name.split(".")) for name in names}
    for place in reversed(range(max(map(len, paths), default=0))):
        numbers: dict[tuple[str, ...], list[int]] = {}
        whole = set()
        for parts in paths:
            if len(parts) > place and parts[place].isdecimal():
                numbers.setdefault((*parts[:place], "", *parts[place + 1 :]), []).append(int(parts[place]))
            else:
                whole.add(parts)
        paths = whole | {(*parts[:place], _ranges(paths), *parts[place + 1 :]) for parts, paths in numbers.items()}
    return ", ".join(sorted(".".join(parts) for parts in paths))


def _ranges(numbers: list[int]) -> str:
    """`0-3,5` for 0, 1, 2, 3 and 5."""
    numbered = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])  # a run has one difference
    runs = [[number for _, number in run] for _, run in numbered]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
