"""A label's effect on its own items: which rows and keys does it claim, and which planted heads do they need?"""

import random
from collections import Counter

import pandas as pd
import pytest

from analyses.behaviours import OURS
from analyses.labels import hiding, knockouts
from analyses.labels.hiding import Keys, at_usual_distances, distances, with_control
from analyses.measures.definitions import Claims
from analyses.reading.windows import Window, windows
from interp import AnnotatedText, InputError, Mention, Transformer
from models import planted
from models.planted import Planted

WORDS = ("Tim", "saw", "the", "red", "ball", "and", "the", "ball", "hit", "him", ".")
TAGS = ("PROPN", "VERB", "DET", "ADJ", "NOUN", "CCONJ", "DET", "NOUN", "VERB", "PRON", "PUNCT")
HEADS = (1, -1, 4, 4, 1, 8, 7, 8, 1, 8, 1)
RELATIONS = ("nsubj", "root", "det", "amod", "obj", "cc", "det", "nsubj", "conj", "obj", "punct")
CHAINS = (Mention(0, 1, 0, "tim"), Mention(2, 5, 4, "ball"), Mention(6, 8, 7, "ball"), Mention(9, 10, 9, "tim"))
SEGMENT = [f"w{number}" for number in range(20)]
COPYING = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]


def annotated(document: str = "one") -> AnnotatedText:
    return AnnotatedText(WORDS, (True,) * len(WORDS), document, TAGS, HEADS, RELATIONS, CHAINS)


def repeating(count: int, length: int = 7) -> list[AnnotatedText]:
    """Texts of segments that occur three times."""
    segments = [random.Random(number).sample(SEGMENT, length) for number in range(count)]
    return [AnnotatedText((*each,) * 3, (True,) * 3 * length, f"document {n}") for n, each in enumerate(segments)]


def noisy() -> Transformer:
    layers = [[planted.noise(3.0, 1), planted.noise(3.0, 2)]] * 2
    return Planted([*dict.fromkeys(WORDS)], layers, n_ctx=24, start="<s>").build()


@pytest.fixture(scope="module")
def window() -> Window:
    tokenizer = Planted([*{*WORDS}], [[planted.uniform]], n_ctx=16, start="<s>").build().tokenizer
    assert tokenizer is not None
    (only,) = windows(annotated(), tokenizer, 16, Counter())
    return only  # column 0 is the start token, word w is column w + 1


def controlled(window: Window, looks: Claims, seed: int = 0, **options: bool) -> tuple[Keys, Keys]:
    choices = {"causal": True, "at_distance": True} | options
    return with_control(window, looks, window.content, random.Random(seed), **choices)


def looks_of(behaviour: str, window: Window, *, causal: bool = True) -> dict[str, Claims]:
    """What a behaviour's measures claim and hide."""
    measures = OURS[behaviour].measurable(causal=causal)
    return {each.name: each.keys_of(window) for each in measures if each.points and each.hidden and not each.corpus}


class TestClaims:
    """Rows and keys, by hand."""

    @pytest.mark.parametrize(
        ("behaviour", "causal", "measure", "looks"),
        [
            ("position", True, "previous-token", {row: {row - 1} for row in range(2, 12)}),  # never the start token
            ("position", True, "first-token", {row: {0} for row in range(1, 12)}),
            ("position", True, "duplicate-token", {7: {3}, 8: {5}}),  # the second "the" and "ball"
            ("position", False, "next-token", {row: {row + 1} for row in range(1, 11)}),
            ("position", False, "offset:3", {row: {row + 3} for row in range(1, 9)}),
            ("position", False, "duplicate-token", {7: {3}, 8: {5}}),  # earlier copies, by the measure's definition
            ("part-of-speech", True, "tag:NOUN->ADJ", {5: {4}, 8: {4}}),
            ("part-of-speech", True, "relation:nsubj:head->dependent", {2: {1}, 9: {8}}),
            ("part-of-speech", True, "relation:nsubj:dependent->head", {1: {2}, 8: {9}}),
            ("coreference", True, "antecedent", {10: {1}}),
            ("coreference", True, "antecedent-predicting:named", {9: {1}}),
        ],
    )
    def test_a_measure_claims_these_keys(self, window, behaviour, causal, measure, looks):
        assert looks_of(behaviour, window, causal=causal)[measure] == looks

    def test_a_decoder_is_not_asked_for_keys_that_it_does_not_see(self, window):
        ahead = looks_of("part-of-speech", window)["relation:nsubj:dependent->head"]
        assert controlled(window, ahead) == ({}, {})
        assert controlled(window, ahead, causal=False)[0] == {1: {2}, 8: {9}}

    def test_a_control_has_as_many_other_keys_at_about_the_same_distance(self, window):
        for seed in range(20):
            claim, others = controlled(window, {10: {1, 5}, 9: {8}}, seed)
            assert [*claim] == [*others] == [9, 10]
            assert {row: len(keys) for row, keys in others.items()} == {9: 1, 10: 2}
            assert not any({*claim[row]} & {*others[row]} for row in claim)
            assert {(10 - key).bit_length() for key in others[10]} <= {3, 4}  # like 10 - 5 and 10 - 1
            assert 0 not in others[10]  # never the start token

    @pytest.mark.parametrize(
        ("looks", "options", "keys"),
        [
            ({6: {4}}, {"causal": False}, {3, 8, 9}),  # in an encoder on either side, 2 and 3 away, like 4
            ({8: {7}}, {"at_distance": False}, {1, 2, 3, 4, 5, 6, 8}),  # for positions, anywhere
        ],
    )
    def test_controls_are_drawn_from_these_keys(self, window, looks, options, keys):
        (row,) = looks
        sample = {key for seed in range(200) for key in controlled(window, looks, seed, **options)[1][row]}
        assert sample == keys

    def test_keys_at_usual_distances_are_drawn_from_those_of_the_label_and_seen_by_the_row(self, window):
        usual = distances({10: {7, 5}, 9: {8}, 4: {6}}, causal=True)
        assert usual == [{-1}, {-3, -5}]  # a decoder does not see column 6 from column 4
        assert distances({4: {6}}, causal=False) == [{2}]
        claim, counts = {4: frozenset({2}), 9: frozenset({8})}, Counter()
        for seed in range(200):
            control = at_usual_distances(window, claim, usual, random.Random(seed), causal=True)
            counts.update(control.items())
        assert {*counts} == {(4, frozenset({3})), (4, frozenset({1})), (9, frozenset({8})), (9, frozenset({6, 4}))}
        assert min(counts.values()) > 60  # 4 - 5 is outside the text and left out
        far = [frozenset({-7})]  # if none fits, a row keeps its own keys
        assert at_usual_distances(window, {2: {1}}, far, random.Random(0), causal=True) == {2: {1}}

    def test_rows_with_nothing_to_read_or_no_other_key_are_left_out(self, window):
        controls = with_control(window, {11: {1}, 1: {0, 1}}, {1}, random.Random(0), causal=True, at_distance=True)
        assert controls == ({}, {})


def test_the_heads_that_a_copy_needs_are_found_and_no_other():
    """A previous-token head and an induction head after it; the text repeats one segment."""
    table = knockouts.measure(Planted(SEGMENT, COPYING, n_ctx=64, start="<s>").build(), repeating(12), texts=12).table
    rows = table.set_index(["measure", "layer", "head"])
    assert rows.loc[("previous-token", 0, 0), "effect"] > 1
    assert rows.loc[("previous-token", 0, 0), "q"] < 0.01
    assert rows.loc[[("previous-token", layer, 1) for layer in (0, 1)], "effect"].abs().max() < 0.05
    assert {*table["behaviour"]} == {"position"}  # nothing else is annotated
    assert {*table["readout"]} == {"next token"}
    assert [*table.columns] == knockouts.KNOCKOUT_COLUMNS
    assert {*table.select_dtypes(float)} <= {*pd.concat([knockouts.NOTHING, table]).select_dtypes(float)}
    assert rows.loc[("first-token", 0, 0), "n"] == 12 * 20  # every token but the last, which has no successor


def test_heads_that_stand_in_for_each_other_are_missed_together():
    """Two heads that do the same halve the loss without one of them; hiding from both loses everything."""
    before = [planted.offset(-1, remember=True)] * 2
    model = Planted(SEGMENT, [[*before, planted.uniform], [planted.induction(10.0)] + [planted.uniform] * 2]).build()
    texts = repeating(12)
    single = knockouts.measure(model, texts, behaviours=["position"]).table.set_index(["measure", "layer", "head"])
    sets = [[(0, 0)], [(0, 0), (0, 1)], [(0, 2)]]
    joint = knockouts.measure_together(model, texts, [("previous-token", heads) for heads in sets])
    assert [*joint.columns] == knockouts.TOGETHER_COLUMNS
    row = single.loc[("previous-token", 0, 0)]
    assert joint["drop"][0] == pytest.approx(row["drop"], rel=1e-4)
    assert joint["n"].tolist() == [row["n"]] * 3
    assert joint["control_name"][0] == row["control_name"] == "another distance"
    assert joint["effect"][1] > 2 * max(row["effect"], 0.1)
    assert joint["ci_low"][1] > 0
    assert abs(joint["effect"][2]) < 0.05


@pytest.mark.slow
def test_what_a_head_loses_by_position_alone_is_no_effect_of_grammar():
    """A previous-token head that induction needs, on words of which random ones depend on the next word."""
    texts = []
    for number in range(60):
        rng = random.Random(number)
        segment = rng.sample(SEGMENT, 8)
        heads = tuple(index + 1 if index < 23 and rng.random() < 0.4 else -1 for index in range(24))
        relations = tuple("root" if head < 0 else "amod" for head in heads)
        texts.append(AnnotatedText((*segment,) * 3, (True,) * 24, f"document {number}", None, heads, relations))
    model = Planted(SEGMENT, COPYING, n_ctx=64, start="<s>").build()
    table = knockouts.measure(model, texts, behaviours=["position", "part-of-speech"], texts=60).table
    rows = table[(table["layer"] == 0) & (table["head"] == 0)].set_index("measure")
    amod = rows.loc["relation:amod:head->dependent"]
    assert amod["drop"] > 0.5
    assert (amod["control_name"], amod["effect"]) == ("usual distances", 0)  # the only usual distance is -1
    assert rows.loc["previous-token", "effect"] > 1
    assert rows.loc["previous-token", "control_name"] == "another distance"


def test_what_else_is_asked_and_how_many_at_once_changes_nothing(monkeypatch):
    """Exchanged keys, other measures and work in the same call do not change the drawn controls."""
    model, texts = noisy(), [annotated(f"document {number}") for number in range(6)]
    columns = ["measure", "layer", "head", "drop", "control", "n"]

    def measured(**options) -> pd.DataFrame:
        table = knockouts.measure(model, texts, **{"behaviours": ["position"], **options}).table
        return table.loc[table["behaviour"] == "position"].reset_index(drop=True)

    bare = measured(armed=())
    assert bare["drop"].abs().max() > 0.1
    armed = measured()
    assert armed["exchange"].notna().any()
    monkeypatch.setattr(hiding, "CLAIMS", 1)
    for table in (armed, measured(armed=()), measured(behaviours=["part-of-speech", "position"])):
        pd.testing.assert_frame_equal(table[columns], bare[columns], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "holds no text"), ([AnnotatedText(("w1",), (True,), "short")], "no measure claims a row of this corpus")],
)
def test_bad_input_gets_one_clear_error(texts, message):
    model = Planted(["w1", "w2"], [[planted.uniform]], n_ctx=16, start="<s>").build()
    with pytest.raises(InputError, match=message):
        knockouts.measure(model, texts)
