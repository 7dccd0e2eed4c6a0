"""`--quiet` says nothing but what is wrong, and `--json` an object for another program: of every command alike."""

import json
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest
import tiny
import typer
from commands import command as typed

from analyses.cli.app import app
from analyses.page.sections import Page
from analyses.report.scaffold import write
from models import save

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_both_and_says_what_they_mean(name):
    helps = {each.name: each.help for each in COMMANDS[name].params if isinstance(each, typer.core.TyperOption)}
    assert helps["quiet"] == "Say nothing but what is wrong."
    assert "JSON" in helps["json"]


@pytest.fixture(scope="module")
def given(position_report, tmp_path_factory) -> dict[str, str]:
    """A run with a table of heads, and a model that reads token ids."""
    folder = tmp_path_factory.mktemp("given")
    row = {"stack": "decoder", "attention": "self", "layer": 0, "head": 0, "effect": 0.5}
    page = Page("What?", ["short"], [], tables={"rows": pd.DataFrame([row])})
    write(folder / "run", lambda run: page, {"tiny": tiny.model("gpt2")}, seed=0, command="interp x")
    copytree(position_report, folder / "report")
    save(tiny.model("gpt2"), folder / "ids")
    return {each.upper(): str(folder / each) for each in ("run", "report", "ids")}


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("inspect RUN L0.H0", {"name", "facts", "tables"}),
        ("figures REPORT position-heads --width 9", {"out", "files", "left_out"}),
        ("view Hello --out view.html", {"out", "begins_at"}),
        ("generate Hello --tokens 2", {"prompt", "written"}),
        ("models", {"families", "shipped", "cached"}),
    ],
)
def test_what_is_asked_quietly_says_nothing_and_as_json_an_object(line, keys, given, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = [given.get(word, word) for word in line.split()]
    assert typed(capsys, *asked, "--quiet") == (0, "", "")
    code, said, _ = typed(capsys, *asked, "--json")
    assert code == 0
    assert keys <= json.loads(said).keys()
    assert json.loads(typed(capsys, *asked, "--json", "--quiet")[1]) == json.loads(said)


def test_what_is_wrong_is_said_quietly_too(capsys, tmp_path):
    for asked in (
        ["inspect", str(tmp_path), "L0.H0"],
        ["figures", str(tmp_path)],
        ["generate", "x", "--model", "./no"],
    ):
        code, said, wrong = typed(capsys, *asked, "--quiet", "--json")
        assert (code, said, wrong.count("\n")) == (2, "", 1)


def test_what_is_written_stands_apart_from_what_was_given(capsys):
    whole = typed(capsys, "generate", "The old lady", "--tokens", "5")[1]
    found = json.loads(typed(capsys, "generate", "The old lady", "--tokens", "5", "--json")[1])
    assert f"{found['prompt']}{found['written']}\n" == whole


def test_figures_are_named_with_their_captions_and_where_they_lie(given, capsys, tmp_path):
    out = tmp_path / "out"
    asked = "figures", given["REPORT"], "position-heads", "--width", "9", "--out", str(out)
    found = json.loads(typed(capsys, *asked, "--json")[1])
    assert found["out"] == str(out)
    assert {*found["files"]} == {path.name for path in Path(out).iterdir()}
