"""Labels on planted heads: chosen on one half of the documents, reported on the other."""

import random
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
import torch
from repeats import WORDS, copying, repeating_texts

from analyses import part_of_speech
from analyses.behaviours import OURS
from analyses.corpora import read
from analyses.execution.lots import Setting, Shards, using
from analyses.labels import LABEL_COLUMNS, evidence, judgement, label
from analyses.labels.evidence import CELL, HALVES, Study, documents_of
from analyses.labels.knockouts import least
from analyses.measures.findings import notable
from analyses.measures.head_tables import BOTH_READINGS, Collected, Heads, Scored
from analyses.reading.inputs import Sample
from analyses.wording.head_names import HEAD
from benchmarks.labels import readers_one, sinks_one
from benchmarks.planted import compose, planted_texts
from interp import AnnotatedText, InputError
from interp.patterns import Totals, group_of
from models import load, planted
from models.planted import Planted


def test_where_all_heads_have_a_label_no_others_stand_beside_them():
    heads = [planted.offset(-1, remember=True), planted.offset(-1, remember=True)]
    model = Planted(WORDS, [heads], n_ctx=110, start="<s>", marks=2).build()
    rows = label(model, {"position": repeating_texts(40)}, documents=20).labels.set_index("label")
    shared = rows.loc[["previous-token"]]
    assert shared["heads"].tolist() == [2, 2]
    assert shared["others_effect"].isna().all()


def test_evidence_says_who_attends_and_who_is_needed():
    """Unread heads have evidence of attention alone, uniform ones none; one is listed with its minimal pairs."""
    model = copying([planted.offset(-3), planted.uniform], [planted.uniform, planted.first_token])
    result = label(model, {"position": repeating_texts(40)}, documents=20).labels
    by_head = result.set_index("label").groupby(["layer", "head"])["evidence"]
    of_heads = {head: rows.to_dict() for head, rows in by_head}
    assert of_heads[0, 0]["previous-token"] == of_heads[1, 0]["induction"] == "both"
    assert of_heads[0, 1] == {"offset:-3": "attention"}
    assert of_heads[1, 2]["first-token"] == "attention"
    assert {(0, 2), (1, 1)}.isdisjoint(of_heads)
    needed = result[result["evidence"] == "both"]
    assert (needed[["gain_low", "effect"]] > 0).all(axis=None)
    assert (needed["q"] < 0.05).all()
    rows = result.set_index("label")
    carried = rows.loc["induction"]
    assert carried["task"] == "repeat"
    assert carried["task_effect"] > 0.5
    assert carried["task_low"] <= carried["task_effect"] <= carried["task_high"]
    assert pd.isna(rows.loc["offset:-3", "task"])


def test_a_label_without_keys_that_can_be_hidden_is_shared_all_the_same():
    """Two heads that look at their own token have the label `self`, and no effect."""
    model = Planted(WORDS, [[planted.offset(0)] * 2], n_ctx=32, start="<s>").build()
    result = label(model, {"position": repeating_texts(24)}, documents=6, words=12).labels
    rows = result.loc[result["label"] == "self"]
    assert [*rows["heads"]] == [2, 2]
    assert rows["all_effect"].isna().all()


@pytest.mark.slow
def test_heads_that_stand_in_for_each_other_are_missed_together_and_as_many_others_are_not():
    model = copying([planted.uniform] * 2, [planted.uniform, planted.induction(10.0)])
    result = label(model, {"position": repeating_texts(24)}, documents=12).labels
    rows = result.loc[result["label"] == "induction"]
    assert [*rows["heads"], *rows["others"]] == [2] * 4
    assert (rows["all_low"] > 2 * rows["effect"]).all()
    assert rows["all_effect"].nunique() == 1
    assert (rows["others_high"] < rows["all_low"] / 4).all()
    assert (rows["rest_effect"] < rows["all_low"] / 2).all()


def test_others_than_those_with_a_label_have_it_by_no_measure():
    """Two heads have the label by one measure and one by another, so one head of four is left."""
    heads = pd.DataFrame([("decoder", "self", 0, head) for head in range(4)], columns=HEAD)
    key = {"behaviour": "part-of-speech", "label": "rule:any->NOUN"}
    labels = heads.iloc[:3].assign(**key, measure=["tag:VERB->NOUN"] * 2 + ["tag:ADP->NOUN"])
    assert judgement._rivals(heads, labels, labels.iloc[:2], seed=0) == [(0, 3)]
    alone = labels.iloc[:2]
    assert sorted(judgement._rivals(heads, alone, alone, seed=0)) == [(0, 2), (0, 3)]


def test_a_sample_takes_as_many_whole_sentences_of_a_document_as_fit():
    half = HALVES[group_of("d0") % 2]

    def lengths(most: int, *texts: int, **starts: tuple[int, ...]) -> list[int]:
        corpus = [AnnotatedText((*WORDS[:length],), (True,) * length, "d0", **starts) for length in texts]
        return [len(text.words) for text in Sample(corpus, half, 3, most)]

    assert lengths(15, 6, 7, 5) == [6, 7, 2]
    assert lengths(11, 12, 12, sentence_starts=(0, 5, 9)) == [9]


def test_what_cannot_be_labelled_is_said_and_an_unknown_behaviour_refused():
    model = Planted(WORDS, [[planted.uniform]], n_ctx=32, start="<s>").build()
    result = label(model, {"coreference": repeating_texts(6)}, documents=3)
    assert result.labels.empty
    assert list(result.labels.columns) == LABEL_COLUMNS
    assert "no pronoun" in result.left_out["coreference"]
    small = label(model, {"position": repeating_texts(5)})
    assert small.labels.empty
    assert "at least 10 documents, got 5" in small.left_out["position"]
    with pytest.raises(InputError, match="no behaviour colour"):
        label(model, {"colour": repeating_texts(2)})


def test_a_head_that_rests_on_the_first_word_looks_at_no_kind_of_word():
    """Without a start token, the first word gets resting attention, which is a lift if texts begin with a pronoun."""
    texts = []
    for number in range(24):
        rng = random.Random(number)
        tags = ("PRON", *(rng.choice(("VERB", "NOUN", "PRON", "NOUN")) for _ in range(15)))
        words = tuple(rng.sample(WORDS, 16))
        texts.append(AnnotatedText(words, (True,) * 16, f"document {number}", tags))
    result = {}
    for start in ("<s>", None):
        model = Planted(WORDS, [[planted.first_token, planted.uniform]], n_ctx=32, start=start).build()
        table = part_of_speech.measure(model, texts)
        result[start] = table.loc[(table["measure"] == "tag:VERB->PRON") & (table["head"] == 0)]
    assert [{*result[start]["readings"]} for start in result] == [{"kept"}, {BOTH_READINGS}]
    resting = result[None].set_index("sink").loc["kept"]
    assert resting["gain"] > 0.3
    assert resting["q"] < 0.01
    assert len(notable(result[None].assign(readings="kept"))) == 1
    assert notable(result[None]).empty
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
    for role in composed.placed:
        mine = table.loc[(table["layer"] == role.layer) & (table["head"] == role.head), "label"].tolist()
        assert all(map(role.behaviour.is_called, mine)), role
        if role.behaviour.name == "noun-to-adjective":
            # a rule is always right about these adjectives, so the relation cannot differ; elsewhere the head rests
            assert {*mine} <= {"first-token"}
        else:
            assert role.behaviour.label is None or role.is_named_by(mine), role


def candidates(p_attention: np.ndarray, p_effect: np.ndarray) -> pd.DataFrame:
    """Candidates that pass every margin, each with two p."""
    rows = pd.DataFrame({"layer": range(len(p_attention)), "p_attention": p_attention, "p_effect": p_effect})
    base = {"stack": "decoder", "attention": "self", "head": 0, "behaviour": "b", "measure": "m", "label": "m"}
    base |= {"attends": True, "moves": True, "fit": True, "gain": 0.5, "gain_low": 0.4, "bar": 0.0, "effect": 0.5}
    return rows.assign(**base, effect_low=0.4, readout="next token", masked=np.nan, masked_low=np.nan, masked_p=np.nan)


def test_a_label_is_wrong_no_more_often_than_its_rate_whichever_evidence_it_rests_on():
    """Ten heads in a hundred attend and are needed; the others do neither, but have two chances to seem so."""
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
    result = judgement._q(np.maximum(p_attention, p_effect), called)
    rates = np.linspace(0.0005, 1, 2000)
    families = np.sort(2 * called["p"].to_numpy())
    for p, q in zip(np.maximum(p_attention, p_effect), result, strict=True):
        ranks = [max([0, *(k for k in range(1, 41) if families[k - 1] <= rate * k / 40)]) for rate in rates]
        least = next((rate for rate, k in zip(rates, ranks, strict=True) if 2 * p <= rate * k / 40), 1.0)
        assert q == pytest.approx(least, abs=0.001)


def evidence_of(**values: object) -> list[str]:
    """The evidence of a head that the choosing half shows by its effect, with some changed values."""
    row = {"attends": False, "bar": 0.03, "gain": 0.04, "gain_low": 0.035, "effect": 0.05, "effect_low": 0.02}
    tiny = np.array([1e-9])
    return judgement._true_rows(candidates(tiny, tiny).assign(**row | values))["evidence"].tolist()


def test_what_a_head_needs_without_looking_there_is_no_label():
    """Its whole interval must be above the gain of any head that learnt nothing."""
    assert evidence_of() == ["effect"]
    assert evidence_of(gain_low=0.025) == []
    assert evidence_of(gain=0.2, gain_low=0.15, attends=True) == ["both"]
    assert evidence_of(gain=0.2, gain_low=0.15, attends=True, effect=0.009) == ["attention"]
    assert evidence_of(effect=0.009) == []


def test_the_effect_is_that_of_the_least_arm_and_p_the_largest():
    """Intervals extend 0.1 on both sides, p is a tenth of the cost, and the last row's keys are only hidden."""
    costs = {"": [0.3, 0.1, 0.5, 0.002], "exchange": [0.2, 0.5, 0.4, np.nan], "removal": [0.4, 0.2, 0.3, np.nan]}
    names = {"": ["effect", "ci_low", "ci_high", "p"]}
    names |= {arm: [f"{arm}{part}" for part in ("", "_low", "_high", "_p")] for arm in ("exchange", "removal")}
    parts = {arm: (cost := np.array(values), cost - 0.1, cost + 0.1, cost / 10) for arm, values in costs.items()}
    result = least(
        pd.DataFrame({name: part for arm in costs for name, part in zip(names[arm], parts[arm], strict=True)})
    )
    expected = {"effect": [0.2, 0.1, 0.3, 0.002], "ci_low": [0.1, 0.0, 0.2, -0.098]}
    expected |= {"ci_high": [0.3, 0.2, 0.4, 0.102], "p": [0.04, 0.05, 0.05, np.nan], "hiding": costs[""]}
    for name, values in expected.items():
        np.testing.assert_allclose(result[name], values)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_single_and_joint_effects_tell_sinks_unread_heads_and_twins_apart(seed):
    """Twenty models of each kind; `benchmarks.labels --only readers --models 80` has more."""
    assert readers_one(seed) == {"unread beside a reader": True, "twins": True}
    labels, hiding, (all_hiding, needed) = sinks_one(seed)
    assert all(each.startswith("attention") for each in labels)
    assert min(*hiding, all_hiding) > 0.1
    assert abs(needed) < 0.01


# The bar of a label reads as many documents as hold enough items.


NULL_HEADS = Heads("decoder", 1, 3)


def collected(items: float, others: float, behaviour: str = "position", documents: int = 12, tokens: int = 0):
    """The sums of two measures with so many items in a text."""
    rows = torch.zeros(128, 3, 2)
    rows[0] = torch.tensor([items, others])
    scored = Scored(Totals(rows, rows, rows), (), "kept")
    return Collected(NULL_HEADS, behaviour, "a text", [scored], {"tokens": tokens}, documents)


def reach_nothing(*_) -> dict[str, torch.Tensor]:
    return {}


def test_bars_that_were_kept_are_those_of_the_very_texts_that_are_read(tmp_path, monkeypatch):
    """A corpus read in part has the hash of the whole."""
    null = evidence._Null(evidence.WORDS, lambda: load("default"), NULL_HEADS)
    monkeypatch.setattr(evidence, "_nulls", lru_cache(lambda *_: [null]))
    monkeypatch.setattr(evidence, "_reached", reach_nothing)

    def n_read(limit: int | None) -> int:
        corpora, shards = {"position": read("tales:12", limit)}, Shards.for_output(tmp_path / "out", [], {})
        with using(Setting(shards)):
            evidence.bars_of(Study(null.model(), corpora, OURS, 0), [collected(1, 1)])
        return shards.counts["read"]

    assert [n_read(limit) for limit in (6, None, 6, None)] == [0, 0, 1, 1]


@pytest.mark.parametrize("share", [False, True])
def test_a_bar_is_surpassed_by_one_copy_in_as_many_as_are_said(share):
    """Also for shares: the bar above a baseline of .5 leaves room for a head that is always right."""
    draws = torch.from_numpy(np.random.default_rng(0).gumbel(0.6, 0.1, (4000, 41)))
    gains = 0.5 - (-draws).exp() if share else draws
    bars = [evidence._surpassed([torch.stack([each, each * 0 + 0.5])], 0.01, ends=share) for each in gains[:, :40]]
    above = gains[:, 40] > torch.tensor(bars)
    assert above.double().mean().item() == pytest.approx(0.012, abs=0.005)  # moments of 40 copies vary
    assert not share or max(bars) < 0.5


def test_the_more_measures_the_higher_is_the_bar_of_each(monkeypatch):
    """Over all measures, one model in twenty has a head above any bar."""
    best = torch.stack([torch.linspace(0.1, 0.3, 40), torch.full((40,), 0.05)])
    null = evidence._Null(evidence.COPIES, lambda: load("default"), NULL_HEADS, 40)
    monkeypatch.setattr(evidence, "_nulls", lru_cache(lambda *_: [null]))

    def bars(measures: int) -> evidence.Bars:
        names = [measure.name for measure in OURS["position"].measures if measure.unit == "share"][:measures]
        nulls = {f"position: {name}": best for name in names}
        monkeypatch.setattr(evidence, "_reached", lambda *_: nulls)
        return evidence.bars_of(Study(null.model(), {"position": []}, OURS), [collected(1, 1)])[0]

    single, ten = (max(bars(measures).values()) for measures in (1, 10))
    assert single == pytest.approx(evidence._surpassed([best], 0.05, ends=True))
    assert 0.3 < single < ten


@pytest.mark.parametrize(
    ("items", "documents", "tokens", "read"),
    [
        (9000, 300, 24_000, 16),  # thirty per document: enough in the fewest documents
        (100, 200, 10_000, 128),  # one per two documents of fifty tokens: 200 documents would be needed
        (100, 100, 6_000, 100),  # one in each
        (2000, 100, 120_000, 50),  # twenty per document, of which a tenth is read
        (0, 100, 6_000, 128),
    ],
)
def test_documents_hold_a_hundred_items(items, documents, tokens, read):
    whole = collected(items, items // 2, "coreference", documents, tokens)
    assert documents_of([whole]) == read
    assert documents_of([collected(1e6, 1e6, documents=documents), whole]) == max(read, 16)


def test_strata_in_which_no_head_stands_out_are_not_knocked_out():
    behaviour, name = OURS["part-of-speech"], "relation:obj:dependent->head@one noun between"
    possible = pd.DataFrame({"measure": [name, "tag:NOUN->ADJ"]})
    names = [each.name for each in evidence._without_idle_strata(behaviour, possible).measures]
    assert names == [each.name for each in behaviour.measures if "@" not in each.name or each.name == name]
