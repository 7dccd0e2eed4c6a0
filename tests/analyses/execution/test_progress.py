"""What a long command reports: true numbers of stages, rates checked by hand, lines that fit and come in time."""

import json
import multiprocessing
import re
import threading
import warnings

import pytest
from rich.console import Console

from analyses.execution import progress
from analyses.execution.progress import Announcer


class Clock:
    """A clock that tests advance."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(progress, "memory", lambda: 812)
    monkeypatch.setattr(progress, "_PAUSE", 3600)
    return Clock()


def lines_of(capsys) -> list[str]:
    """The lines of a log, without the time of day."""
    return [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S+ ", "", line) for line in capsys.readouterr().err.splitlines()]


def speed(say: Announcer) -> tuple:
    return tuple(say.state()[key] for key in ("rate", "seconds_left", "seconds"))


def test_rate_and_time_left_are_those_of_what_was_measured_now(clock):
    say = Announcer(silent=True, clock=clock)
    say("hiding", 100, 140)  # found on disk
    assert speed(say) == (None, None, 0)
    clock.now += 20
    say("hiding", 110, 140)
    assert speed(say) == (0.5, 60, 20)
    clock.now += 115  # a long lot
    assert speed(say) == (0.5, 0, 135)
    say("hiding", 0, 10)  # the other half starts at 0
    clock.now += 10
    say("hiding", 5, 10)
    assert speed(say) == (0.5, 10, 145)
    say("reading", 0)
    clock.now += 4
    say("reading", 8)
    assert speed(say) == (2, None, 4)


def test_a_stage_is_one_of_those_begun_and_those_to_come(clock):
    say, numbers = Announcer(silent=True, clock=clock), []
    for stage in ["loading", ("c", "d"), ("a", "b"), "a", "unplanned", "c", "c", "b", "d"]:  # b comes late
        say.plan(stage) if isinstance(stage, tuple) else say(stage, 0)
        numbers.append((say.state()["stage_number"], say.state()["stages"]))
    assert numbers == [(1, None), (1, 3), (1, 5), (2, 5), (3, 6), (4, 5), (4, 5), (5, 6), (6, 6)]


def test_a_log_has_a_line_a_minute_and_one_at_a_new_stage_and_at_the_end(clock, capsys):
    with Announcer(clock=clock) as say:
        say.plan(["reading", "hiding"])
        clock.now += 9
        say("reading", 3)
        clock.now += 1
        say("hiding", 0, 40)
        clock.now += 59
        say("hiding", 2, 40)
        clock.now += 1
        say("hiding", 2, 40)
        say("the page is there\n", 0)
        clock.now += 3600
    assert lines_of(capsys) == [
        "stage 2 of 2, hiding, 0 of 40, 812 MB",
        "stage 2 of 2, hiding, 2 of 40, 2.0 a minute, 0:01:00 passed, 0:19:00 left, 812 MB",
        "the page is there",
        "done, 1:01:10 passed, 812 MB",
    ]


@pytest.mark.parametrize("silent", [False, True])
def test_what_is_interrupted_has_no_end_and_silence_no_line(silent, clock, capsys):
    def work(say: Announcer) -> None:
        with say:
            clock.now += 60
            say("reading", 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(Announcer(silent=silent, clock=clock))
    assert lines_of(capsys) == ([] if silent else ["stage 1, reading, 812 MB"])
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_every_line_of_a_json_log_is_an_object(clock, capsys):
    with Announcer(as_json=True, clock=clock) as say:
        for done in range(2):
            clock.now += 60
            say("hiding “keys”", done, 4)
        say("shown\n", 0)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(re.fullmatch(r"\d{4}-.*T.*", line.pop("time")) for line in lines)
    stage = {"stage": "hiding “keys”", "stage_number": 1, "stages": None, "total": 4, "memory_mb": 812}
    assert lines == [
        {**stage, "done": 0, "rate": None, "seconds": 0, "seconds_left": None},
        {**stage, "done": 1, "rate": 1 / 60, "seconds": 60, "seconds_left": 180},
        {"message": "shown"},
        {"stage": "done", "seconds": 120, "memory_mb": 812},
    ]


def test_the_timer_speaks_while_nothing_is_reported_and_never_in_a_fork(clock, capfd, monkeypatch):
    event, state = threading.Event(), Announcer.state
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # else some versions warn of forks
    monkeypatch.setattr(progress, "_PAUSE", 0.001)
    monkeypatch.setattr(Announcer, "state", lambda say: (event.set(), state(say))[1])
    with Announcer(clock=clock) as say:
        clock.now += 60
        assert event.wait(30)

        def work() -> None:
            say("elsewhere\n", 0)
            raise SystemExit(progress._LOCK.locked() + threading.active_count() - 1)

        worker = multiprocessing.get_context("fork").Process(target=work)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            worker.start()
        worker.join()
        assert worker.exitcode == 0
    assert lines_of(capfd) == ["stage 0, starting, 0:01:00 passed, 812 MB", "done, 0:01:00 passed, 812 MB"]


@pytest.mark.parametrize("name", ["reading", "position, part-of-speech: reading " * 3, "語" * 60])
def test_a_terminal_has_one_line_of_its_width(name, clock, capsys, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(stderr=stderr, width=80, force_terminal=True))
    with Announcer(clock=clock) as say:
        say.plan([name, *map(str, range(24))])
        say(name, 0, 12_000)
        clock.now += 4000
        say(name, 4000, 12_000)
        say("[b]kept\n", 0)
        say._live.refresh()
    screen = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "[b]kept\n" in screen
    assert re.search(rf"stage 1 of 25: {name[:3]}.*  4,000 of 12,000, 1:06:40 passed, 2:13:20 left", screen)
    assert all(Console().render_str(row, markup=False).cell_len <= 80 for row in re.split(r"[\r\n]", screen))
