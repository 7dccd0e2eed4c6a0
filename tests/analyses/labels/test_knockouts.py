"""The effect of a label on its own items: which rows and keys it claims, and planted heads that are needed for them."""

import random
from collections import Counter

import pandas as pd
import pytest

from analyses.behaviours import OURS
from analyses.labels import knockouts, tally
from analyses.labels.claims import (
    Hiding,
    at_usual_distances,
    distances,
    with_control,
)
from analyses.measures import Looks
from analyses.reading.windows import Window, windows
from interp import AnnotatedText, InputError, Mention
from interp.patterns.positional import measures
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


def controlled(
    window: Window, looks: dict[int, set[int]], seed: int = 0, **options: bool
) -> tuple[Hiding, Hiding] | None:
    choices = {"causal": True, "at_distance": True} | options
    return with_control(window, looks, window.content, random.Random(seed), counts=Counter(), **choices)


def looks_of(behaviour: str, window: Window, *, causal: bool = True) -> dict[str, Looks]:
    """What the measures of a behaviour claim and hide."""
    asked = OURS[behaviour].asked(causal=causal)
    return {each.name: each.looks(window) for each in asked if each.points and each.hidden and not each.corpus}


class TestClaims:
    """Rows and keys, by hand."""

    def test_positions(self, window):
        looks = looks_of("position", window, causal=True)
        assert looks["previous-token"] == {row: {row - 1} for row in range(2, 12)}  # never the start token
        assert looks["offset:-3"] == {row: {row - 3} for row in range(4, 12)}
        assert looks["first-token"] == {row: {0} for row in range(1, 12)}
        assert looks["duplicate-token"] == {7: {3}, 8: {5}}  # the second "the" and "ball"
        assert "next-token" not in looks

    def test_positions_that_only_an_encoder_sees(self, window):
        looks = looks_of("position", window, causal=False)
        assert looks["next-token"] == {row: {row + 1} for row in range(1, 11)}
        assert looks["offset:3"] == {row: {row + 3} for row in range(1, 9)}
        assert looks["duplicate-token"] == {7: {3}, 8: {5}}  # earlier copies, as the measure has it

    def test_every_positional_measure_but_those_without_a_key_of_their_own_is_claimed(self, window):
        for causal in (True, False):
            assert {*looks_of("position", window, causal=causal)} == {*measures(causal)} - {
                "self",
                "distance",
                "entropy",
            }

    def test_tags_and_relations(self, window):
        assert looks_of("part-of-speech", window)["tag:NOUN->ADJ"] == {5: {4}, 8: {4}}
        looks = looks_of("part-of-speech", window)
        assert looks["relation:nsubj:head->dependent"] == {2: {1}, 9: {8}}
        assert looks["relation:nsubj:dependent->head"] == {1: {2}, 8: {9}}
        assert looks["relation:det:head->dependent"] == {5: {3}, 8: {7}}

    def test_a_decoder_is_not_asked_for_keys_that_it_does_not_see(self, window):
        ahead = looks_of("part-of-speech", window)["relation:nsubj:dependent->head"]
        assert controlled(window, ahead) is None
        found = controlled(window, ahead, causal=False)
        assert found is not None
        assert (found[0].rows, found[0].keys) == ((1, 8), ({2}, {9}))

    def test_antecedents(self, window):
        here, before = {10: {1}}, {9: {1}}
        assert looks_of("coreference", window) == {
            **dict.fromkeys(("antecedent", "antecedent:named"), here),
            **dict.fromkeys(("antecedent-predicting", "antecedent-predicting:named"), before),
        }

    def test_a_control_has_as_many_other_keys_at_about_the_same_distance(self, window):
        for seed in range(20):
            found = controlled(window, {10: {1, 5}, 9: {8}}, seed)
            assert found is not None
            claim, others = found
            assert claim.rows == others.rows == (9, 10)
            assert [*map(len, claim.keys)] == [*map(len, others.keys)] == [1, 2]
            assert not any(own & other for own, other in zip(claim.keys, others.keys, strict=True))
            assert {(10 - key).bit_length() for key in others.keys[1]} <= {3, 4}  # as 10 - 5 and 10 - 1
            assert 0 not in others.keys[1]  # never the start token

    def test_controls_of_an_encoder_lie_on_either_side(self, window):
        drawn = {
            key
            for seed in range(40)
            if (found := controlled(window, {6: {4}}, seed, causal=False))
            for key in found[1].keys[0]
        }
        assert drawn == {3, 8, 9}  # 2 and 3 away, as 4 is

    def test_positional_controls_stand_anywhere(self, window):
        drawn = {
            key
            for seed in range(200)
            if (found := controlled(window, {8: {7}}, seed, at_distance=False))
            for key in found[1].keys[0]
        }
        assert drawn == {1, 2, 3, 4, 5, 6, 8}

    def test_keys_at_usual_distances_are_drawn_from_those_of_the_label_and_seen_by_the_row(self, window):
        usual = distances({10: {7, 5}, 9: {8}, 4: {6}}, causal=True)
        assert usual == [{-1}, {-3, -5}]  # a decoder does not see column 6 from column 4
        assert distances({4: {6}}, causal=False) == [{2}]
        claim = Hiding((4, 9), (frozenset({2}), frozenset({8})))
        drawn = Counter()
        for seed in range(200):
            found = at_usual_distances(window, claim, usual, random.Random(seed), causal=True)
            assert found.rows == claim.rows
            drawn.update(zip(found.rows, found.keys, strict=True))
        assert {*drawn} == {(4, frozenset({3})), (4, frozenset({1})), (9, frozenset({8})), (9, frozenset({6, 4}))}
        assert min(drawn.values()) > 60  # 4 - 5 is outside and left out

    def test_a_row_that_no_usual_distance_fits_keeps_its_own_keys(self, window):
        claim = Hiding((2,), (frozenset({1}),))
        assert at_usual_distances(window, claim, [frozenset({-7})], random.Random(0), causal=True) == claim

    def test_what_cannot_be_read_or_hidden_is_counted(self, window):
        counts: Counter[str] = Counter()
        looks = {11: {1}, 1: {0, 1}}
        found = with_control(window, looks, {1}, random.Random(0), causal=True, at_distance=True, counts=counts)
        assert found is None
        assert counts == {"rows left out: nothing to read there": 1, "rows left out: no other key to hide": 1}


def test_the_heads_that_a_copy_needs_are_found_and_no_other():
    """A previous-token head and an induction head behind it; the text is one segment, again and again."""
    words = [f"w{number}" for number in range(20)]
    layers = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]
    model = Planted(words, layers, n_ctx=64, start="<s>").build()
    texts = []
    for number in range(12):
        segment = random.Random(number).sample(words, 7)
        texts.append(AnnotatedText((*segment, *segment, *segment), (True,) * 21, f"document {number}"))
    found = knockouts.measure(model, texts, texts=12)
    table = found.table
    effect = table.set_index(["measure", "layer", "head"])["effect"]
    assert effect["previous-token", 0, 0] > 1
    assert table.set_index(["measure", "layer", "head"])["q"]["previous-token", 0, 0] < 0.01
    for layer, head in [(0, 1), (1, 1)]:
        assert abs(effect["previous-token", layer, head]) < 0.05
    assert {*table["behaviour"]} == {"position"}  # nothing else is annotated
    assert {*table["readout"]} == {"next token"}
    assert [*table.columns] == knockouts.KNOCKOUT_COLUMNS
    beside_nothing = pd.concat([knockouts.NOTHING, table])
    assert {*table.select_dtypes(float)} <= {*beside_nothing.select_dtypes(float)}
    counts = found.counts
    assert counts["texts"] == counts["texts without tags"] == counts["texts without chains"] == 12
    n = table.set_index(["measure", "layer", "head"])["n"]
    assert n["first-token", 0, 0] == 12 * 20  # every token but the last, which none follows


def test_heads_that_stand_in_for_each_other_are_missed_together():
    """Two heads that do the same halve what is lost without one of them; hidden from both, all of it is lost."""
    words = [f"w{number}" for number in range(20)]
    before = [planted.offset(-1, remember=True)] * 2
    model = Planted(words, [[*before, planted.uniform], [planted.induction(10.0)] + [planted.uniform] * 2]).build()
    texts = []
    for number in range(12):
        segment = random.Random(number).sample(words, 7)
        texts.append(AnnotatedText((*segment,) * 3, (True,) * 21, f"document {number}"))
    single = knockouts.measure(model, texts, behaviours=["position"]).table.set_index(["measure", "layer", "head"])
    sets = [[(0, 0)], [(0, 0), (0, 1)], [(0, 2)]]
    found = knockouts.measure_together(model, texts, [("previous-token", each) for each in sets])
    assert [*found.columns] == knockouts.TOGETHER_COLUMNS
    one = single.loc[("previous-token", 0, 0)]
    assert found["drop"][0] == pytest.approx(one["drop"], rel=1e-4)
    assert found["n"].nunique() == 1
    assert found["n"][0] == one["n"]
    assert found["control_name"][0] == one["control_name"] == "another distance"
    assert found["effect"][1] > 2 * max(one["effect"], 0.1)
    assert found["ci_low"][1] > 0
    assert abs(found["effect"][2]) < 0.05


@pytest.mark.slow
def test_what_a_head_loses_by_position_alone_is_no_effect_of_grammar():
    """A previous-token head that induction needs, on words of which some, drawn by lot, depend on the next."""
    words = [f"w{number}" for number in range(20)]
    layers = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]
    model = Planted(words, layers, n_ctx=64, start="<s>").build()
    texts = []
    for number in range(60):
        rng = random.Random(number)
        segment = rng.sample(words, 8)
        heads = tuple(at + 1 if at < 23 and rng.random() < 0.4 else -1 for at in range(24))
        relations = tuple("root" if head < 0 else "amod" for head in heads)
        texts.append(AnnotatedText((*segment,) * 3, (True,) * 24, f"document {number}", None, heads, relations))
    table = knockouts.measure(model, texts, behaviours=["position", "part-of-speech"], texts=60).table
    rows = table[(table["layer"] == 0) & (table["head"] == 0)].set_index("measure")
    amod = rows.loc["relation:amod:head->dependent"]
    assert amod["drop"] > 0.5
    assert amod["control_name"] == "usual distances"
    assert amod["effect"] == 0  # the usual distance is the only one: -1
    assert rows.loc["previous-token", "effect"] > 1
    assert rows.loc["previous-token", "control_name"] == "another distance"


def test_several_texts_at_once_are_what_each_is_alone(monkeypatch):
    words = [*{*WORDS}]
    model = Planted(words, [[planted.noise(3.0, 1), planted.noise(3.0, 2)]] * 2, n_ctx=24, start="<s>").build()
    texts = [annotated(f"document {number}") for number in range(3)]
    together = knockouts.measure(model, texts).table
    monkeypatch.setattr(tally, "CLAIMS", 1)
    alone = knockouts.measure(model, texts).table
    assert together["drop"].abs().max() > 0.1
    told = ["measure", "layer", "head", "drop", "control", "n"]
    pd.testing.assert_frame_equal(together[told], alone[told], rtol=1e-4, atol=1e-5)


def test_what_else_is_asked_draws_no_other_controls():
    """Nor do keys that are exchanged, nor other measures."""
    words = [*{*WORDS}]
    model = Planted(words, [[planted.noise(3.0, 1), planted.noise(3.0, 2)]] * 2, n_ctx=24, start="<s>").build()
    texts = [annotated(f"document {number}") for number in range(6)]
    told = ["measure", "layer", "head", "drop", "control", "n"]
    bare = knockouts.measure(model, texts, behaviours=["position"]).table[told]
    armed = knockouts.measure(model, texts, behaviours=["position"], armed={*bare["measure"]}).table
    assert armed["exchange"].notna().any()
    pd.testing.assert_frame_equal(armed[told], bare, rtol=1e-5, atol=1e-6)
    more = knockouts.measure(model, texts, behaviours=["part-of-speech", "position"]).table
    same = more.loc[more["behaviour"] == "position", told].reset_index(drop=True)
    pd.testing.assert_frame_equal(same, bare, rtol=1e-5, atol=1e-6)


def test_words_in_pieces_and_texts_of_one_sentence_are_counted():
    text = AnnotatedText(("a-b", "c", "d"), (True,) * 3, "one", ("NOUN", "VERB", "NOUN"))
    model = Planted(["a", "-", "b", "c", "d"], [[planted.uniform]], n_ctx=16, start="<s>").build()
    found = knockouts.measure(model, [text], behaviours=["part-of-speech"])
    table = found.table.set_index("measure")
    assert found.counts["words of several pieces, each a row"] == 1
    assert found.counts["texts without relations"] == 1
    assert table["n"]["tag:VERB->NOUN"] == 1  # "c" looks at three pieces; a control is left, itself
    assert [*table.index] == ["tag:VERB->NOUN"]  # the last "d" has no next token, "a-b" sees no noun before it


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "holds no text"), ([AnnotatedText(("w1",), (True,), "short")], "no row of this corpus is claimed")],
)
def test_bad_input_gets_one_clear_error(texts, message):
    model = Planted(["w1", "w2"], [[planted.uniform]], n_ctx=16, start="<s>").build()
    with pytest.raises(InputError, match=message):
        knockouts.measure(model, texts)
