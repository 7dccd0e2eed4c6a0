"""The examples below each command's help are what the command reads, and a shell completes the last word of a line."""

import shlex
from pathlib import Path

import pytest
import typer
from commands import command, refusal

from analyses.cli.app import app
from analyses.cli.options import COMMANDS as DECLARED
from models import recipes

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore
SHIPPED = {path.stem for path in Path(recipes.__file__).parent.glob("*.toml")}


@pytest.mark.parametrize("name", DECLARED)
def test_examples_are_shown_and_read_by_their_command_which_is_quiet_or_tells_a_program(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for given in ("pairs.csv", "treebank.conllu"):
        Path(given).touch()
    for given in ("trained", "DIRECTORY", "FOLDER"):
        Path(given).mkdir()
    COMMANDS[name].main(["--help"], prog_name=f"interp {name}", standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert {"--quiet", "--json"} <= {*shown.split()}
    for line in DECLARED[name]["examples"]:
        assert " ".join(line.split()) in shown
        program, called, *arguments = shlex.split(line)
        assert (program, called) == ("interp", name)
        COMMANDS[name].make_context(name, [*arguments])
        with pytest.raises(Exception, match="No such option"):
            COMMANDS[name].make_context(name, [*arguments, "--no-such-option"])
        prompts = {"--clean", "--corrupt", "--answer", "--wrong"}
        assert name != "patch" or "--pairs" in arguments or prompts <= {*arguments}


def test_every_command_has_examples():
    assert DECLARED.keys() == COMMANDS.keys()


def test_a_suggestion_keeps_its_question_mark_and_no_semicolon(capsys):
    assert refusal(capsys, "inspct").endswith("Did you mean 'inspect'? See interp --help")


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
    given = {"_INTERP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert {*command(capfd).out.split()} == expected
