"""How do commands start and end? Errors are one line, nothing stays half done; also help and JSON."""

import json
import os
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
import tiny
import typer
from commands import command, refusal

from analyses.cli import COLUMNS
from analyses.cli import app as cli
from analyses.cli import command_frame as frame
from analyses.cli.command_frame import COMMANDS as DECLARED
from analyses.cli.command_frame import filled, folded, one_line
from analyses.execution import output
from interp.errors import InputWarning
from models import recipes, save
from tests.analyses.headlines.hand_made_tables import head_at, write_run

# Commands that are stopped, or whose output nobody reads.


def test_a_reader_that_goes_away_ends_nothing(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as nobody, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", nobody)
        with pytest.raises(SystemExit) as end:
            cli.main(["models"])
        assert not end.value.code
        assert sys.stdout is nobody
        print("goes nowhere", file=nobody)  # later lines do not fail either
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["--help"], ["models"], ["models", "--json"]])
def test_a_standard_output_that_is_closed_or_full_is_no_traceback(arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as in Python if the shell closed it
    assert command(capsys, *arguments) == (0, "", "")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert "output takes nothing: No space left on device" in refusal(capsys, *arguments)


def test_a_file_that_a_command_opens_is_not_its_closed_standard_output(tmp_path):
    program = f"""import os
from analyses.cli.app import unread
with unread():
    file = open({str(tmp_path / "file")!r}, 'w')
    os.write(1, b'said')
    print('said')
"""
    subprocess.run(["sh", "-c", f'exec {shlex.quote(sys.executable)} -c "$1" >&- 2>&-', "sh", program], check=True)
    assert (tmp_path / "file").read_text() == ""


@pytest.fixture
def heeding() -> Iterator[None]:
    """Signals as from a terminal; a test suite in the background would ignore some."""
    stops = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.signal(stop, signal.default_int_handler) for stop in stops]
    yield
    for stop, handler in zip(stops, before, strict=True):
        signal.signal(stop, handler)


@pytest.mark.usefixtures("heeding")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_beside_what_was_there(stop, tmp_path, capsys):
    out, before = tmp_path / "out", signal.getsignal(stop)
    files = []
    with pytest.raises(typer.Exit) as end, one_line(), output.writing(out):
        os.kill(os.getpid(), files.extend(tmp_path.iterdir()) or stop)
    assert files
    assert end.value.exit_code == 128 + stop
    assert [*tmp_path.iterdir()] == []
    assert capsys.readouterr().err == "interp: interrupted; nothing was written\n"
    assert signal.getsignal(stop) == before


def test_names_of_what_was_written_stay_whole():
    name = "report-with-a-name/" * 9 + "of-its-own"
    assert folded(f"wrote {name}/report.html", "beside it run.json") == f"wrote {name}/report.html\nbeside it run.json"
    assert name in filled(f"{'a word ' * 10}{name} and more")


# Arguments that make no sense.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("generate x --seed -1", "Invalid value for '--seed': "),
        (["patch", "--seed", "9" * 5_000], "'--seed'"),
        ("report --pairs 999999999", "Invalid value for '--pairs': "),
        (["report", "--corpus", "x" * 300, "--out", "never"], "File name too long"),
        (["generate", "x\udcff"], "expected arguments in UTF-8, got 'x\\udcff': type it in UTF-8"),
        ("generate x --dtype half", "'--dtype': 'half' is not one of"),
        (["x" * 10_000], "(10,0"),
        ("generate x --top-k 3", "--top-k limit random draws, but --temperature 0 draws nothing"),
        ("position --exact", "--exact applies to labels: add --labels"),
        (["patch", "--position", "A=1", "--whole-prompts"], "--position names what --by-position patches"),
        (["report", "--out", ""], "'--out': expected the name of a file or directory, got ''"),
        (["position", "--corpus", "", "--out", "never"], 'no file or directory ""'),
        ("view x --out /proc/version/x.html", "/proc/version is a file: expected a directory above x.html; choose"),
    ],
)
def test_it_ends_in_a_short_line(arguments, expected, capsys):
    assert expected in refusal(capsys, *(arguments.split(" ") if isinstance(arguments, str) else arguments))


class PanicException(BaseException):
    """The exception of such a library."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(5, "Input/output error", "/a/file"), "interp: /a/file: the system refused: Input/output error"),
        (OSError(28, "No space left on device"), "interp: the system refused: No space left on device"),
        (RecursionError("too deep"), "interp: something that was read is nested too deep (too deep)"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"), "interp: expected text that UTF-8 can hold"),
        (MemoryError(), "interp: not enough memory"),
        (PanicException("index 3"), "interp: the tokenizers' library failed: index 3"),
        (OSError(5, "x" * 10_000), "interp: the system refused: xxx"),
    ],
)
def test_what_no_reader_foresaw_is_a_line_too(error, expected, capsys):
    with pytest.raises(typer.Exit) as ended, frame.one_line():
        raise error
    message = capsys.readouterr().err
    assert ended.value.exit_code == frame.USAGE
    assert message.startswith(expected)
    assert message.count("\n") == 1
    assert len(message) < 400


def test_a_mistake_of_ours_keeps_its_traceback():
    with pytest.raises(KeyError), frame.one_line():
        raise KeyError("ours")


def test_what_is_probably_not_meant_is_a_line_too(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with frame.one_line():
            warnings.warn('no directory "my/modle"', InputWarning, stacklevel=1)
    assert capsys.readouterr().err == 'interp: no directory "my/modle"\n'


# `--quiet` and `--json`.


@pytest.fixture(scope="module")
def paths(position_report, tmp_path_factory) -> dict[str, str]:
    """A run with a table of heads, and a model that reads token ids."""
    folder = tmp_path_factory.mktemp("given")
    write_run(folder / "run", rows=[head_at(0, 0) | {"effect": 0.5}])
    copytree(position_report, folder / "report")
    save(tiny.model("gpt2"), folder / "ids")
    return {each.upper(): str(folder / each) for each in ("run", "report", "ids")}


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("inspect RUN L0.H0", {"name", "facts", "tables"}),
        ("figures REPORT position-heads --width 9 --out drawn", {"out", "files", "left_out"}),
        ("view Hello --out view.html", {"out", "begins_at"}),
        ("generate Hello --tokens 2", {"prompt", "written"}),
        ("models", {"families", "shipped", "cached"}),
    ],
)
def test_what_is_asked_quietly_says_nothing_and_as_json_an_object(line, keys, paths, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [paths.get(word, word) for word in line.split()]
    assert command(capsys, *arguments, "--quiet") == (0, "", "")
    record = json.loads(command(capsys, *arguments, "--json", "--quiet")[1])
    assert keys <= record.keys()
    if "files" in record:
        assert {*record["files"]} == {path.name for path in (tmp_path / "drawn").iterdir()}
    if "written" in record:
        assert f"{record['prompt']}{record['written']}\n" == command(capsys, *arguments)[1]


@pytest.mark.parametrize("line", ["inspect RUN L9.H0", "figures RUN", "generate x --model ./no"])
def test_what_is_wrong_is_said_quietly_too(line, paths, capsys):
    code, out, wrong = command(capsys, *(paths.get(word, word) for word in line.split()), "--quiet", "--json")
    assert (code, out, wrong.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ((), "tales:100:1"),
        (("default",), "tales:100:1"),
        (("textbook",), "new-sentences:200:1"),
        (("textbook", "default"), "tales:100:1"),
    ],
)
def test_the_textbook_model_reads_what_it_is_tested_on(models, name):
    assert [each.name for each in frame.corpora(None, *models)] == [name]
    assert [each.name for each in frame.corpora(["stories:3"], *models)] == ["stories:3:1"]


# Examples and completion.


COMMANDS = typer.main.get_command(cli.app).commands  # pyright: ignore
SHIPPED = {path.stem for path in Path(recipes.__file__).parent.glob("*.toml")}


@pytest.mark.parametrize("name", DECLARED)
def test_examples_are_shown_and_read_by_their_command_which_is_quiet_or_tells_a_program(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for path in ("pairs.csv", "treebank.conllu"):
        Path(path).touch()
    for path in ("trained", "DIRECTORY", "FOLDER"):
        Path(path).mkdir()
    COMMANDS[name].main(["--help"], prog_name=f"interp {name}", standalone_mode=False)
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= COLUMNS
    page = " ".join(page.replace(" \\\n", " ").split())
    assert {"--quiet", "--json"} <= {*page.split()}
    for line in DECLARED[name]["examples"]:
        assert " ".join(line.split()) in page
        program, called, *arguments = shlex.split(line)
        assert (program, called) == ("interp", name)
        COMMANDS[name].make_context(name, [*arguments])
        with pytest.raises(Exception, match="No such option"):
            COMMANDS[name].make_context(name, [*arguments, "--no-such-option"])
        prompts = {"--clean", "--corrupt", "--answer", "--wrong"}
        assert name != "patch" or "--pairs" in arguments or prompts <= {*arguments}


def test_every_command_has_examples_and_a_suggestion_keeps_its_question_mark(capsys):
    assert DECLARED.keys() == COMMANDS.keys()
    assert refusal(capsys, "inspct").endswith("Did you mean 'inspect'? See interp --help")
    assert refusal(capsys, "suite").endswith("Missing argument 'SUITES...'; see interp suite --help")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("interp insp", {"inspect"}),
        ("interp report --mo", {"--model"}),
        ("interp report --model d", {"default", "drafts"}),
        ("interp report --dtype f", {"float32", "float64"}),
        ("interp train ", {*SHIPPED, "drafts", "mine"}),
    ],
)
def test_the_last_word_is_completed(line, expected, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    for folder in ("drafts", "mine"):
        (tmp_path / folder).mkdir()
    variables = {"_INTERP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert {*command(capfd).out.split()} == expected
