"""docs/headlines.md: its code runs as it stands, on a run whose tables are known."""

import re
from pathlib import Path

from page_code import blocks
from tiny import LLAMA

from analyses.headlines import example_sentences
from analyses.page.sections import Page
from analyses.report.scaffold import write
from interp import Transformer, TransformerConfig
from tests.analyses.headlines.hand_made_tables import hand_made

PAGE = (Path(__file__).parents[3] / "docs/headlines.md").read_text()


def test_its_code_ranks_the_facts_of_a_run_and_makes_its_headline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = Page("What?", ["short"], [], tables=hand_made())
    write("report", lambda run: page, {"tiny": Transformer(TransformerConfig(decoder=LLAMA))})
    (block,) = blocks("docs/headlines.md", "python")
    exec(compile(block, "docs/headlines.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "carries the choice of was or were needed 0.35 effects: stack decoder, attention self, layer 0, head 1, "
        "behaviour part-of-speech, task agreement, intervention noise",
        "Position is found, syntax in part",
    ]


def test_it_names_the_columns_of_example_sentences_as_they_are():
    named = {*re.findall(r"(?<=`)\w+(?=`)", PAGE.split("`tables/example_sentences` has")[1])}
    assert (
        {"choice", "label", "asks", "seen", "weight", "right", "asked", "read"} <= named <= {*example_sentences.COLUMNS}
    )
