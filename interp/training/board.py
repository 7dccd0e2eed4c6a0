"""Numbers and texts as TensorBoard reads them: records of `tensorflow.Event` messages, each with its checksums.

Written here in a page rather than by a package: those at hand write from a thread of their own, which dies unseen on a
full disk and lets the training wait for it for ever.
"""

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from interp.training.whole_files import Growing

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # kinds of field, in protocol buffers' own numbers
_STRING = 7  # DT_STRING


class Board:
    """A file of events, in `folder`; what files there hold of `step` and later is withdrawn."""

    def __init__(self, folder: Path, step: int):
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{step}"
        self._file = Growing(folder / name)
        self._add(_bytes(3, b"brain.Event:2"))
        self._add(_whole(2, step), _bytes(7, _whole(1, 1)))  # a session starts at this step: SessionLog.START

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Add what was seen after `step` steps; numbers that are not finite are left out."""
        seen = [
            _bytes(1, _bytes(1, name.encode()) + _field(2, _FLOAT, struct.pack("<f", value)))
            for name, value in numbers.items()
            if math.isfinite(value)
        ]
        if text is not None:
            seen.append(_bytes(1, _text("sample", text)))
        self._add(_whole(2, step), _bytes(5, b"".join(seen)))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _add(self, *fields: bytes) -> None:
        event = _field(1, _DOUBLE, struct.pack("<d", time.time())) + b"".join(fields)
        length = struct.pack("<Q", len(event))
        self._file.add(length + _checksum(length) + event + _checksum(event))


def _text(tag: str, text: str) -> bytes:
    """A `Summary.Value` that holds text, for the plug-in that shows it."""
    shape = _bytes(2, _whole(1, 1))
    tensor = _whole(1, _STRING) + _bytes(2, shape) + _bytes(8, text.encode())
    plugin = _bytes(1, _bytes(1, b"text"))
    return _bytes(1, tag.encode()) + _bytes(8, tensor) + _bytes(9, plugin)


def _field(number: int, kind: int, value: bytes) -> bytes:
    return _varint(number << 3 | kind) + value


def _whole(number: int, value: int) -> bytes:
    return _field(number, _VARINT, _varint(value))


def _bytes(number: int, value: bytes) -> bytes:
    return _field(number, _BYTES, _varint(len(value)) + value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _table() -> list[int]:
    """Remainders of each byte, for CRC-32C (Castagnoli)."""
    table = list(range(256))
    for _ in range(8):
        table = [each >> 1 ^ (0x82F63B78 if each & 1 else 0) for each in table]
    return table


_REMAINDERS = _table()


def _checksum(data: bytes) -> bytes:
    """CRC-32C, turned and moved as records of TensorFlow have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _REMAINDERS[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
