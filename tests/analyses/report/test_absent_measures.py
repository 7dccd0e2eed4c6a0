"""A treebank without the dependencies that a report leads with: what never occurs is left out and said."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from commands import command
from pages import page_of
from worded import worded

from analyses import coreference, part_of_speech, position, report, runs
from analyses.corpora import read
from analyses.labels import evidence
from analyses.tables.head_tables import NO_ITEMS
from interp import Transformer
from interp.initialisation import initialise
from models import load

ROWS = ("1\tTim\t_\tPROPN\t_\t_\t2\tdep", "2\tsaw\t_\tVERB\t_\t_\t0\troot", "3\tSue\t_\tPROPN\t_\t_\t2\tconj")
SENTENCE = "".join(f"{row}\t_\t_\n" for row in ROWS)


@pytest.fixture
def treebank(tmp_path) -> Path:
    """A foreign treebank: no det, amod, nsubj or obj, no noun, no adjective; `conj` alone is asked."""
    path = tmp_path / "foreign.conllu"
    path.write_text("".join(f"# newdoc id = d{at}\n{SENTENCE}\n" for at in range(12)))
    return path


@pytest.mark.slow
def test_a_report_of_a_treebank_without_the_usual_dependencies(treebank, tmp_path):
    corpora = [read(treebank), read("tales:4")]  # coreference would be measured on a hundred
    out = report.build(worded(), corpora, tmp_path / "out", probes=False, experiments=False, labels=False)
    facts, shown = json.loads((out / "run.json").read_text()), " ".join(page_of(out).text.split())
    baselines = pd.read_csv(out / "tables/baselines.csv")
    heads = pd.read_csv(out / "tables/heads.csv")
    grammar = heads.loc[heads["behaviour"] == "part-of-speech"]
    assert set(grammar["measure"]) == {"relation:conj:dependent->head", "tag:VERB->PROPN"}
    assert (baselines["n"] > 0).all()
    assert baselines["value"].notna().all()
    absent = facts["measures_without_items"]["part-of-speech"]
    assert "relation:det:head->dependent" in absent
    assert facts["left_out"]["part-of-speech"][NO_ITEMS] == len(absent)
    assert "This text has no item of relation:det:head→dependent, relation:amod:head→dependent" in shown


@pytest.mark.parametrize("name", ["part-of-speech", "coreference"])
def test_the_single_commands(name, treebank, tmp_path, stories, capsys):
    corpora = ["--corpus", str(treebank), "--corpus", "tales:4"]  # the treebank has no chains
    given = [*corpora, "--model", str(stories), "--out", str(tmp_path / "out"), "--no-labels", "--pairs", "4"]
    assert command(capsys, name, *given).code == 0
    assert (tmp_path / "out/report.html").exists()


def test_in_python(treebank):
    model, corpus = worded(), read(treebank)
    assert not position.measure(model, corpus).empty
    assert "relation:det:head->dependent" not in set(part_of_speech.measure(model, corpus)["measure"])
    with pytest.raises(ValueError, match="pronoun with both"):
        coreference.measure(model, corpus)


@pytest.mark.slow
def test_a_report_stands_where_some_effects_were_measured_and_others_had_nothing_to_hide(tmp_path, monkeypatch):
    """A large model reads so few words of a document that no pronoun has a mention before it."""
    default = load("default")
    stack = replace(default.config.last, n_layers=1, n_heads=2, n_kv_heads=None, d_model=32, d_head=16, d_mlp=64)
    model = Transformer(replace(default.config, decoder=stack), default.tokenizer)
    initialise(model, 0)
    monkeypatch.setattr(evidence, "affordable", lambda model, asked: (10, {"position": 8}.get(asked.name, 3)))
    behaviours = ["position", "coreference"]
    report.build(
        model, [read("tales:24")], tmp_path / "out", behaviours=behaviours, exact=True, probes=False, experiments=False
    )
    run = runs.read(tmp_path / "out")
    assert "no row of this corpus is claimed" in run.facts["labels_left_out"]["coreference"]
    effects = run.table("evidence").groupby("behaviour")["effect"].count()
    assert effects["position"] > 0 == effects["coreference"]
