"""The examples below each command's help are what the command reads."""

import shlex
from pathlib import Path

import pytest
import typer
from commands import command, refusal

from analyses.cli.app import app
from analyses.cli.typed_examples import EXAMPLES

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore
EVERY = [(name, line) for name, lines in EXAMPLES.items() for line in lines]


def test_every_command_has_examples_and_shows_them(capsys):
    assert EXAMPLES.keys() == COMMANDS.keys()
    for name, group in COMMANDS.items():
        group.main(["--help"], prog_name=f"interp {name}", standalone_mode=False)
        shown = " ".join(capsys.readouterr().out.split())
        assert all(" ".join(line.split()) in shown for line in EXAMPLES[name])


@pytest.mark.parametrize(("name", "line"), EVERY)
def test_an_example_is_read_by_its_command(name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("pairs.csv", "treebank.conllu"):
        Path(given).touch()
    for given in ("trained", "DIRECTORY", "FOLDER"):
        Path(given).mkdir()
    program, called, *arguments = shlex.split(line)
    assert (program, called) == ("interp", name)
    COMMANDS[name].make_context(name, [*arguments])
    with pytest.raises(Exception, match="No such option"):
        COMMANDS[name].make_context(name, [*arguments, "--no-such-option"])


@pytest.mark.parametrize("line", EXAMPLES["patch"])
def test_an_example_of_patching_gives_prompts_or_a_file_of_them(line):
    given = {*shlex.split(line)}
    assert {"--clean", "--corrupt", "--answer", "--wrong"} <= given or "--pairs" in given


@pytest.mark.parametrize("line", EXAMPLES["models"])
def test_an_example_that_reads_no_model_runs(line, capsys):
    ended = command(capsys, *shlex.split(line)[1:])
    assert not ended.code
    assert ended.out


def test_a_suggestion_keeps_its_question_mark_and_no_semicolon(capsys):
    assert refusal(capsys, "inspct").endswith("Did you mean 'inspect'? See interp --help")
