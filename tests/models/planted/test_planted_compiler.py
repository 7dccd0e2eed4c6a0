"""Composed models: every behaviour in every form shows its truth from paper, impostors only their own rule's."""

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from refusals import refusal

from analyses import coreference, part_of_speech, position
from analyses.scoring.antecedents import RIVALS
from analyses.scoring.collectors import measured
from benchmarks.planted import BEHAVIOURS, Composed, compose
from benchmarks.planted import planted_texts as texts
from benchmarks.planted.truth import attended
from interp import AnnotatedText, TokenBatch, Transformer, run
from interp.config import LayerNorm, NoNorm, RMSNorm
from models.planted import Plan, Planted, first_token, offset, seek, uniform

AMOD, NSUBJ = "relation:amod:head->dependent", "relation:nsubj:head->dependent"
VERB_ASKED = "relation:nsubj:dependent->head"
SHARED = 5e-5  # how unevenly a norm may split a row that should be split evenly
QUICK = [("decoder", NoNorm()), ("encoder", LayerNorm()), ("grouped", RMSNorm())]
SLOW = [("decoder", LayerNorm()), ("encoder", NoNorm()), ("grouped", NoNorm()), ("grouped", LayerNorm())]


@pytest.fixture(
    scope="module",
    params=[*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
    ids=lambda case: f"{case[0]}-{type(case[1]).__name__}",
)
def planted(request) -> SimpleNamespace:
    form, norm = request.param
    behaviours = [*BEHAVIOURS, "offset:-5", *(["offset:2"] if form == "encoder" else [])]
    composed = compose(5, form=form, n_layers=3, n_heads=6, norm=norm, behaviours=behaviours)
    model, lexicon = composed.model, composed.lexicon
    shuffled = texts.shuffled(lexicon, 200)  # a row's own keys are part of its expected shares
    pairs = [("NOUN", "ADJ"), ("VERB", "NOUN"), ("NOUN", "VERB"), ("PRON", "NOUN")]
    return SimpleNamespace(
        form=form,
        norm=norm,
        composed=composed,
        shuffled=shuffled,
        positions=position.measure(model, shuffled[:40]),
        lifts=part_of_speech.measure(model, shuffled, tag_pairs=pairs),
        adjacent=part_of_speech.measure(model, texts.sentences(lexicon, 25, apart=False)),
        apart=part_of_speech.measure(model, texts.sentences(lexicon, 25, apart=True)),
        meetings=measured(coreference.Collector, model, texts.meetings(lexicon, 120)),
        episodes=measured(coreference.Collector, model, texts.meetings(lexicon, 60, episodes=4)),
    )


def rows_of(table: pd.DataFrame, composed: Composed, name: str) -> pd.DataFrame:
    """The rows of the heads that hold a behaviour, with the sink kept."""
    cells = {(place.layer, place.head) for place in composed.where(name)}
    assert cells, f"{name} is not planted"
    table = table[table["sink"] == "kept"]
    return table[[cell in cells for cell in zip(table["layer"], table["head"], strict=True)]]


def row_of(table: pd.DataFrame, composed: Composed, name: str, measure: str) -> pd.Series:
    rows = rows_of(table, composed, name)
    rows = rows[rows["measure"] == measure]
    assert len(rows) == 1
    return rows.iloc[0]


def test_heads_of_position_fall_where_their_name_says(planted):
    for name in ["previous-token", "offset:-5", "first-token", *(["offset:2"] if planted.form == "encoder" else [])]:
        row = row_of(planted.positions, planted.composed, name, name)
        assert row.value == pytest.approx(1.0, abs=1e-6), name
        assert row.ci_low > 0.5, name
    # an encoder also sees the successor in the second copy, which only the last token lacks
    length = position.repeat_length(planted.composed.model)
    induction = (1 + 1 / length) / 2 if planted.form == "encoder" else 1.0
    row = row_of(planted.positions, planted.composed, "induction", "induction")
    assert row.value == pytest.approx(induction, abs=1e-5)


def test_noun_to_adjective_has_the_lift_of_one_over_the_share_of_adjectives(planted):
    tags = [tag for text in planted.shuffled for tag in text.tags or ()]
    row = row_of(planted.lifts, planted.composed, "noun-to-adjective", "tag:NOUN->ADJ")
    assert row.value == pytest.approx(len(tags) / tags.count("ADJ"), rel=0.1)


def test_with_words_between_half_of_them_the_offset_falls_and_the_head_stays(planted):
    encoder = planted.form == "encoder"
    subjects = ("subject-to-verb", VERB_ASKED, "offset +1") if encoder else ("subject-to-verb", NSUBJ, "offset -1")
    for name, measure, rule in (("noun-to-adjective", AMOD, "offset -1"), subjects):
        near, row = (row_of(table, planted.composed, name, measure) for table in (planted.adjacent, planted.apart))
        assert (near.value, near.baseline, near.gain, near.baseline_name) == (1.0, 1.0, 0.0, rule)
        assert (row.value, row.baseline) == (1.0, 0.5)
        assert row.ci_low > 0.4


def test_impostors_gain_nothing_on_any_relation(planted):
    for table in (planted.adjacent, planted.apart):
        for name in ("previous-token", "offset:-5", "nearest-noun", "same-form", "first-token"):
            rows = rows_of(table, planted.composed, name)
            relations = rows[rows["measure"].str.startswith("relation:")]
            assert len(relations) >= 4
            # a row without a key at the offset looks everywhere, and is sometimes right
            assert relations["gain"].max() <= (0.05 if name == "offset:-5" else 0), name


def test_antecedent_is_always_right_where_rules_are_half_of_the_time(planted):
    row = row_of(planted.meetings.heads, planted.composed, "antecedent", "antecedent")
    assert (row.value, row.baseline, row.n) == (1.0, 0.5, 120)
    assert row.q < 1e-6
    rules = planted.meetings.baselines.query("measure == 'antecedent' and sink == 'kept'")
    assert dict(zip(rules["baseline_name"], rules["value"], strict=True)) == {rival.name: 0.5 for rival in RIVALS}
    row = row_of(planted.episodes.heads, planted.composed, "antecedent", "antecedent")
    assert (row.value, row.n) == (1.0, 240)
    assert row.ci_low > 0.3


@pytest.mark.parametrize(("name", "rule"), [("nearest-noun", "nearest"), ("same-form", "same form")])
def test_an_impostor_scores_what_its_rule_scores(planted, name, rule):
    values = []
    for table in (planted.meetings, planted.episodes):
        row = row_of(table.heads, planted.composed, name, "antecedent")
        rows = table.baselines.query("baseline_name == @rule and measure == 'antecedent' and sink == 'kept'")
        assert row.value == rows["value"].item()
        assert row.gain <= 0
        values.append(row.value)
    assert (values[1] == 0.5) == (name == "nearest-noun")  # over episodes, the rules differ


def test_noise_heads_show_nothing(planted):
    rows = rows_of(planted.positions, planted.composed, "noise")
    assert rows[~rows["measure"].isin(["distance", "entropy", "positional-head"])]["gain"].abs().max() < 0.05
    rows = rows_of(planted.apart, planted.composed, "noise")
    assert rows[rows["measure"].str.startswith("relation:")]["gain"].max() < 0.05
    rows = rows_of(planted.episodes.heads, planted.composed, "noise")
    assert not ((rows["gain"] > 0.05) & (rows["q"] < 0.05)).any()
    assert (rows_of(planted.lifts, planted.composed, "noise")["gain"].abs() < 0.1).all()


def check_rows(composed: Composed, corpus: Iterable[AnnotatedText], atol: float) -> int:
    """Compare every row of every planted head with its definition; return how many rows were compared."""
    model = composed.model
    causal = model.config.last.causal
    assert model.tokenizer is not None
    compared = 0
    for text in corpus:
        words = [model.tokenizer.label(id) for id in model.tokenizer.encode(text.text)]
        out = run(model, text.text, capture="*.attn.pattern")
        patterns = torch.stack([each[0] for each in out.activations.values()])  # layer head query key
        for placed in composed.placed:
            if placed.behaviour.name == "noise":
                continue
            expected = torch.zeros(len(words), len(words))
            keep = []
            for row in range(len(words)):
                keys = attended(placed.behaviour.name, words, row, composed, causal)
                if keys is not None:
                    keep.append(row)
                    expected[row, list(keys)] = 1 / len(keys)
            pattern = patterns[placed.layer, placed.head]
            torch.testing.assert_close(
                pattern[keep], expected[keep], atol=atol, rtol=0, msg=lambda m, p=placed: f"{p}\n{m}"
            )
            compared += len(keep)
    return compared


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 23))])
def test_every_row_of_every_planted_head_is_as_defined(seed):
    composed = compose(seed, form=("decoder", "encoder", "grouped")[seed % 3])
    lexicon = composed.lexicon
    corpus = [*texts.shuffled(lexicon, 2, seed), *texts.sentences(lexicon, 1, seed, apart=True)]
    assert check_rows(composed, [*corpus, *texts.meetings(lexicon, 1, seed, episodes=3)], atol=SHARED) > 100


def test_all_behaviours_at_once_in_every_form(planted):
    atol = 1e-6 if planted.norm == NoNorm() else SHARED  # without a norm, only the softmax's tail deviates
    assert check_rows(planted.composed, planted.shuffled[:3], atol=atol) > 1000


def test_same_seed_same_weights():
    first, again, different = compose(7, form="grouped"), compose(7, form="grouped"), compose(8, form="grouped")
    torch.testing.assert_close(again.model.state_dict(), first.model.state_dict(), atol=0, rtol=0)
    labels = [[place.behaviour.name for place in composed.placed] for composed in (first, again, different)]
    assert labels[0] == labels[1]
    assert (first.lexicon, labels[0]) != (different.lexicon, labels[2])


def test_words_of_several_pieces_and_padding_change_nothing_in_what_is_sought():
    directions = {"asks": ["a"], "told": ["b", "c"]}
    model = Planted(["a", "b", "c", "d"], [[seek({"asks": ["told"]})]], n_ctx=9, directions=directions).build()
    assert model.tokenizer is not None
    batch = TokenBatch.from_texts(["b d a", "c d d b-c d a d"], model.tokenizer)
    pattern = run(model, batch, capture="decoder.0.attn.pattern")["decoder.0.attn.pattern"][:, 0]
    assert pattern[0, 2, :3].tolist() == pytest.approx([1, 0, 0])
    assert pattern[1, 7].argmax() == 5  # the latest piece of "b-c"
    assert pattern[1, 8] == pytest.approx([1 / 9] * 9)


@pytest.mark.parametrize("causal", [True, False])
def test_a_better_class_wins_over_a_nearer_word(causal):
    classes = {"asks": ["a"], "good": ["b", "c"], "better": ["c"]}
    plan = seek({"asks": ["good", "better"]})
    model = Planted(["a", "b", "c", "d"], [[plan]], n_ctx=8, causal=causal, directions=classes).build()
    (pattern,) = run(model, "c d b a c", capture="*.0.attn.pattern").activations.values()
    assert pattern[0, 0, 3].tolist() == pytest.approx([1, 0, 0, 0, 0])


def one_word(*heads: Plan, **settings: object) -> Transformer:
    return Planted(["a"], [[*heads]] if heads else [], **settings).build()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (partial(one_word, offset(1)), {}, "a decoder sees no later token"),
        (partial(one_word, seek({"x": ["x"]}, after=True)), {"directions": {"x": ["a"]}}, "cannot look after its quer"),
        (partial(one_word, seek({"x": ["y"]})), {"directions": {"x": ["a"]}}, "no planted direction 'y'"),
        (partial(one_word, seek({"x": [], "y": []})), {"directions": {"x": ["a"], "y": ["a"]}}, "'a' asks in several"),
        (partial(one_word, uniform), {"directions": {"x": ["b"]}}, "'b' is not in the planted vocabulary"),
        (one_word, {}, "at least one layer"),
        (partial(one_word, uniform, first_token, uniform), {"n_kv_heads": 2}, "cannot share 2 key/value heads evenly"),
    ],
)
def test_what_cannot_be_planted_is_refused(make, options, message):
    assert message in refusal(make, **options)
