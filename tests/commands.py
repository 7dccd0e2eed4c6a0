"""What does a command print, and how does it end?"""

from typing import NamedTuple

import pytest

from analyses.cli import app


class Ended(NamedTuple):
    """A command's exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    with pytest.raises(SystemExit) as end:
        app.main([*arguments])
    return Ended(int(end.value.code or 0), *capsys.readouterr())


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The single short line on stderr that refuses a command's arguments."""
    ended = command(capsys, *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("interp: ")
    assert len(ended.err) < 700
    return ended.err.strip()
