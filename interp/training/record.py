"""What a run tells while it works: lines of JSON, and the same as TensorBoard files."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp.training.board import Board
from interp.training.whole_files import Growing, replacing

METRICS = "metrics.jsonl"


class Record:
    """Numbers by step, in `metrics.jsonl` and in `tensorboard/`.

    A run that is resumed at `step` takes back what was told after it: those steps are taken again.

    Raises:
        OSError: the disk is full, or cannot be written; so do calls. Lines are whole all the same.
    """

    def __init__(self, out: Path, step: int = 0):
        path = out / METRICS
        kept = [line for line in read(out) if line["step"] <= step] if step else []
        with replacing(path) as part:
            part.write_bytes(b"".join(_line(line) for line in kept))
        self.path, self._file = path, Growing(path)
        self._board = Board(out / "tensorboard", step + 1)

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Tell what was seen after `step` steps; a number that is not finite is `null` in the line."""
        line: dict[str, Any] = {"step": step}
        line |= {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._file.add(_line(line if text is None else {**line, "sample": text}))
        self._board(step, numbers, text)

    def close(self) -> None:
        """Finish the files."""
        self._file.close()
        self._board.close()


def read(out: Path) -> list[dict[str, Any]]:
    """The lines that a run has told so far; one that was cut off in the middle is left out, and what follows it."""
    lines = []
    try:
        for line in (out / METRICS).read_bytes().splitlines():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(found, dict) or not isinstance(found.get("step"), int):
                break
            lines.append(found)
    except FileNotFoundError:
        pass
    return lines


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()
