"""What a run reports while it works: lines of JSON, and the same as TensorBoard files where that is installed.

tensorboardX packs the messages. Its own writer works in a thread that dies on a full disk and leaves the training
waiting, so records are added here.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from interp.training.whole_files import Growing, replacing

METRICS = "metrics.jsonl"
_AS_TEXT = {"plugin_data": {"plugin_name": "text"}}


class Record:
    """Numbers by step, in `metrics.jsonl` and in `tensorboard/`.

    A run that is resumed at `step` takes back what was recorded after it: those steps are taken again.
    """

    def __init__(self, out: Path, step: int = 0):
        self.path = out / METRICS
        lines = [line for line in read(out) if line["step"] <= step] if step else []
        with replacing(self.path) as part:
            part.write_bytes(b"".join(map(_line, lines)))
        self._lines, self._board = Growing(self.path), Board(out / "tensorboard", step + 1)

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Record what was measured after `step` steps; a number that is not finite is `null` in the line."""
        line = {"step": step} | {name: value if isfinite(value) else None for name, value in numbers.items()}
        self._lines.add(_line(line if text is None else {**line, "sample": text}))
        self._board(step, numbers, text)

    def close(self) -> None:
        """Finish the files."""
        self._lines.close()
        self._board.close()


def read(out: Path) -> list[dict[str, Any]]:
    """The lines of a run so far, up to the first that is damaged."""
    lines = []
    try:
        for text in (out / METRICS).read_bytes().splitlines():
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                break
            lines.append(line)
    except (FileNotFoundError, ValueError, RecursionError):
        pass
    return lines


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()


class Board:
    """A file of events in `folder`; TensorBoard withdraws what earlier files there hold of `step` and later."""

    def __init__(self, folder: Path, step: int):
        self._file = None
        if find_spec("tensorboardX") is not None:
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{step}"
            self._file = Growing(folder / name)
            self._add(file_version="brain.Event:2")
            self._add(step=step, session_log={"status": "START"})

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Add the numbers and the text of a step; numbers that are not finite are left out."""
        values: list[Any] = [{"tag": name, "simple_value": value} for name, value in numbers.items() if isfinite(value)]
        if text is not None:
            one = {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": 1}]}, "string_val": [text.encode()]}
            values.append({"tag": "sample", "tensor": one, "metadata": _AS_TEXT})
        self._add(step=step, summary={"value": values})

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._file.close()

    def _add(self, **fields: Any) -> None:
        if self._file is None:
            return
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import masked_crc32c  # noqa: PLC0415

        event = Event(wall_time=time.time(), **fields).SerializeToString()
        parts = struct.pack("<Q", len(event)), event
        self._file.add(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
