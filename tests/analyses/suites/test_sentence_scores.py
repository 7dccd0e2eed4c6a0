"""Probabilities of sentences: set by hand, against a plain loop, and against `transformers`."""

import math

import numpy as np
import pytest
import torch
from refusals import refusal
from scored import word_model
from tiny import model as tiny_model
from tiny import randomise, two_stacks
from worded import worded

from analyses.execution import lots
from analyses.suites import score_sentences, sentence_scores
from interp import run
from models import load

SHARES = {"a": 0.5, "b": 0.25, "c": 0.25}


def test_a_sentence_is_as_likely_as_its_words_are():
    table = score_sentences(word_model(**SHARES), ["a b", "b", "a b"])
    assert table["text"].tolist() == ["a b", "b", "a b"]
    np.testing.assert_allclose(table["log_probability"], np.log([1 / 8, 1 / 4, 1 / 8]), rtol=1e-6)
    assert table["tokens"].tolist() == [2, 1, 2]
    np.testing.assert_allclose(table["per_token"], table["log_probability"] / [2, 1, 2])


def test_the_first_token_has_no_probability_where_nothing_comes_before_it():
    table = score_sentences(word_model(start=False, **SHARES), ["a b b", "b"])
    np.testing.assert_allclose(table["log_probability"], [math.log(1 / 16), 0], rtol=1e-6)
    assert table["tokens"].tolist() == [2, 0]
    assert np.isnan(table["per_token"][1])


def test_a_masked_word_is_foretold_from_all_others():
    model = word_model(causal=False, **SHARES)
    randomise(model)
    texts = ["a b c a", "c", "b a"]
    expected = []
    for text in texts:
        ids = model.tokenizer.encode(text)
        log_probability = 0.0
        for place in range(1, len(ids)):
            hidden = torch.tensor([[*ids[:place], model.tokenizer.mask_id, *ids[place + 1 :]]])
            log_probability += float(run(model, hidden).logits[0, place].log_softmax(-1)[ids[place]])
        expected.append(log_probability)
    np.testing.assert_allclose(score_sentences(model, texts)["log_probability"], expected, rtol=1e-5)


def test_no_sentence_depends_on_those_beside_it(monkeypatch, tmp_path):
    model, texts = worded(), ["Tim saw", "the dog saw Tim because the dog", "Sue saw", "the", "because He saw the dog"]
    alone = [float(score_sentences(model, [text])["log_probability"].iloc[0]) for text in texts]
    monkeypatch.setattr(sentence_scores, "LOT", 2)
    counts = []
    for _ in range(2):  # the second time from stored results
        with lots.using(lots.Setting(shards := lots.Shards(tmp_path, "x"))):
            np.testing.assert_allclose(score_sentences(model, texts)["log_probability"], alone, rtol=1e-6)
        counts.append(shards.counts)
    assert counts == [{"read": 0, "written": 3}, {"read": 3, "written": 0}]


def test_what_has_no_probability_is_refused():
    assert "this model has both" in refusal(score_sentences, two_stacks("modern"), ["a"])
    assert "one without tokenizer" in refusal(score_sentences, tiny_model("gpt2"), ["a"])
    assert "one without output layer" in refusal(score_sentences, tiny_model("gpt2", output="none"), ["a"])
    assert "got '', which has no token" in refusal(score_sentences, worded(), ["Tim", ""])
    encoder = word_model(causal=False, a=0.5, b=0.5)
    encoder.tokenizer.__dict__["mask_id"] = None  # a cached property
    assert "no token that hides a word" in refusal(score_sentences, encoder, ["a"])


def test_every_sentence_is_scored_as_by_transformers(stories):
    transformers = pytest.importorskip("transformers", reason="parity is with transformers, which is not installed")
    texts = ["Tim saw a dog.", "Tim saw a dogs.", "Who did the girl see?", "The keys to the big red box are lost."]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(stories).double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(stories)
    expected = []
    for text in texts:
        ids = torch.tensor([tokenizer(text).input_ids])
        with torch.no_grad():
            log_probabilities = theirs(ids).logits[0, :-1].log_softmax(-1)
        expected.append(float(log_probabilities.gather(-1, ids[0, 1:, None]).sum()))
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        scores = score_sentences(load(stories, dtype=dtype), texts)["log_probability"]
        np.testing.assert_allclose(scores, expected, atol=tolerance, rtol=0)
