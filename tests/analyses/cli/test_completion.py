"""What a shell completes: commands, options, and the names that an option knows beside what lies here."""

from pathlib import Path

import pytest
from commands import command

from models import recipes

SHIPPED = {path.stem for path in Path(recipes.__file__).parent.glob("*.toml")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("interp rep", {"report"}),
        ("interp insp", {"inspect"}),
        ("interp report --mo", {"--model"}),
        ("interp report --model d", {"default", "drafts"}),
        ("interp compare default m", {"minilm", "mine"}),
        ("interp report --dtype f", {"float32", "float64"}),
        ("interp report --device c", {"cpu", "cuda"}),
        ("interp train o", {name for name in SHIPPED if name.startswith("o")}),
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
