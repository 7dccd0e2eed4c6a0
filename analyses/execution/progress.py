"""What does a long command say while it runs? Which stage of how many this is, how fast it goes, and how long it takes.

A terminal has one line that changes; a log has a line a minute, of text or JSON.
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
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

Say = Callable[[str, int], object]  # what is being done, and how often: texts read, for the most part
LotProgress = Callable[[int, int], object]  # how many lots there are, and of how many
WRITING = "writing figures"  # the last stage of every command that leaves a directory
FIRST_PAGE = "writing a first page"  # of what is known already
_EVERY, _AFTER, _PAUSE = 60.0, 10.0, 1.0  # seconds between lines, before that of a new stage, and of the timer
_BAR = 10  # characters
_WRITE = threading.Lock()  # held while a line is written, and while the process forks


class State(NamedTuple):
    """How far a command is; `rate` is lots or texts a second, and `stages` None where nobody planned any."""

    stage: str
    stage_number: int
    stages: int | None
    done: int
    total: int | None
    rate: float | None
    seconds: float  # of this stage
    seconds_left: float | None  # likewise


class Announcer:
    """Counts stages and what is done of each; says nothing. Within `with`, those of other classes tell the user.

    A stage's number is that of distinct stages begun. What was planned before it and was not begun was left out, so the
    number of stages is that number and those still to come.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock, self._start = clock, clock()
        self._begun: dict[str, None] = {}
        self._to_come: list[str] | None = None
        # stage, number and stages; done and total; when the stage began; when counting began, from what; the last call
        self._now: tuple[Any, ...] = ("starting", 0, None, 0, None, self._start, self._start, 0, self._start)

    def plan(self, stages: Iterable[str]) -> None:
        """The stages that are still to come, in order."""
        self._to_come = [each for each in dict.fromkeys(stages) if each not in self._begun]
        stage, number, _, *rest = self._now
        self._now = (stage, number, number + len(self._to_come), *rest)

    def __call__(self, stage: str, done: int, total: int | None = None) -> None:
        """Take note of a stage, and of what is done of it; what ends in a line break is a message."""
        now = self.clock()
        self._begun[stage] = None
        if self._to_come and stage in self._to_come:
            self._to_come = self._to_come[self._to_come.index(stage) + 1 :]
        number = len(self._begun)
        stages = None if self._to_come is None else number + len(self._to_come)
        was, _, _, before, _, since, counted_since, first, _ = self._now  # of lots found on the disk none was measured
        if stage != was:
            since = now
        if stage != was or done < before:
            counted_since, first = now, done
        self._now = (stage, number, stages, done, total, since, counted_since, first, now)

    def state(self) -> State:
        """How far the command is; a timer may ask at any time."""
        stage, number, stages, done, total, since, counted_since, first, last = self._now
        now, rate, left = self.clock(), None, None
        if done > first and last > counted_since:
            rate = (done - first) / (last - counted_since)
            left = None if total is None else max(0.0, (total - done) / rate - (now - last))
        return State(stage, number, stages, done, total, rate, now - since, left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Say no more."""


class Log(Announcer):
    """A line a minute, also while nothing is reported, and one at a new stage; at the end one if there were any."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        as_json: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: float = _PAUSE,
    ):
        super().__init__(clock)
        self._write, self._as_json, self._pause = write or _to_stderr, as_json, pause
        self._last, self._has_lines, self._process = self._start, as_json, os.getpid()
        self._end = threading.Event()
        self._timer = threading.Thread(target=self._keep_on, name="progress", daemon=True)

    def __call__(self, stage: str, done: int, total: int | None = None) -> None:
        """As of all; a message is a line of its own."""
        if stage.endswith("\n"):
            self._put({"message": stage.strip()}, stage.strip())
            return
        is_new = stage not in self._begun
        super().__call__(stage, done, total)
        self.tick(_AFTER if is_new else _EVERY)

    def tick(self, after: float = _EVERY) -> None:
        """Write how far it is, if the last line is so many seconds old."""
        if self.clock() - self._last >= after:
            self._last, self._has_lines = self.clock(), True
            state = self.state()
            facts = {name: value for name, value in state._asdict().items() if name != "seconds"}
            self._put(facts | memory(), f"{timestamp()} {', '.join([*_parts(state), *_memory_parts()])}")

    def __enter__(self) -> Self:
        _guard_forks()
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end.set()
        self._timer.join()
        if kind is None and self._has_lines:
            seconds = self.clock() - self._start
            text = ", ".join([f"done in {duration(seconds)}", *_memory_parts()])
            self._put({"stage": "done", "seconds": round(seconds, 3), **memory()}, f"{timestamp()} {text}")

    def _keep_on(self) -> None:
        while not self._end.wait(self._pause):
            self.tick()

    def _put(self, facts: Mapping[str, Any], text: str) -> None:
        if os.getpid() == self._process:  # a fork is silent
            line = json.dumps({"time": timestamp("T"), **facts}, ensure_ascii=False) if self._as_json else text
            with _WRITE, suppress(OSError):  # a full disk does not stop the work
                self._write(f"{line}\n")


class Bar(Announcer):
    """A line on a terminal that goes away at the end; messages stay above it."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        super().__init__(clock)
        self._console = console
        self._live = Live(get_renderable=self.line, console=console, transient=True)

    def __call__(self, stage: str, done: int, total: int | None = None) -> None:
        """As of all; a message is a line of its own."""
        if stage.endswith("\n"):
            self._console.print(stage.strip(), highlight=False, soft_wrap=True, markup=False)
        else:
            super().__call__(stage, done, total)

    def line(self) -> Text:
        """As wide as the terminal at most: where it is too narrow, the stage's name is cut."""
        state = self.state()
        number, _, *rest = _parts(state, short=True)
        if state.total:
            full = min(_BAR, _BAR * state.done // state.total)
            rest = ["━" * full + "─" * (_BAR - full), *rest]
        after = "  ".join(["", *rest])
        name = Text(state.stage)
        name.truncate(max(1, self._console.width - len(number) - len(after) - 3), overflow="ellipsis")
        return Text.assemble(f"{number}: ", name, after, no_wrap=True, overflow="crop", end="")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._live.stop()


@dataclass
class Stages:
    """Tells what is being done, and times each stage. What ends a line is told, and is no stage.

    `tell` is a user's function of stage and count, or an `Announcer`, which takes totals and plans too.
    """

    tell: Say
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _now: str = "starting"
    _since: float = field(default_factory=time.perf_counter)

    @staticmethod
    def to(progress: Say | None) -> "Stages":
        """Those that tell `progress`, which may be `Stages` already."""
        return progress if isinstance(progress, Stages) else Stages(progress or (lambda stage, count: None))

    def plan(self, stages: Iterable[str]) -> None:
        """Say which stages are to come, but for the writing."""
        if isinstance(self.tell, Announcer):
            self.tell.plan([*stages, WRITING])

    def __call__(self, stage: str, count: int, total: int | None = None) -> None:
        """Tell it, and count the time since the last call for what was being done."""
        if not stage.endswith("\n"):
            self._count()
            self._now = stage
        if isinstance(self.tell, Announcer):
            self.tell(stage, count, total)
        else:
            self.tell(stage, count)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count what stages took elsewhere, at the same time as others."""
        for stage, duration in seconds.items():
            self._seconds[stage] += duration

    def seconds(self) -> dict[str, float]:
        """Of each stage until now, in the order in which they were first told."""
        self._count()
        return dict(self._seconds)

    def _count(self) -> None:
        now = time.perf_counter()
        self._seconds[self._now] += now - self._since
        self._since = now


def announcer(*, silent: bool = False, as_json: bool = False) -> Announcer:
    """What suits standard error: a terminal, or a log; none where the user wants silence."""
    if silent:
        return Announcer()
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal and not as_json else Log(as_json=as_json)


def _parts(state: State, *, short: bool = False) -> list[str]:
    """Number, name, what is done, how fast (but for `short`), and the stage's time, as words."""
    of = "" if state.stages is None else f" of {state.stages}"
    parts = [f"stage {state.stage_number}{of}", state.stage]
    if state.done or state.total:
        parts.append(f"{state.done:,}{'' if state.total is None else f' of {state.total:,}'}")
    if state.rate is not None and not short:
        slow = state.rate < 1
        parts.append(f"{state.rate * (60 if slow else 1):.1f} a {'minute' if slow else 'second'}")
    left = [] if state.seconds_left is None else [f"{duration(state.seconds_left)} left"]
    return [*parts, duration(state.seconds) + ("" if short else " passed"), *left]


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def timestamp(separator: str = " ") -> str:
    """The time here, to the second."""
    return datetime.now().astimezone().isoformat(separator, "seconds")


def memory() -> dict[str, int | None]:
    """The most MB that this process had, and that the largest of its children that have ended had."""
    try:
        import resource  # noqa: PLC0415 (of Unix)
    except ImportError:
        return {"memory_mb": None, "child_memory_mb": None}
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    own, child = (resource.getrusage(each).ru_maxrss // unit for each in who)
    return {"memory_mb": own, "child_memory_mb": child}


def _memory_parts() -> list[str]:
    own, child = memory().values()
    return ([f"{own:,} MB"] if own else []) + ([f"a worker {child:,} MB"] if child else [])


def _to_stderr(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


@cache
def _guard_forks() -> None:
    """No process forks while a line is half written: its copy of standard error would stay locked."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_WRITE.acquire, after_in_parent=_WRITE.release, after_in_child=_WRITE.release)
