"""What a run tells while it works: lines of JSON, and the same as TensorBoard files."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


class Record:
    """Numbers by step, in `metrics.jsonl` and, where the package is installed, in `tensorboard/`.

    A run that is resumed at `step` takes back what was told after it: those steps are taken again.
    """

    def __init__(self, out: Path, step: int = 0):
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / METRICS
        kept = [line for line in read(out) if line["step"] <= step] if step else []
        beside = out / f".{METRICS}.{os.getpid()}"
        beside.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        os.replace(beside, self.path)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        self._board = _board(out / "tensorboard", step)

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Tell what was seen after `step` steps."""
        line: dict[str, Any] = {"step": step, **numbers}
        self._file.write(json.dumps(line if text is None else {**line, "sample": text}, ensure_ascii=False) + "\n")
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
            if text is not None:
                self._board.add_text("sample", text, step)

    def close(self) -> None:
        """Finish the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read(out: Path) -> list[dict[str, Any]]:
    """The lines that a run has told so far; one that was cut off in the middle is left out."""
    lines = []
    try:
        for line in (out / METRICS).read_text("utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
    except FileNotFoundError:
        pass
    return lines


def _board(folder: Path, step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 (only training waits for it)
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
