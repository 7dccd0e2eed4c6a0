"""`--quiet` says nothing but what is wrong, and `--json` an object for another program: of every command alike."""

import json
from shutil import copytree

import pandas as pd
import pytest
import tiny
from commands import command as typed

from analyses.page.sections import Page
from analyses.report.scaffold import write
from models import save


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
        ("figures REPORT position-heads --width 9 --out drawn", {"out", "files", "left_out"}),
        ("view Hello --out view.html", {"out", "begins_at"}),
        ("generate Hello --tokens 2", {"prompt", "written"}),
        ("models", {"families", "shipped", "cached"}),
    ],
)
def test_what_is_asked_quietly_says_nothing_and_as_json_an_object(line, keys, given, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = [given.get(word, word) for word in line.split()]
    assert typed(capsys, *asked, "--quiet") == (0, "", "")
    found = json.loads(typed(capsys, *asked, "--json", "--quiet")[1])
    assert keys <= found.keys()
    if "files" in found:
        assert {*found["files"]} == {path.name for path in (tmp_path / "drawn").iterdir()}
    if "written" in found:
        assert f"{found['prompt']}{found['written']}\n" == typed(capsys, *asked)[1]


@pytest.mark.parametrize("line", ["inspect RUN L9.H0", "figures RUN", "generate x --model ./no"])
def test_what_is_wrong_is_said_quietly_too(line, given, capsys):
    code, said, wrong = typed(capsys, *(given.get(word, word) for word in line.split()), "--quiet", "--json")
    assert (code, said, wrong.count("\n")) == (2, "", 1)
