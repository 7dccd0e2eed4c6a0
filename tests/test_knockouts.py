"""The effect of a label on its own items: which rows and keys it claims, and planted heads that are needed for them."""

import random
from collections import Counter

import pytest
import torch

from analyses import knockouts
from analyses.claims import (
    antecedent_looks,
    claim_with_control,
    position_looks,
    relation_looks,
    tag_looks,
)
from analyses.windows import Window, windows
from interp import AnnotatedText, InputError, Mention
from models import planted
from models.planted import Planted

WORDS = ("Tim", "saw", "the", "red", "ball", "and", "the", "ball", "hit", "him", ".")
TAGS = ("PROPN", "VERB", "DET", "ADJ", "NOUN", "CCONJ", "DET", "NOUN", "VERB", "PRON", "PUNCT")
HEADS = (1, -1, 4, 4, 1, 8, 7, 8, 1, 8, 1)
RELATIONS = ("nsubj", "root", "det", "amod", "obj", "cc", "det", "nsubj", "conj", "obj", "punct")
CHAINS = (Mention(0, 1, 0, "tim"), Mention(2, 5, 4, "ball"), Mention(6, 8, 7, "ball"), Mention(9, 10, 9, "tim"))


def annotated(document: str = "one") -> AnnotatedText:
    return AnnotatedText(WORDS, (True,) * len(WORDS), document, TAGS, HEADS, RELATIONS, CHAINS)


@pytest.fixture(scope="module")
def window() -> Window:
    tokenizer = Planted([*{*WORDS}], [[planted.uniform]], n_ctx=16, start="<s>").build().tokenizer
    assert tokenizer is not None
    (only,) = windows(annotated(), tokenizer, 16, Counter())
    return only  # column 0 is the start token, word w stands at column w + 1


class TestClaims:
    """Rows and keys, by hand."""

    def test_positions(self, window):
        looks = position_looks(window)
        assert looks["previous-token"] == {row: {row - 1} for row in range(2, 12)}  # never the start token
        assert looks["offset:-3"] == {row: {row - 3} for row in range(4, 12)}
        assert looks["first-token"] == {row: {0} for row in range(1, 12)}
        assert looks["duplicate-token"] == {7: {3}, 8: {5}}  # the second "the" and "ball"

    def test_tags_and_relations(self, window):
        assert tag_looks(window, [("NOUN", "ADJ")]) == {"tag:NOUN->ADJ": {5: {4}, 8: {4}}}
        looks = relation_looks(window, ["nsubj", "det"])
        assert looks["relation:nsubj:head->dependent"] == {2: {1}, 9: {8}}
        assert looks["relation:nsubj:dependent->head"] == {}  # the verb comes later: not visible
        assert looks["relation:det:head->dependent"] == {5: {3}, 8: {7}}

    def test_antecedents(self, window):
        assert antecedent_looks(window) == {"antecedent": {10: {1}}, "antecedent:named": {10: {1}}}

    def test_a_control_has_the_same_rows_and_other_keys_at_about_the_same_distance(self, window):
        looks = {10: {1, 5}, 9: {8}}
        for seed in range(20):
            found = claim_with_control(window, 0, looks, random.Random(seed), at_distance=True)
            assert found is not None
            claim, control = found
            assert torch.equal(claim.queries, control.queries)
            assert claim.keys.sum(1).tolist() == control.keys.sum(1).tolist() == [1, 2]
            assert not (claim.keys & control.keys).any()
            far = control.keys[1].nonzero()[:, 0].tolist()
            assert {(10 - key).bit_length() for key in far} <= {3, 4}  # as 10 - 5 and 10 - 1
            assert not control.keys[:, 0].any()  # never the start token

    def test_rows_that_no_token_follows_are_left_out(self, window):
        assert claim_with_control(window, 0, {11: {1}}, random.Random(0), at_distance=True) is None


def test_the_heads_that_a_copy_needs_are_found_and_no_other():
    """A previous-token head and an induction head behind it; the text is one segment, again and again."""
    words = [f"w{number}" for number in range(20)]
    layers = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]
    model = Planted(words, layers, n_ctx=64, start="<s>").build()
    texts = []
    for number in range(12):
        segment = random.Random(number).sample(words, 7)
        texts.append(AnnotatedText((*segment, *segment, *segment), (True,) * 21, f"document {number}"))
    table = knockouts.measure(model, texts, texts=12)
    effect = table.set_index(["measure", "layer", "head"])["effect"]
    assert effect["previous-token", 0, 0] > 1
    assert table.set_index(["measure", "layer", "head"])["q"]["previous-token", 0, 0] < 0.01
    for layer, head in [(0, 1), (1, 1)]:
        assert abs(effect["previous-token", layer, head]) < 0.05
    assert {*table["behaviour"]} == {"position"}  # nothing else is annotated


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "holds no text"), ([AnnotatedText(("w1",), (True,), "short")], "no row of this corpus is claimed")],
)
def test_bad_input_gets_one_clear_error(texts, message):
    model = Planted(["w1", "w2"], [[planted.uniform]], n_ctx=16, start="<s>").build()
    with pytest.raises(InputError, match=message):
        knockouts.measure(model, texts)
