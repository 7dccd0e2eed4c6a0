"""What a command prints, and how it ends."""

from typing import NamedTuple

import pytest

from analyses.cli import app


class Ended(NamedTuple):
    """A command's exit code, its standard output and its standard error."""

    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ended:
    with pytest.raises(SystemExit) as end:
        app.main([*arguments])
    return Ended(int(end.value.code or 0), *capsys.readouterr())


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one short line on stderr with which a command refuses its arguments."""
    ended = command(capsys, *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("interp: ")
    assert len(ended.err) < 700
    return ended.err.strip()
