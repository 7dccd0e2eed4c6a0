"""Accuracy and verdicts, worked out by hand, for models that prefer words and for given answers."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from refusals import refusal
from scored import word_model

from analyses import suites
from analyses.suites.items import Item, Paradigm, Sentence, Suite
from analyses.suites.predictions import Prediction

SHARES = {"the": 0.4, "dog": 0.2, "dogs": 0.1, "runs": 0.2, "run": 0.1}


def paradigm(name: str, *pairs: tuple[str, str], **more: object) -> Paradigm:
    sentences = [{"good": Sentence(good), "bad": Sentence(bad)} for good, bad in pairs]
    return Paradigm(name, tuple(Item(str(number), str(number), each) for number, each in enumerate(sentences)), **more)


def test_the_likelier_sentence_is_the_answer_and_none_is_half():
    pairs = ("the dog runs", "the dogs runs"), ("dogs run", "dog run"), ("the dog", "dog the"), ("dog", "the dog")
    suite = Suite("mine", (paradigm("p", *pairs, field="syntax"),))
    items = suites.measure(word_model(**SHARES), suite, ["dog dog dogs run run runs"] * 3)
    assert items["right"].tolist() == [1, 0, 0.5, 1]
    assert items["length"].tolist() == [0.5, 0.5, 0.5, 1]
    assert items["right_per_token"].tolist() == [1, 0, 0.5, 0]
    assert items["unigram"].tolist() == [1, 0, 0.5, 1]
    assert items["five_gram"].notna().all()
    np.testing.assert_allclose(items["margin"][:2], [np.log(2), -np.log(2)], rtol=1e-5)
    row, field = suites.by_paradigm(items).to_dict("records")
    assert (row["accuracy"], row["n"], row["verdict"]) == (0.625, 4, "not testable")
    assert (field["level"], field["name"], field["accuracy"]) == ("field", "syntax", 0.625)


def test_exchanged_sentences_give_one_less_the_accuracy():
    pairs = ("dog runs", "dogs runs"), ("dogs", "dog"), ("the dog", "dog the"), ("runs", "the runs"), ("runs", "run")
    versions = (Suite("mine", (paradigm("p", *each),)) for each in (pairs, [pair[::-1] for pair in pairs]))
    tables = [suites.measure(word_model(**SHARES), suite, ["dog runs the the dog"]) for suite in versions]
    columns = ["right", "right_per_token", "length", "unigram", "five_gram"]
    pd.testing.assert_frame_equal(tables[0][columns], 1 - tables[1][columns])


def test_critical_words_are_scored_after_what_comes_before_them(tmp_path):
    (tmp_path / "p.csv").write_text("good,bad\nthe {critical:dog} run,the {critical:dogs} runs\n")
    (row,) = suites.measure(word_model(**SHARES), suites.read(tmp_path / "p.csv")).to_dict("records")
    assert (row["right"], row["right_critical"]) == (0.5, 1)
    assert np.isnan(row["five_gram"])  # no text was given


def test_predictions_are_of_regions_in_bits_and_their_claims_are_poles():
    spans = {"1": (0, 3), "2": (4, 4), "3": (4, 8)}
    sentences = {"s": Sentence("the dog", {**spans, "3": (4, 7)}), "p": Sentence("the dogs", spans)}
    formulas = ["[(3;%p%) - (3;%s%) = 1] & [(2;%s%) = 0]", "(*;%s%) > (*;%p%)"]
    item = Item("1", "1", sentences)
    suite = Suite("gym", (Paradigm("gym", (item,), predictions=tuple(map(Prediction.parse, formulas))),))
    items = suites.measure(word_model(**SHARES), suite)
    assert items.loc[items["whole"]].set_index("prediction")["right"].to_dict() == {formulas[0]: 1, formulas[1]: 0}
    assert items.loc[~items["whole"], "pole"].tolist() == ["(3;%p%) - (3;%s%) = 1", "(2;%s%) = 0"]
    assert suites.by_paradigm(items)["accuracy"].tolist() == [0.5, 0.5]
    lost = replace(item, sentences={**sentences, "s": Sentence("the dog", {**spans, "3": (5, 7)})})
    suite = replace(suite, paradigms=(replace(suite.paradigms[0], items=(lost,)),))
    row = suites.by_paradigm(suites.measure(word_model(**SHARES), suite)).iloc[0]
    assert (row["n"], row["missing"]) == (1, 1)  # no token begins in "og"


def answers(rights: Mapping[tuple[str, str], float], n: int = 40, sister: str | None = None, **rivals: float):
    """Items by paradigm and pole, with the given shares right; `rivals` has the rivals' shares."""
    tables = []
    for (name, pole), share in rights.items():
        right = (np.arange(n) < share * n).astype(float)
        facts = {"paradigm": name, "field": "f", "phenomenon": "x", "sister": sister, "pole": pole, "whole": True}
        rival = {each: (np.arange(n)[::-1] < rate * n).astype(float) for each, rate in rivals.items()}
        empty = dict.fromkeys(["right_per_token", "right_critical", "unigram", "five_gram"], np.nan)
        group = [f"{name}{pole}{number}" for number in range(n)]
        tables.append(pd.DataFrame({**facts, **empty, "group": group, "right": right, "length": 0.5, **rival}))
    return pd.concat(tables, ignore_index=True)


VERDICTS = {
    "both poles": (answers({("p", "is"): 0.9, ("p", "are"): 0.8}), "passed", "is 0.90"),
    "one pole alone": (answers({("p", "is"): 0.95, ("p", "are"): 0.1}), "bias", "are 0.10"),
    "one near one half": (answers({("p", "is"): 0.95, ("p", "are"): 0.5}), "not shown", "are 0.50"),
    "a rival": (answers({("p", "is"): 0.9, ("p", "are"): 0.8}, five_gram=0.85), "not shown", "over five-gram +0.00"),
    "one pole": (answers({("p", "is"): 0.9}), "not testable", "nothing in the suite is its other pole"),
    "no poles": (answers({("p", ""): 0.9}), "not testable", "nothing in the suite is its other pole"),
    "few": (answers({("p", "is"): 0.9, ("p", "are"): 0.9}, 7), "not testable", "has 7 of the 8 items it needs"),
    "no sister": (answers({("p", ""): 0.9}, sister="q"), "not testable", "its sister q is not in the suite"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_contrast_is_known_where_both_of_its_poles_are(case):
    items, verdict, says = VERDICTS[case]
    row = suites.by_paradigm(items).iloc[0]
    assert (row["verdict"], says in row["why"]) == (verdict, True), row["why"]


def test_sisters_are_poles_of_each_other():
    items = pd.concat([answers({("p", "x"): 0.9}, sister="q"), answers({("q", "y"): 0.1}, sister="p")])
    table = suites.by_paradigm(items).set_index("name")
    assert table.loc[["p", "q"], "verdict"].tolist() == ["bias", "bias"]
    assert table.loc["p", "why"] == table.loc["q", "why"]


def test_who_prefers_words_passes_nothing():
    """For any shares of words: each sentence that is right with one word is wrong with the other."""
    pairs = ("the dog runs", "the dog run"), ("the dogs run", "the dogs runs")
    parts = [paradigm("singular", *[pairs[0]] * 20, sister="plural"), paradigm("plural", *[pairs[1]] * 20)]
    for shares in (SHARES, SHARES | {"runs": 0.1, "run": 0.2}, SHARES | {"runs": 0.15, "run": 0.15}):
        table = suites.by_paradigm(suites.measure(word_model(**shares), Suite("s", tuple(parts)), ["dogs run the dog"]))
        assert table["verdict"].dropna().isin(["bias", "not shown"]).all()


def test_what_is_no_pair_and_has_no_prediction_is_refused():
    lone = Paradigm("p", (Item("1", "1", {"good": Sentence("the dog")}),))
    assert "expected items with a good and a bad" in refusal(suites.measure, word_model(**SHARES), Suite("s", (lone,)))
