"""Labels on planted heads: chosen on one half of the documents, reported on the other."""

import random

import numpy as np
import pandas as pd
import pytest

from analyses import part_of_speech
from analyses.labels import LABEL_COLUMNS, judgement, label
from analyses.labels.evidence import CELL, HALVES
from analyses.labels.knockouts import least
from analyses.measures.findings import notable
from analyses.measures.head_tables import BOTH_READINGS
from analyses.reading.inputs import Sample
from analyses.wording.head_names import HEAD
from benchmarks.labels import readers_one, sinks_one
from benchmarks.planted import compose, planted_texts
from interp import AnnotatedText, InputError
from interp.patterns import group_of
from models import planted
from models.planted import Planted

WORDS = [f"w{number}" for number in range(40)]


def repeating_texts(count: int) -> list[AnnotatedText]:
    drawn = [random.Random(number).sample(WORDS, 9) for number in range(count)]
    return [AnnotatedText((*each,) * 3, (True,) * 27, f"document {number}") for number, each in enumerate(drawn)]


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    """A previous-token head that an induction head needs, an offset head that nothing reads, and two uniform ones."""
    layers = [
        [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform],
        [planted.induction(10.0), planted.uniform, planted.first_token],
    ]
    model = Planted(WORDS, layers, n_ctx=110, start="<s>").build()
    return label(model, {"position": repeating_texts(40)}, documents=20).labels


def evidence(table: pd.DataFrame, layer: int, head: int) -> dict[str, str]:
    rows = table[(table["layer"] == layer) & (table["head"] == head)]
    return dict(zip(rows["label"], rows["evidence"], strict=True))


def test_evidence_says_who_attends_and_who_is_needed(found):
    """Of heads that nothing reads attention alone, of uniform ones nothing; one stands beside its minimal pairs."""
    assert evidence(found, 0, 0)["previous-token"] == evidence(found, 1, 0)["induction"] == "both"
    assert evidence(found, 0, 1) == {"offset:-3": "attention"}
    assert evidence(found, 1, 2)["first-token"] == "attention"
    assert evidence(found, 0, 2) == evidence(found, 1, 1) == {}
    needed = found[found["evidence"] == "both"]
    assert (needed[["gain_low", "effect"]] > 0).all(axis=None)
    assert (needed["q"] < 0.05).all()
    rows = found.set_index("label")
    carried = rows.loc["induction"]
    assert carried["task"] == "repeat"
    assert carried["task_effect"] > 0.5
    assert carried["task_low"] <= carried["task_effect"] <= carried["task_high"]
    assert pd.isna(rows.loc["offset:-3", "task"])


def test_a_label_without_keys_that_can_be_hidden_is_shared_all_the_same():
    """Two heads that look at their own token have the label `self`, and no effect."""
    model = Planted(WORDS, [[planted.offset(0)] * 2], n_ctx=32, start="<s>").build()
    found = label(model, {"position": repeating_texts(24)}, documents=6, words=12).labels
    rows = found.loc[found["label"] == "self"]
    assert [*rows["heads"]] == [2, 2]
    assert rows["all_effect"].isna().all()


def test_heads_that_stand_in_for_each_other_are_missed_together_and_as_many_others_are_not():
    layers = [
        [planted.offset(-1, remember=True), planted.uniform, planted.uniform],
        [planted.induction(10.0), planted.uniform, planted.induction(10.0)],
    ]
    model = Planted(WORDS, layers, n_ctx=110, start="<s>").build()
    found = label(model, {"position": repeating_texts(24)}, documents=12).labels
    rows = found.loc[found["label"] == "induction"]
    assert [*rows["heads"], *rows["others"]] == [2] * 4
    assert (rows["all_low"] > 2 * rows["effect"]).all()
    assert rows["all_effect"].nunique() == 1
    assert (rows["others_high"] < rows["all_low"] / 4).all()
    assert (rows["rest_effect"] < rows["all_low"] / 2).all()


def test_others_than_those_with_a_label_have_it_by_no_measure():
    """Two heads have it by one measure and one by another: of four heads one is left."""
    places = [("decoder", "self", 0, head) for head in range(4)]
    heads = pd.DataFrame(places, columns=HEAD)
    about = {"behaviour": "part-of-speech", "label": "rule:any->NOUN"}
    labels = heads.iloc[:3].assign(**about, measure=["tag:VERB->NOUN"] * 2 + ["tag:ADP->NOUN"])
    assert judgement._rivals(heads, labels, labels.iloc[:2], seed=0) == [(0, 3)]
    alone = labels.iloc[:2]
    assert sorted(judgement._rivals(heads, alone, alone, seed=0)) == [(0, 2), (0, 3)]


def test_a_sample_takes_as_many_whole_sentences_of_a_document_as_fit():
    name, half = "d0", HALVES[group_of("d0") % 2]

    def lengths(texts: list[AnnotatedText], most: int) -> list[int]:
        return [len(text.words) for text in Sample(texts, half, 3, most)]

    def sentence(length: int, **starts: tuple[int, ...]) -> AnnotatedText:
        return AnnotatedText(tuple(WORDS[:length]), (True,) * length, name, **starts)

    assert lengths([sentence(6), sentence(7), sentence(5)], 15) == [6, 7, 2]
    assert lengths([sentence(12, sentence_starts=(0, 5, 9))] * 2, 11) == [9]


def test_what_cannot_be_labelled_is_said_and_an_unknown_behaviour_refused():
    model = Planted(WORDS, [[planted.uniform]], n_ctx=32, start="<s>").build()
    found = label(model, {"coreference": repeating_texts(6)}, documents=3)
    assert found.labels.empty
    assert list(found.labels.columns) == LABEL_COLUMNS
    assert "no pronoun" in found.left_out["coreference"]
    few = label(model, {"position": repeating_texts(5)})
    assert few.labels.empty
    assert "at least 10 documents, got 5" in few.left_out["position"]
    with pytest.raises(InputError, match="no behaviour colour"):
        label(model, {"colour": repeating_texts(2)})


def test_a_head_that_rests_on_the_first_word_looks_at_no_kind_of_word():
    """Without a start token the first word takes what rests there; texts that begin with a pronoun make it a lift."""
    texts = []
    for number in range(24):
        rng = random.Random(number)
        tags = ("PRON", *(rng.choice(("VERB", "NOUN", "PRON", "NOUN")) for _ in range(15)))
        words = tuple(rng.sample(WORDS, 16))
        texts.append(AnnotatedText(words, (True,) * 16, f"document {number}", tags))
    found = {}
    for start in ("<s>", None):
        model = Planted(WORDS, [[planted.first_token, planted.uniform]], n_ctx=32, start=start).build()
        table = part_of_speech.measure(model, texts)
        found[start] = table.loc[(table["measure"] == "tag:VERB->PRON") & (table["head"] == 0)]
    assert {*found["<s>"]["readings"]} == {"kept"}
    assert {*found[None]["readings"]} == {BOTH_READINGS}
    resting = found[None].set_index("sink").loc["kept"]
    assert resting["gain"] > 0.3
    assert resting["q"] < 0.01
    assert len(notable(found[None].assign(readings="kept"))) == 1
    assert notable(found[None]).empty
    labelled = label(model, {"part-of-speech": texts}, documents=6, words=16).labels
    assert not any(name.startswith(("tag:", "rule:")) for name in labelled["label"])


@pytest.mark.slow
@pytest.mark.parametrize("form", [pytest.param("decoder", marks=pytest.mark.smoke), "encoder"])
def test_composed_heads_are_labelled_and_impostors_are_not(form):
    behaviours = ["previous-token", "offset", "noun-to-adjective", "antecedent", "nearest-noun", "same-form"]
    composed = compose(3, form=form, n_layers=2, n_heads=4, behaviours=behaviours)
    corpora = {
        "position": planted_texts.shuffled(composed.lexicon, 100),
        "part-of-speech": planted_texts.sentences(composed.lexicon, 100, apart=True),
        "coreference": planted_texts.meetings(composed.lexicon, 100, episodes=4),
    }
    table = label(composed.model, corpora, documents=8, words=20).labels
    for each in composed.placed:
        mine = table.loc[(table["layer"] == each.layer) & (table["head"] == each.head), "label"].tolist()
        assert all(map(each.behaviour.is_called, mine)), each
        assert each.behaviour.label is None or each.found(mine), each


def candidates(p_attention: np.ndarray, p_effect: np.ndarray) -> pd.DataFrame:
    """Candidates that pass every margin, each with its two p."""
    rows = pd.DataFrame({"layer": range(len(p_attention)), "p_attention": p_attention, "p_effect": p_effect})
    same = {"stack": "decoder", "attention": "self", "head": 0, "behaviour": "b", "measure": "m", "label": "m"}
    same |= {"attends": True, "moves": True, "fit": True, "gain": 0.5, "gain_low": 0.4, "bar": 0.0, "effect": 0.5}
    return rows.assign(**same, effect_low=0.4, readout="next token", masked=np.nan, masked_low=np.nan, masked_p=np.nan)


def test_a_label_is_wrong_no_more_often_than_its_rate_whichever_evidence_it_rests_on():
    """Ten heads in a hundred attend and are needed; the others are neither, and each has two chances to seem so."""
    rng, wrong = np.random.default_rng(0), []
    for _ in range(300):
        p = rng.random((2, 100))
        p[:, :10] *= 1e-6
        rows = judgement._true_rows(candidates(*p))
        wrong.append((rows["layer"] >= 10).sum() / max(len(rows), 1))
    assert np.mean(wrong) <= 0.05


def test_q_of_a_label_is_the_least_rate_at_which_its_evidence_is_called():
    rng = np.random.default_rng(0)
    p_attention, p_effect = rng.random((2, 40)) ** 3
    called = candidates(p_attention, p_effect)[CELL].assign(p=np.minimum(p_attention, p_effect))
    found = judgement._q(np.maximum(p_attention, p_effect), called)
    rates = np.linspace(0.0005, 1, 2000)
    families = np.sort(2 * called["p"].to_numpy())
    for p, q in zip(np.maximum(p_attention, p_effect), found, strict=True):
        ranks = [max([0, *(k for k in range(1, 41) if families[k - 1] <= rate * k / 40)]) for rate in rates]
        least = next((rate for rate, k in zip(rates, ranks, strict=True) if 2 * p <= rate * k / 40), 1.0)
        assert q == pytest.approx(least, abs=0.001)


def held(**values: object) -> list[str]:
    """The evidence of a head that the half which chooses shows by its effect, with some other values."""
    row = {"attends": False, "bar": 0.03, "gain": 0.04, "gain_low": 0.035, "effect": 0.05, "effect_low": 0.02}
    tiny = np.array([1e-9])
    return judgement._true_rows(candidates(tiny, tiny).assign(**row | values))["evidence"].tolist()


def test_what_a_head_needs_without_looking_there_is_no_label():
    """It must look there by more than any head that has learnt nothing does, beyond its interval."""
    assert held() == ["effect"]
    assert held(gain_low=0.025) == []
    assert held(gain=0.2, gain_low=0.15, attends=True) == ["both"]
    assert held(gain=0.2, gain_low=0.15, attends=True, effect=0.009) == ["attention"]
    assert held(effect=0.009) == []


PARTS = ("", "_low", "_high", "_p")


def arms(*rows: tuple[float, float, float]) -> pd.DataFrame:
    """What hiding, exchange and removal cost; each with an interval of 0.1 on both sides, and as p a tenth of it."""
    columns = {}
    for at, names in enumerate(
        [("effect", "ci_low", "ci_high", "p"), *([f"{arm}{part}" for part in PARTS] for arm in ("exchange", "removal"))]
    ):
        cost = np.array([row[at] for row in rows])
        columns |= dict(zip(names, (cost, cost - 0.1, cost + 0.1, cost / 10), strict=True))
    return pd.DataFrame(columns)


def test_the_effect_is_that_of_the_least_arm_and_p_the_largest():
    found = least(arms((0.3, 0.2, 0.4), (0.1, 0.5, 0.2), (0.5, 0.4, 0.3)))
    np.testing.assert_allclose(found["effect"], [0.2, 0.1, 0.3])
    np.testing.assert_allclose(found["ci_low"], [0.1, 0.0, 0.2])
    np.testing.assert_allclose(found["ci_high"], [0.3, 0.2, 0.4])
    np.testing.assert_allclose(found["p"], [0.04, 0.05, 0.05])
    np.testing.assert_allclose(found["hiding"], [0.3, 0.1, 0.5])


def test_where_keys_were_only_hidden_the_effect_is_what_that_costs_and_p_is_not_known():
    found = least(arms((0.002, np.nan, np.nan)))
    assert found["effect"].tolist() == found["hiding"].tolist() == [0.002]
    assert found["p"].isna().all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_single_and_joint_effects_tell_sinks_unread_heads_and_twins_apart(seed):
    """Twenty of each: `benchmarks.labels --only readers --models 80`."""
    assert readers_one(seed) == {"unread beside a reader": True, "twins": True}
    labels, hiding, (all_hiding, needed) = sinks_one(seed)
    assert all(each.startswith("attention") for each in labels)
    assert min(*hiding, all_hiding) > 0.1
    assert abs(needed) < 0.01
