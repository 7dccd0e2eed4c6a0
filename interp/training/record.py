"""What a run reports while it works: its numbers as lines of JSON."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from interp.training.whole_files import replacing

METRICS = "metrics.jsonl"


class Record:
    """Numbers by step, in `metrics.jsonl`; a run that is resumed at `step` takes back what was recorded after it."""

    def __init__(self, out: Path, step: int = 0):
        self.path = out / METRICS
        lines = [line for line in read(out) if line["step"] <= step] if step else []
        with replacing(self.path) as part:
            part.write_bytes(b"".join(map(_line, lines)))

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
