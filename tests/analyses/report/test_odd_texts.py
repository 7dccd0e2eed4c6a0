"""Honest texts of which little can be measured: what cannot be drawn or measured is left out, and the rest stands."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiny import GPT2, randomise
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from analyses import corpora, report
from analyses.figures.attention_lines import best_heads
from interp import Tokenizer, Transformer, TransformerConfig


def test_no_common_pair_of_kinds_makes_no_scale():
    for pattern in (np.full((2, 2), np.nan), np.zeros((2, 2))):
        drawn = best_heads({"L0.H0": pattern}, title="To which?", queries=["A", "B"], keys=["A", "B"])
        assert drawn.axes[0].collections[0].get_clim() == (0, 0.1)


@pytest.mark.parametrize(
    ("tags", "relations"),
    [
        (("X",), ("case", "obj")),  # nothing that tells kinds of words apart
        (("NOUN", "VERB"), ("subj", "comp")),  # another scheme's relations
    ],
)
def test_a_page_stands_where_no_usual_tag_or_relation_occurs(tmp_path, tags, relations):
    words = [f"w{at}" for at in range(12)]
    lines = []
    for sentence in range(24):
        for at in range(6):
            word = words[(sentence * 5 + at * at) % 12]
            about = tags[at % len(tags)], "_", "_", min(at, 1), relations[at % len(relations)], "_", "_"
            lines.append("\t".join(map(str, [at + 1, word, word, *about])))
        lines.append("")
    (tmp_path / "odd.conllu").write_text("\n".join(lines) + "\n")
    backend = Backend(WordLevel({word: at for at, word in enumerate(["?", *words])}, unk_token="?"))
    backend.pre_tokenizer = WhitespaceSplit()
    config = TransformerConfig(decoder=replace(GPT2, n_layers=1, n_heads=2, d_vocab=13))
    model = Transformer(config, Tokenizer(backend))
    randomise(model)
    texts = corpora.read(tmp_path / "odd.conllu")
    report.build(model, [texts], tmp_path / "out", behaviours=["part-of-speech"], pairs=2, labels=False, probes=False)
    heads = pd.read_csv(tmp_path / "out/tables/heads.csv")
    assert len(heads)
    assert not heads.measure.str.startswith("relation:nsubj").any()
    assert np.isfinite(heads.value).all()
