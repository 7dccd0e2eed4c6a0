"""Planted truth: public analyses find hand-set heads, with the numbers that follow on paper."""

import random

import pandas as pd
import pytest
import torch

from analyses import coreference, part_of_speech, position
from analyses.labels import label
from analyses.measures.head_tables import Heads
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect
from benchmarks.planted import compose
from benchmarks.planted import planted_texts as texts
from interp import AnnotatedText, Mention
from interp.config import LayerNorm, NoNorm, RMSNorm
from interp.patching import Pairs, logit_difference, sweep
from models import planted
from models.planted import Planted
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES

WORDS = [f"w{number}" for number in range(80)]


def only(table: pd.DataFrame, **where: object) -> pd.Series:
    rows = table[(table[[*where]] == pd.Series(where)).all(axis=1)]
    assert len(rows) == 1, f"{len(rows)} rows where {where}"
    return rows.iloc[0]


def plain_texts(count: int) -> list[AnnotatedText]:
    rng = random.Random(0)
    rows = [tuple(rng.sample(WORDS, 64)) for _ in range(count)]
    return [AnnotatedText(words, (True,) * 64, f"document {number}") for number, words in enumerate(rows)]


def test_a_uniform_head_has_the_values_of_uniform_attention():
    model = Planted(WORDS, [[planted.uniform]], n_ctx=64).build()
    table = position.measure(model, plain_texts(5))
    harmonic = sum(1 / k for k in range(1, 65))
    for measure, expected in [("previous-token", (harmonic - 1) / 63), ("entropy", 1.0), ("distance", 15.75)]:
        row = only(table, measure=measure, sink="kept")
        assert row.value == pytest.approx(expected, abs=1e-5)
        assert row.gain == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def positional_model():
    layers = [
        [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform, planted.first_token],
        [planted.same_token, planted.induction(10.0), planted.uniform, planted.offset(-2)],
    ]
    return Planted(WORDS, layers, n_ctx=110, start="<s>").build()


def test_fixed_offsets_are_positional_and_a_sink_is_missing_once_it_is_removed(positional_model):
    table = position.measure(positional_model, plain_texts(12))
    first = table[(table.layer == 0) & (table["head"] == 3)]
    assert only(first, measure="first-token", sink="kept").value == pytest.approx(1.0, abs=1e-6)
    assert only(first, measure="entropy", sink="kept").value == pytest.approx(0, abs=1e-6)
    removed = first[first.sink == "removed"]
    assert removed.value.isna().all()
    assert (removed.n == 0).all()
    share = table[table.measure == "positional-head"].set_index(["layer", "head"])
    assert share.value[0, 0] > 0.95
    assert share.value[0, 2] < 0.2
    assert share.baseline.between(0, 0.5).all()


def test_both_heads_of_induction_carry_the_copy_and_no_other(positional_model):
    tested = position.effects(positional_model, pairs=8)
    effects, (task,) = tested.table, tested.tasks
    assert task["copying"] == 1.0
    assert task["difference"] == pytest.approx(20.0, abs=1e-4)  # 10 with the repeat, -10 when it is broken
    for _, row in effects.iterrows():
        expected = 1.0 if (row.layer, row["head"]) in {(0, 0), (1, 1)} else 0.0
        assert row.effect == pytest.approx(expected, abs=1e-5), row


MASCULINE, FEMININE = list(MASCULINE_NAMES), list(FEMININE_NAMES)
TASK_WORDS = [
    *["was", "happy", "because", "sad", "lost", "the", "ball", "in", "park", ".", "had", "a", "big", "dog"],
    *["saw", "The", "child", "he", "she", "He", "She"],
]
STRENGTH = 3.0


@pytest.fixture(scope="module")
def reference_model():
    """Pronouns look at names of their gender; the last words of the task's prompts look at any name and predict."""
    asking = {end: [*MASCULINE, *FEMININE] for end in ("because", ".")}
    genders = {"he": MASCULINE, "He": MASCULINE, "she": FEMININE, "She": FEMININE, **asking}
    writes = {**{name: ["he", "He"] for name in MASCULINE}, **{name: ["she", "She"] for name in FEMININE}}
    head = planted.antecedent(genders, writes, strength=STRENGTH)
    layers = [[planted.uniform, planted.offset(-1, remember=True)], [head, planted.same_token]]
    return Planted([*MASCULINE, *FEMININE, *TASK_WORDS, "ran"], layers, n_ctx=32, start="<s>").build()


def meeting(number: int) -> AnnotatedText:
    """Two names of one gender, and a pronoun for one of them."""
    first, second = random.Random(number).sample(MASCULINE, 2)
    words, chain = (first, "saw", second, ".", "He", "ran"), "ab"[number % 2]
    mentions = (Mention(0, 1, 0, "a"), Mention(2, 3, 2, "b"), Mention(4, 5, 4, chain))
    return AnnotatedText(words, (True,) * 6, f"document {number}", mentions=mentions)


def test_gender_cannot_choose_between_names_of_one(reference_model):
    table = coreference.measure(reference_model, [meeting(number) for number in range(40)])
    row = only(table, layer=1, head=0, measure="antecedent-mass", sink="kept")
    assert row.value == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_patching_finds_the_head_of_reference_both_ways_and_nothing_elsewhere(reference_model, direction):
    pairs = Pairs.from_texts(reference_model, ["Tim was sad because"], ["Amy was sad because"], [" he"], [" she"])
    shares = sweep(reference_model, pairs, logit_difference(), direction=direction).share()
    expected = torch.zeros_like(shares)
    expected[1, 0] = 1.0
    torch.testing.assert_close(shares, expected, atol=1e-5, rtol=0)


def test_of_one_person_a_head_that_looks_nowhere_tells_he_from_she_too(reference_model):
    task = {each["task"]: each for each in coreference.effects(reference_model).tasks}["name-gender"]
    assert task["clean"] == pytest.approx(STRENGTH, abs=1e-4)
    assert task["neutral"] == pytest.approx(0, abs=1e-4)
    assert "a copy of it whose heads look elsewhere" in task["refused"]


OFFSETS = ("previous-token", "offset:-2", "offset:-3", "offset:-4")


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def offset_heads(request):
    return compose(3, form=request.param, n_layers=1, n_heads=4, norm=NoNorm(), behaviours=OFFSETS)


@pytest.mark.parametrize("text", ["apart", "episodes", "shuffled"])
def test_a_head_at_a_fixed_offset_prefers_no_tag(offset_heads, text):
    lexicon = offset_heads.lexicon
    corpus = {
        "apart": lambda: texts.sentences(lexicon, 60, apart=True),
        "episodes": lambda: texts.meetings(lexicon, 40, episodes=4),
        "shuffled": lambda: texts.shuffled(lexicon, 200),
    }[text]()
    table = part_of_speech.measure(offset_heads.model, corpus)
    cells = [(each.layer, each.head) for name in OFFSETS for each in offset_heads.where(name)]
    assert len(cells) == len(OFFSETS)
    lifts = table[table["measure"].str.startswith("tag:") & table["value"].notna()]
    lifts = lifts[[cell in cells for cell in zip(lifts["layer"], lifts["head"], strict=True)]]
    assert len(lifts) >= 12
    off = lifts[(lifts["value"] - 1).abs() > 0.03]
    assert ((off["ci_low"] <= 0) & (off["ci_high"] >= 0)).all(), off[["measure", "sink", "head", "value"]].to_string()


# An encoder-decoder: each kind of attention is found in its own rows.

NOUNS, ADJECTIVES, VERBS = ["cat", "dog", "bird"], ["red", "big", "old"], ["saw", "met"]


def clauses(count: int = 24) -> list[AnnotatedText]:
    """Texts of four times an adjective, its noun, and a verb."""
    rng, texts = random.Random(0), []
    heads, relations = (1, -1, -1, 4, -1, -1, 7, -1, -1, 10, -1, -1), ("amod", "root", "root") * 4
    for number in range(count):
        words = tuple(rng.choice(kind) for _ in range(4) for kind in (ADJECTIVES, NOUNS, VERBS))
        texts.append(AnnotatedText(words, (True,) * 12, f"d{number}", ("ADJ", "NOUN", "VERB") * 4, heads, relations))
    return texts


@pytest.fixture(scope="module", params=[NoNorm(), LayerNorm(), RMSNorm()], ids=["no norm", "LayerNorm", "RMSNorm"])
def crossing_model(request):
    return Planted(
        [*NOUNS, *ADJECTIVES, *VERBS],
        layers=[[planted.offset(-1), planted.offset(-2)]],
        encoding=[[planted.offset(1), planted.word_to_word(NOUNS, ADJECTIVES)]],
        crossing=[[planted.offset(0), planted.first_token, planted.uniform]],
        n_ctx=32,
        start="<s>",
        norm=request.param,
    ).build()


def table(model, heads: Heads, collector=position.Collector, **how: object):
    (rows,) = collect(Reading(model, clauses(), heads=heads), [collector(model, heads=heads, **how)])
    return rows.table()


def value(table: pd.DataFrame, head: int, measure: str) -> float:
    return only(table, head=head, measure=measure, sink="kept").value


def test_each_kind_of_attention_is_named_and_has_its_paper_values(crossing_model):
    *stacks, crossing = Heads.kinds_of(crossing_model)
    encoder, decoder = (table(crossing_model, heads, n_untrained=0) for heads in stacks)
    crossing = table(crossing_model, crossing, position.CrossingCollector)
    assert value(encoder, 0, "next-token") == pytest.approx(1, abs=1e-3)
    assert set(encoder["stack"]) == {"encoder"}
    assert value(decoder, 0, "previous-token") == pytest.approx(1, abs=1e-3)
    assert value(decoder, 1, "offset:-2") == pytest.approx(1, abs=1e-3)
    assert (set(decoder["stack"]), set(decoder["attention"])) == ({"decoder"}, {"self"})
    assert (set(crossing["stack"]), set(crossing["attention"])) == ({"decoder"}, {"cross"})
    # both texts are <s> and twelve words, so the head at its own position follows the diagonal
    assert value(crossing, 0, "monotonicity") == pytest.approx(1)
    assert value(crossing, 0, "diagonal") == pytest.approx(0, abs=1e-3)
    assert value(crossing, 0, "entropy") == pytest.approx(0, abs=1e-3)
    assert value(crossing, 1, "first-token") == pytest.approx(1, abs=1e-3)
    assert value(crossing, 2, "entropy") == pytest.approx(1, abs=1e-3)
    assert value(crossing, 2, "first-token") == pytest.approx(1 / 13, abs=1e-3)


def test_syntax_is_found_in_the_encoder_alone(crossing_model):
    # in the decoder, a verb is two back; only the first of four nouns sees just its adjective
    for heads, expected in zip(Heads.kinds_of(crossing_model), (1, 1 / 4), strict=False):
        rows = table(crossing_model, heads, part_of_speech.Collector, relations=["amod"], tag_pairs=[("NOUN", "ADJ")])
        assert value(rows, 1, "relation:amod:head->dependent") == pytest.approx(expected)


def test_labels_say_in_which_attention_a_head_stands(crossing_model):
    labels = label(crossing_model, {"position": clauses(40)})
    where = labels.labels[["stack", "attention", "head", "label"]].itertuples(index=False, name=None)
    assert {
        ("encoder", "self", 0, "next-token"),
        ("decoder", "self", 0, "previous-token"),
        ("decoder", "self", 1, "offset:-2"),
        ("decoder", "cross", 0, "monotonicity"),
        ("decoder", "cross", 1, "first-token"),
    } <= {*where}
    assert {*labels.labels["evidence"]} == {"attention"}
    assert "models of one stack" in labels.left_out["position"]
