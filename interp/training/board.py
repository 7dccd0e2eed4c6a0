"""Numbers and texts as TensorBoard reads them, where the extra `tensorboard` is installed; else nothing is written.

tensorboardX packs the messages. Its own writer works in a thread that dies on a full disk and leaves the training
waiting, so records are added here.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from interp.training.whole_files import Growing

_AS_TEXT = {"plugin_data": {"plugin_name": "text"}}


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
        if self._file is not None:
            values = [{"tag": name, "simple_value": value} for name, value in numbers.items() if isfinite(value)]
            texts = [] if text is None else [{"tag": "sample", "tensor": _strings(text), "metadata": _AS_TEXT}]
            self._add(step=step, summary={"value": [*values, *texts]})

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._file.close()

    def _add(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import masked_crc32c  # noqa: PLC0415

        assert self._file is not None
        event = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(event))
        sums = (struct.pack("<I", masked_crc32c(each)) for each in (length, event))
        self._file.add(length + next(sums) + event + next(sums))


def _strings(text: str) -> dict[str, Any]:
    """A tensor of one text."""
    return {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": 1}]}, "string_val": [text.encode()]}
