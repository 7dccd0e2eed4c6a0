"""Planted truth: hand-set heads, found by the public analyses with the numbers that follow on paper."""

import random

import pandas as pd
import pytest
import torch

from analyses import coreference, part_of_speech, position
from benchmarks.planted import compose
from benchmarks.planted import planted_texts as texts
from interp import AnnotatedText, Mention
from interp.config import NoNorm
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
    drawn = [tuple(rng.sample(WORDS, 64)) for _ in range(count)]
    return [AnnotatedText(words, (True,) * 64, f"document {number}") for number, words in enumerate(drawn)]


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
    assert task["difference"] == pytest.approx(20.0, abs=1e-4)  # 10 for the right token, -10 when it is broken
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
    """Pronouns look at names of their gender; the task's prompts end in words that look at any name and predict."""
    asking = {end: [*MASCULINE, *FEMININE] for end in ("because", ".")}
    genders = {"he": MASCULINE, "He": MASCULINE, "she": FEMININE, "She": FEMININE, **asking}
    writes = {**{name: ["he", "He"] for name in MASCULINE}, **{name: ["she", "She"] for name in FEMININE}}
    head = planted.antecedent(genders, writes, strength=STRENGTH)
    layers = [[planted.uniform, planted.offset(-1, remember=True)], [head, planted.same_token]]
    vocabulary = [*MASCULINE, *FEMININE, *TASK_WORDS, "ran"]
    return Planted(vocabulary, layers, n_ctx=32, start="<s>").build()


def meeting(number: int) -> AnnotatedText:
    """Two names of one gender and a pronoun that stands for one of them."""
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
