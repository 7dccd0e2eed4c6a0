"""What does a long command say while it runs? Which stage of how many this is, its speed, and the time it takes.

A terminal has one line that changes; a log gets a line a minute, as text or JSON.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

Say = Callable[[str, int], object]  # the stage, and a count: mostly of texts read
FIRST_PAGE, WRITING = "writing a first page", "writing figures"  # the last stages of commands that leave a directory
_EVERY, _AFTER, _PAUSE = 60.0, 10.0, 0.25  # seconds between lines, before a new stage's line, and between ticks
_LOCK = threading.Lock()  # held while a state changes or a line is written, and while the process forks


class Announcer:
    """A context that reports a command's progress to a terminal or a log; a timer reports between calls.

    Stages are numbered by the distinct stages begun so far. Planned stages that are skipped do not count, so the number
    of stages is that number plus the stages still planned.
    """

    def __init__(self, *, silent: bool = False, as_json: bool = False, clock: Callable[[], float] = time.monotonic):
        self._silent, self._as_json, self._clock, self._console = silent, as_json, clock, Console(stderr=True)
        self._on_terminal = self._console.is_terminal and not as_json and not silent
        self._process, self._begun = os.getpid(), set[str]()
        self._to_come: list[str] | None = None
        self._stage, self._done, self._total = "starting", 0, None
        self._start = self._since = self._reported = self._written = clock()
        self._counted = 0, self._start  # the first count of the stage, and its time
        self._has_lines, self._end = as_json, threading.Event()
        self._timer = threading.Thread(target=self._keep_on, name="progress", daemon=True)
        self._live = Live(get_renderable=self.row, console=self._console, auto_refresh=False, transient=True)

    def plan(self, stages: Iterable[str]) -> None:
        """Plan the next stages, in order, before any planned already."""
        with _LOCK:
            self._to_come = [*dict.fromkeys([*stages, *(self._to_come or ())])]

    def __call__(self, stage: str, done: int, total: int | None = None) -> None:
        """Record the stage and what is done of it; text that ends in a line break is a message."""
        with _LOCK:
            if stage.endswith("\n"):
                self._put({"message": stage.strip()})
                return
            now, is_new = self._clock(), stage != self._stage
            if self._to_come and stage in self._to_come:
                self._to_come = self._to_come[self._to_come.index(stage) + 1 :]
            self._begun.add(stage)
            if is_new:
                self._since = now
            if is_new or done < self._done:  # a second half counts from its own start
                self._counted = done, now
            self._stage, self._done, self._total, self._reported = stage, done, total, now
            self._tick(_AFTER if is_new else _EVERY)

    def state(self) -> dict[str, Any]:
        """The command's progress; `rate` is per second, `seconds` are those of the stage."""
        now, rate, left, (first, counted) = self._clock(), None, None, self._counted
        if self._done > first and self._reported > counted:
            rate = (self._done - first) / (self._reported - counted)
            left = None if self._total is None else max(0, (self._total - self._done) / rate - now + self._reported)
        number = len(self._begun)
        stages = None if self._to_come is None else number + len(self._to_come)
        state = {"stage_number": number, "stages": stages, "stage": self._stage, "done": self._done}
        state |= {"total": self._total, "rate": rate, "seconds": round(now - self._since), "seconds_left": left}
        return state | {"memory_mb": memory()}

    def row(self) -> Table:
        """The terminal's line, with long stage names cut."""
        number, stage, *rest = _words({**self.state(), "rate": None, "memory_mb": None})
        row = Table.grid(Column(no_wrap=True, overflow="ellipsis", ratio=1), Column(no_wrap=True), expand=True)
        row.add_row(Text(f"{number}: {stage}"), Text("  " + ", ".join(rest)))
        return row

    def __enter__(self) -> Self:
        _guard_forks()
        if self._on_terminal:
            self._live.start()
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end.set()
        self._timer.join()
        self._live.stop()
        if kind is None and self._has_lines:
            with _LOCK:
                self._put({"stage": "done", "seconds": self._clock() - self._start, "memory_mb": memory()})

    def _keep_on(self) -> None:
        while not self._end.wait(_PAUSE):
            with _LOCK:
                self._tick(_EVERY)
                if self._on_terminal:
                    self._live.refresh()

    def _tick(self, after: float) -> None:
        """Write a line to the log if the last one is `after` seconds old."""
        if not self._on_terminal and self._clock() - self._written >= after:
            self._written, self._has_lines = self._clock(), True
            self._put(self.state())

    def _put(self, record: Mapping[str, Any]) -> None:
        if self._silent or os.getpid() != self._process:  # a fork says nothing
            return
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        line = record.get("message") or f"{now} {', '.join(_words(record))}"
        if self._as_json:
            line = json.dumps({"time": now, **record}, ensure_ascii=False)
        with suppress(OSError):  # a full disk does not stop the work
            if self._on_terminal:
                self._console.print(Text(line), soft_wrap=True)
            else:
                print(line, file=self._console.file, flush=True)


@dataclass
class Stages:
    """Reports and times each stage. Text that ends in a line break is a message, not a stage.

    `tell` is a user's function of stage and count, or an `Announcer`, which also takes totals and plans.
    """

    tell: Say = lambda stage, count: None
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _now: str = "starting"
    _since: float = field(default_factory=time.perf_counter)

    @staticmethod
    def to(progress: Say | None) -> "Stages":
        """`Stages` that report to `progress`, or `progress` itself if it is `Stages` already."""
        return progress if isinstance(progress, Stages) else Stages(progress) if progress else Stages()

    def plan(self, stages: Iterable[str]) -> None:
        """Announce which stages come next."""
        if isinstance(self.tell, Announcer):
            self.tell.plan(stages)

    def __call__(self, stage: str, count: int, total: int | None = None) -> None:
        """Report a stage, and count the time since the last call for the stage before."""
        if not stage.endswith("\n"):
            self._count()
            self._now = stage
        if isinstance(self.tell, Announcer):
            self.tell(stage, count, total)
        else:
            self.tell(stage, count)

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far, in the order in which stages were first reported."""
        self._count()
        return dict(self._seconds)

    def _count(self) -> None:
        now = time.perf_counter()
        self._seconds[self._now] += now - self._since
        self._since = now


def _words(record: Mapping[str, Any]) -> list[str]:
    """Stage number and name, what is done, speed, time and memory, as far as known."""
    done, total, rate, left, most = map(record.get, ("done", "total", "rate", "seconds_left", "memory_mb"))
    of = f" of {record['stages']}" if record.get("stages") else ""
    words = [f"stage {record['stage_number']}{of}"] if "stage_number" in record else []
    words += [record["stage"], *([f"{done:,}" + ("" if total is None else f" of {total:,}")] if done or total else [])]
    if rate is not None:
        words.append(f"{rate:.1f} a second" if rate >= 1 else f"{60 * rate:.1f} a minute")
    if record["seconds"] >= 1:
        words.append(f"{timedelta(seconds=int(record['seconds']))} passed")
    words += [] if left is None else [f"{timedelta(seconds=int(left))} left"]
    return [*words, f"{most:,} MB"] if most else words


def memory() -> int | None:
    """Peak memory in MB of this process or its largest ended child; None on systems that do not count it."""
    with suppress(ImportError):
        import resource  # noqa: PLC0415 (of Unix)

        most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return most >> (20 if sys.platform == "darwin" else 10)


@cache
def _guard_forks() -> None:
    """Let no process fork while a line is half written: the child's copy of standard error would stay locked."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
