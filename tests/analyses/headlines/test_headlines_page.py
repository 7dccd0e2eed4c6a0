"""docs/headlines.md: its code runs as it stands, on a run whose tables are known."""

from page_code import blocks
from tiny import LLAMA

from analyses.page.sections import Page
from analyses.report.scaffold import write
from interp import Transformer, TransformerConfig
from tests.analyses.headlines.hand_made_tables import hand_made


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
