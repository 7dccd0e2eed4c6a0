"""What a run reports while it works: lines of JSON, and the same as TensorBoard files where tensorboardX is installed.

tensorboardX's writer works in a thread that dies on a full disk and leaves the training waiting, so its events are
written here, one after the other.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from interp.training.whole_files import replacing

METRICS = "metrics.jsonl"


class Record:
    """Numbers by step, in `metrics.jsonl` and in `tensorboard/`.

    A run that is resumed at `step` takes back what was recorded after it: those steps are taken again.
    """

    def __init__(self, out: Path, step: int = 0):
        self.path = out / METRICS
        lines = [line for line in read(out) if line["step"] <= step] if step else []
        with replacing(self.path) as part:
            part.write_bytes(b"".join(map(_line, lines)))
        self._events = None
        if find_spec("tensorboardX") is not None:
            from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415 (not always installed)

            (out / "tensorboard").mkdir(exist_ok=True)
            self._events = EventsWriter(str(out / "tensorboard/events"), f".{os.getpid()}.{step}")
            # TensorBoard withdraws what earlier files hold of this step and later ones
            self._add(step=step + 1, session_log={"status": "START"})

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Record what was measured after `step` steps; a number that is not finite is `null` in the line."""
        line = {"step": step} | {name: value if isfinite(value) else None for name, value in numbers.items()}
        end = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                file.write(_line(line if text is None else {**line, "sample": text}))
        except OSError:
            os.truncate(self.path, end)  # no half line
            raise
        values: list[Any] = [{"tag": name, "simple_value": value} for name, value in numbers.items() if isfinite(value)]
        if text is not None:
            one = {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": 1}]}, "string_val": [text.encode()]}
            values.append({"tag": "sample", "tensor": one, "metadata": {"plugin_data": {"plugin_name": "text"}}})
        self._add(step=step, summary={"value": values})

    def _add(self, **fields: Any) -> None:
        if self._events is not None:
            from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]

            self._events.write_event(Event(wall_time=time.time(), **fields))
            self._events.flush()

    def close(self) -> None:
        """Finish the files."""
        if self._events is not None:
            with suppress(OSError):  # a full disk, which was reported
                self._events.close()


def read(out: Path) -> list[dict[str, Any]]:
    """The lines of a run so far, up to the first that is damaged."""
    lines = []
    with suppress(FileNotFoundError, ValueError, RecursionError):
        for text in (out / METRICS).read_bytes().splitlines():
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                break
            lines.append(line)
    return lines


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()
