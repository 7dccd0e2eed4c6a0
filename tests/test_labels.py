"""Labels on planted heads: chosen on one half of the documents, reported on the other."""

import random

import pandas as pd
import pytest

from analyses import labels
from analyses.labels import Half, label
from interp import AnnotatedText, InputError
from interp.patterns import group_of
from models import planted
from models.planted import Planted

WORDS = [f"w{number}" for number in range(40)]


def repeating_texts(count: int) -> list[AnnotatedText]:
    texts = []
    for number in range(count):
        segment = random.Random(number).sample(WORDS, 9)
        texts.append(AnnotatedText((*segment, *segment, *segment), (True,) * 27, f"document {number}"))
    return texts


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    """A previous-token head that an induction head needs, an offset head that nothing reads, and two uniform ones."""
    layers = [
        [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform],
        [planted.induction(10.0), planted.uniform, planted.first_token],
    ]
    model = Planted(WORDS, layers, n_ctx=110, start="<s>").build()
    return label(model, {"position": repeating_texts(40)}, texts=20)


def evidence(table: pd.DataFrame, layer: int, head: int) -> dict[str, str]:
    rows = table[(table["layer"] == layer) & (table["head"] == head)]
    return dict(zip(rows["label"], rows["evidence"], strict=True))


def test_heads_that_attend_and_are_needed_have_both_kinds_of_evidence(found):
    assert evidence(found, 0, 0)["previous-token"] == "both"
    assert evidence(found, 1, 0)["induction"] == "both"
    rows = found[found["evidence"] == "both"]
    assert (rows["gain_low"] > 0).all()
    assert (rows["q"] < 0.05).all()
    assert (rows["effect"] > 0).all()


def test_heads_that_nothing_reads_attend_without_effect(found):
    assert evidence(found, 0, 1) == {"offset:-3": "attention"}
    assert evidence(found, 1, 2)["first-token"] == "attention"


def test_uniform_heads_have_no_label(found):
    assert evidence(found, 0, 2) == {}
    assert evidence(found, 1, 1) == {}


def test_the_halves_share_no_document_and_lose_none():
    texts = repeating_texts(30)
    halves = [[text.document for text in Half(texts, which)] for which in (0, 1)]
    assert not {*halves[0]} & {*halves[1]}
    assert sorted([*halves[0], *halves[1]]) == sorted(text.document for text in texts)
    assert all(group_of(name) % 2 == 1 for name in halves[1])
    assert len([*Half(texts, 0, most=3)]) == 3


def test_what_cannot_be_labelled_is_said_and_an_unknown_behaviour_refused():
    model = Planted(WORDS, [[planted.uniform]], n_ctx=32, start="<s>").build()
    table = label(model, {"coreference": repeating_texts(6)}, texts=3)
    assert table.empty
    assert list(table.columns) == labels.LABEL_COLUMNS
    assert "no pronoun" in table.attrs["left_out"]["coreference"]
    with pytest.raises(InputError, match="no behaviour colour"):
        label(model, {"colour": repeating_texts(2)})
