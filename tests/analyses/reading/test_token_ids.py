"""Measures that need no words work without a tokenizer, on texts of token ids or on random ids."""

import json

import pandas as pd
import pytest
import torch
from tiny import randomise
from worded import word_level

from analyses import corpora, position, report
from analyses.corpora.in_memory import of_ids, random_ids
from interp import AnnotatedText, InputError, StackConfig, Tokenizer, Transformer, TransformerConfig
from models import wrap

D_VOCAB, N_CTX = 43, 37


WORDS = Tokenizer(word_level(*(f"w{id}" for id in range(D_VOCAB))))


def small_model(tokenizer: Tokenizer | None = None) -> Transformer:
    stack = StackConfig(2, 14, 3, 5, 17, N_CTX, D_VOCAB, causal=True)
    model = Transformer(TransformerConfig(decoder=stack), tokenizer)
    randomise(model)
    return model


def texts(before: str = "") -> list[AnnotatedText]:
    rows = torch.randint(D_VOCAB, (5, 31), generator=torch.Generator().manual_seed(3)).tolist()
    lines = [" ".join(f"{before}{id}" for id in row) for row in rows]
    return [AnnotatedText.plain(line, f"text-{number}") for number, line in enumerate(lines)]


def test_ids_are_measured_as_the_words_that_they_stand_for():
    by_words = position.measure(small_model(WORDS), texts("w"))
    pd.testing.assert_frame_equal(position.measure(small_model(), texts()), by_words, check_exact=True)
    assert {"previous-token", "duplicate-token", "induction", "positional-head"} <= {*by_words["measure"]}


def test_without_a_corpus_ids_are_random_and_the_same_for_everyone():
    model = small_model()
    table = position.measure(model)
    assert table.loc[table["measure"] == "previous-token", "corpus"].unique().tolist() == [random_ids(model).name]
    pd.testing.assert_frame_equal(position.measure(small_model(WORDS)), table, check_exact=True)
    assert model.tokenizer is None
    first, again = (list(random_ids(model, seed)) for seed in (0, 0))
    assert first == again
    assert first != list(random_ids(model, 1))
    assert {len(text.words) for text in first} == {N_CTX}
    assert all(len({*text.words}) <= N_CTX // 2 for text in first)  # so there are copies


@pytest.mark.parametrize("word", ["43", "-1", "1.5", "Tim", "05"])
def test_a_word_that_is_no_id_is_named(word):
    with pytest.raises(InputError) as caught:
        position.measure(small_model(), [AnnotatedText.plain(f"5 {word} 7", "text")])
    assert f'ids from 0 to 42: expected texts like "5 17 3", got {word!r}' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_corpus_of_ids_is_told_from_its_first_text():
    assert of_ids(small_model(), random_ids(small_model()))
    assert not of_ids(small_model(), corpora.read("stories:2"))


@pytest.mark.slow
def test_a_report_without_a_tokenizer_is_about_what_needs_no_words(tmp_path):
    wrapped = wrap(small_model().state_dict(), config=small_model().config)
    texts = [corpora.read("stories:3")]
    report.build(wrapped, texts, tmp_path / "out", labels=False, probes=False, experiments=False)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [(each["name"], each["measured"]) for each in facts["corpora"]] == [(random_ids(wrapped).name, ["position"])]
    heads = pd.read_parquet(tmp_path / "out" / "tables" / "heads.parquet")
    assert {*heads["behaviour"]} == {"position"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The model has no tokenizer, so it read token ids" in page
    with pytest.raises(InputError, match="no tokenizer, and coreference is about words"):
        report.build(wrapped, texts, tmp_path / "none", behaviours=["coreference"])
    assert not (tmp_path / "none").exists()
