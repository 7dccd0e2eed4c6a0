"""Valid texts with little to measure: what cannot be measured or drawn is left out, and the rest stays."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from commands import command
from pages import page_of
from tiny import GPT2, randomise
from worded import word_level, worded

from analyses import coreference, report, runs
from analyses.corpora import read
from analyses.figures.single_heads import best_heads
from analyses.labels import evidence
from analyses.measures.head_tables import NO_ITEMS
from interp import Tokenizer, Transformer, TransformerConfig
from models import load
from models.initialisation import initialise


def test_no_common_pair_of_kinds_makes_no_scale():
    for pattern in (np.full((2, 2), np.nan), np.zeros((2, 2))):
        figure = best_heads({"L0.H0": pattern}, title="To which?", queries=["A", "B"], keys=["A", "B"])
        assert figure.axes[0].collections[0].get_clim() == (0, 0.1)


def test_a_page_stands_where_no_tag_tells_kinds_of_words_apart(tmp_path):
    words = [f"w{number}" for number in range(12)]
    lines = ""
    for sentence in range(24):
        for index in range(6):
            word = words[(sentence * 5 + index * index) % 12]
            lines += f"{index + 1}\t{word}\t_\tX\t_\t_\t{min(index, 1)}\t{('case', 'obj')[index % 2]}\t_\t_\n"
        lines += "\n"
    (tmp_path / "odd.conllu").write_text(lines)
    config = TransformerConfig(decoder=replace(GPT2, n_layers=1, n_heads=2, d_vocab=13))
    model = Transformer(config, Tokenizer(word_level("?", *words)))
    randomise(model)
    texts = read(tmp_path / "odd.conllu")
    report.build(model, [texts], tmp_path / "out", behaviours=["part-of-speech"], pairs=2, labels=False, probes=False)
    heads = pd.read_csv(tmp_path / "out/tables/heads.csv")
    assert len(heads)
    assert not heads.measure.str.startswith("relation:nsubj").any()
    assert np.isfinite(heads.value).all()


ROWS = ("1\tTim\t_\tPROPN\t_\t_\t2\tdep", "2\tsaw\t_\tVERB\t_\t_\t0\troot", "3\tSue\t_\tPROPN\t_\t_\t2\tconj")
SENTENCE = "".join(f"{row}\t_\t_\n" for row in ROWS)


@pytest.mark.parametrize("name", ["part-of-speech", "coreference"])
def test_the_single_commands_leave_out_and_say_what_never_occurs(name, tmp_path, stories, capsys):
    """A foreign treebank without det, amod, nsubj, obj, nouns and adjectives; only `conj` is measured."""
    treebank = tmp_path / "foreign.conllu"
    treebank.write_text("".join(f"# newdoc id = d{number}\n{SENTENCE}\n" for number in range(12)))
    corpora = ["--corpus", str(treebank), "--corpus", "tales:4"]  # the treebank lacks chains
    options = [*corpora, "--model", str(stories), "--out", str(tmp_path / "out"), "--no-labels", "--pairs", "4"]
    assert command(capsys, name, *options).code == 0
    run, text = runs.read(tmp_path / "out"), " ".join(page_of(tmp_path / "out").text.split())
    if name == "part-of-speech":
        assert run.table("baselines")["value"].notna().all()
        assert {*run.table("heads")["measure"]} == {"relation:conj:dependent->head", "tag:VERB->PROPN"}
        absent = run.facts["measures_without_items"]["part-of-speech"]
        assert run.facts["left_out"]["part-of-speech"][NO_ITEMS] == len(absent)
        assert "This text has no item of relation:det:head→dependent, relation:amod:head→dependent" in text
    else:
        with pytest.raises(ValueError, match="pronoun with both"):
            coreference.measure(worded(), read(treebank))


@pytest.mark.slow
def test_a_report_stands_where_some_effects_were_measured_and_others_had_nothing_to_hide(tmp_path, monkeypatch):
    """A large model reads so few words of a document that no pronoun has a mention before it."""
    default = load("default")
    stack = replace(default.config.last, n_layers=1, n_heads=2, n_kv_heads=None, d_model=32, d_head=16, d_mlp=64)
    model = Transformer(replace(default.config, decoder=stack), default.tokenizer)
    initialise(model, 0)
    monkeypatch.setattr(evidence, "affordable", lambda model, behaviour: (10, {"position": 8}.get(behaviour.name, 3)))
    behaviours = ["position", "coreference"]
    report.build(
        model, [read("tales:24")], tmp_path / "out", behaviours=behaviours, exact=True, probes=False, experiments=False
    )
    run = runs.read(tmp_path / "out")
    assert "no measure claims a row of this corpus" in run.facts["labels_left_out"]["coreference"]
    effects = run.table("evidence").groupby("behaviour")["effect"].count()
    assert effects["position"] > 0 == effects["coreference"]
