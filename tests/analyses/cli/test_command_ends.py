"""A command that is stopped leaves nothing half done, and one that nobody listens to goes on."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from commands import command, refusal

from analyses.cli import app as cli
from analyses.cli.command_frame import filled, folded, one_line
from analyses.execution import output


def test_a_reader_that_goes_away_ends_nothing(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as nobody, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", nobody)
        with pytest.raises(SystemExit) as end:
            cli.main(["models"])
        assert not end.value.code
        assert sys.stdout is nobody
        print("goes nowhere", file=nobody)  # nor do the lines that follow fail
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["--help"], ["models"], ["models", "--json"]])
def test_a_standard_output_that_is_closed_or_full_is_no_traceback(arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it where the shell closed it
    assert command(capsys, *arguments) == (0, "", "")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert "output takes nothing: No space left on device" in refusal(capsys, *arguments)


def test_a_file_that_a_command_opens_is_not_its_closed_standard_output(tmp_path):
    program = (
        "from analyses.cli.standard_output import unread\n"
        "import os\n"
        "with unread():\n"
        f"    file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "    os.write(1, b'said')\n"
        "    print('said')\n"
    )
    subprocess.run(["sh", "-c", f'exec {shlex.quote(sys.executable)} -c "$1" >&- 2>&-', "sh", program], check=True)
    assert (tmp_path / "file").read_text() == ""


@pytest.fixture
def heeding() -> Iterator[None]:
    """The signals as a terminal gives them: a suite that was started in the background ignores some."""
    stops = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(stop, signal.default_int_handler) for stop in stops]
    yield
    for stop, handler in zip(stops, before, strict=True):
        signal.signal(stop, handler)


@pytest.mark.usefixtures("heeding")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_beside_what_was_there(stop, tmp_path, capsys):
    out, before = tmp_path / "out", signal.getsignal(stop)
    beside = []
    with pytest.raises(typer.Exit) as end, one_line(), output.writing(out):
        os.kill(os.getpid(), beside.extend(tmp_path.iterdir()) or stop)
    assert beside
    assert end.value.exit_code == 128 + stop
    assert [*tmp_path.iterdir()] == []
    assert capsys.readouterr().err == "interp: interrupted; nothing was written\n"
    assert signal.getsignal(stop) == before


def test_names_of_what_was_written_stay_whole():
    name = "report-with-a-name/" * 9 + "of-its-own"
    assert folded(f"wrote {name}/report.html", "beside it run.json") == f"wrote {name}/report.html\nbeside it run.json"
    assert name in filled(f"{'a word ' * 10}{name} and more")
