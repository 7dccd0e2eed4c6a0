"""What a long command says: numbers of stages that are true, rates by hand, lines that fit and that come in time."""

import json
import multiprocessing
import re
import threading
import warnings
from io import StringIO

import pytest
from rich.console import Console

from analyses.execution import progress
from analyses.execution.progress import Announcer, Bar, Log, Stages


class Clock:
    """Seconds that pass when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(progress, "memory", lambda: {"memory_mb": 812, "child_memory_mb": 0})
    monkeypatch.setattr(progress, "timestamp", lambda separator=" ": f"2026-01-02{separator}03:04:05")
    return Clock()


def log_of(clock: Clock, **options) -> tuple[Log, list[str]]:
    lines: list[str] = []
    return Log(lines.append, clock=clock, pause=3600, **options), lines


def test_rate_and_time_left_are_those_of_what_was_measured_now(clock):
    say = Announcer(clock)
    say("hiding", 100, 140)  # found on the disk
    assert (say.state().rate, say.state().seconds_left) == (None, None)
    clock.now += 20
    say("hiding", 110, 140)
    assert (say.state().rate, say.state().seconds_left) == (0.5, 60)
    clock.now += 15  # a long lot
    assert (say.state().rate, say.state().seconds_left, say.state().seconds) == (0.5, 45, 35)
    clock.now += 100
    assert say.state().seconds_left == 0
    say("hiding", 0, 10)  # of the other half: counted anew
    clock.now += 10
    say("hiding", 5, 10)
    assert (say.state().rate, say.state().seconds_left) == (0.5, 10)
    say("reading", 0)
    clock.now += 4
    say("reading", 8)
    assert (say.state().rate, say.state().seconds_left) == (2, None)


def test_a_stage_is_one_of_those_begun_and_those_to_come():
    say, numbers = Announcer(), []
    stages = ["loading", ("a", "b", "c", "d"), "a", "unplanned", "c", "c", "b", "d"]  # b comes late
    for stage in stages:
        if isinstance(stage, tuple):
            say.plan(stage)
        else:
            say(stage, 0)
        numbers.append(say.state()[1:3])
    assert numbers == [(1, None), (1, 5), (2, 5), (3, 6), (4, 5), (4, 5), (5, 6), (6, 6)]


def test_a_log_has_a_line_a_minute_and_one_at_a_new_stage_and_at_the_end(clock):
    say, lines = log_of(clock)
    with say:
        say.plan(["reading", "hiding"])
        say("reading", 0)
        clock.now += 9
        say("reading", 3)
        say.tick()
        assert not lines
        clock.now += 1
        say("hiding", 0, 40)
        clock.now += 59
        say("hiding", 2, 40)
        assert len(lines) == 1
        clock.now += 1
        say.tick()  # nothing was reported since
        say("the page is there\n", 0)
        clock.now += 3600
    begins = "2026-01-02 03:04:05 "
    assert lines == [
        f"{begins}stage 2 of 2, hiding, 0 of 40, 0:00 passed, 812 MB\n",
        f"{begins}stage 2 of 2, hiding, 2 of 40, 2.0 a minute, 1:00 passed, 18:40 left, 812 MB\n",
        "the page is there\n",
        f"{begins}done in 1:01:10, 812 MB\n",
    ]


def _interrupted(say: Log) -> None:
    with say:
        say.tick()
        raise KeyboardInterrupt


def test_a_short_command_says_nothing_in_a_log_and_one_that_fails_has_no_end(clock):
    say, lines = log_of(clock)
    with say:
        say("reading", 0)
    assert not lines
    say, lines = log_of(clock)
    clock.now += 60
    with pytest.raises(KeyboardInterrupt):
        _interrupted(say)
    assert len(lines) == 1
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_every_line_of_a_json_log_is_an_object(clock):
    say, lines = log_of(clock, as_json=True)
    with say:
        clock.now += 60
        say("hiding “keys”", 0, 4)
        clock.now += 60
        say("hiding “keys”", 1, 4)
        say("shown\n", 0)
    time, memory = {"time": "2026-01-02T03:04:05"}, {"memory_mb": 812, "child_memory_mb": 0}
    stage = {"stage": "hiding “keys”", "stage_number": 1, "stages": None, "total": 4}
    assert [*map(json.loads, lines)] == [
        {**time, **stage, "done": 0, "rate": None, "seconds_left": None, **memory},
        {**time, **stage, "done": 1, "rate": 1 / 60, "seconds_left": 180, **memory},
        {**time, "message": "shown"},
        {**time, "stage": "done", "seconds": 120, **memory},
    ]


def test_the_timer_speaks_while_nothing_is_reported_and_never_in_a_fork(clock):
    lines, said, inside = [], threading.Event(), []

    def write(line: str) -> None:
        inside.append(progress._WRITE.locked())
        lines.append(line)
        said.set()

    with Log(write, clock=clock, pause=0.001) as say:
        clock.now += 60
        assert said.wait(30)

        def work() -> None:
            say("elsewhere\n", 0)
            raise SystemExit(len(lines) - 1 + progress._WRITE.locked() + threading.active_count() - 1)

        worker = multiprocessing.get_context("fork").Process(target=work)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            worker.start()
        worker.join()
        assert worker.exitcode == 0
    assert len(lines) == 2  # and the end
    assert all(inside)


NAMES = "reading", "position, part-of-speech, coreference, own-measures: reading " * 2, "語" * 60


@pytest.mark.parametrize("name", NAMES, ids=["short", "long", "wide"])
def test_a_terminal_has_one_line_of_its_width(name, clock):
    stream = StringIO()
    console = Console(width=80, force_terminal=True, file=stream, legacy_windows=False)
    with Bar(console, clock) as say:
        say.plan(str(number) for number in range(24))
        say(name, 0, 12_000)
        clock.now += 4000
        say(name, 4000, 12_000)
        say("[b]kept\n", 0)
        line = say.line()
        say._live.refresh()
    assert line.cell_len <= 80
    assert re.fullmatch(rf"stage 1 of 25: {name[:3]}.*  ━━━───────  4,000 of 12,000  1:06:40  2:13:20 left", line.plain)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())
    assert "[b]kept\n" in shown
    assert all(Console().render_str(row, markup=False).cell_len <= 80 for row in re.split(r"[\r\n]", shown))


def test_a_function_of_a_user_gets_stage_and_count_and_ours_the_total_too(clock):
    told = []
    Stages.to(lambda stage, count: told.append((stage, count)))("hiding", 2, 5)
    assert told == [("hiding", 2)]
    say = Announcer(clock)
    stages = Stages.to(say)
    assert Stages.to(stages) is stages
    stages.plan(["hiding"])
    stages("hiding", 2, 5)
    assert say.state()[:5] == ("hiding", 1, 2, 2, 5)  # writing comes last


def test_what_is_told_suits_the_stream(monkeypatch):
    assert type(progress.announcer(silent=True)) is Announcer
    assert type(progress.announcer(silent=True, as_json=True)) is Announcer
    for is_terminal, as_json, kind in ((True, False, Bar), (True, True, Log), (False, False, Log)):
        monkeypatch.setattr(Console, "is_terminal", property(lambda console, shown=is_terminal: shown))
        assert type(progress.announcer(as_json=as_json)) is kind
