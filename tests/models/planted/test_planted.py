"""Planted truth: hand-set heads, found by the public analyses with the numbers that follow on paper."""

import random

import pandas as pd
import pytest
import torch

from analyses import coreference, part_of_speech, position
from analyses.reading.collectors import measured
from benchmarks.planted import compose
from benchmarks.planted import planted_texts as texts
from interp import AnnotatedText, Mention, TokenBatch, run, zero
from interp.config import NoNorm
from interp.errors import InputWarning
from interp.patching import Pairs, logit_difference, sweep
from models import planted
from models.planted import Planted
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES

WORDS = [f"w{number}" for number in range(80)]


def only(table: pd.DataFrame, **where: object) -> pd.Series:
    """The one row in which every named column has the given value."""
    found = table[[all(row[key] == value for key, value in where.items()) for _, row in table.iterrows()]]
    assert len(found) == 1, f"{len(found)} rows where {where}"
    return found.iloc[0]


def plain_texts(count: int, length: int = 64, seed: int = 0) -> list[AnnotatedText]:
    rng = random.Random(seed)
    drawn = [tuple(rng.sample(WORDS, length)) for _ in range(count)]
    return [AnnotatedText(words, (True,) * length, f"document {number}") for number, words in enumerate(drawn)]


@pytest.fixture(scope="module")
def positional_model():
    layers = [
        [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform, planted.first_token],
        [planted.same_token, planted.induction(10.0), planted.uniform, planted.offset(-2)],
    ]
    return Planted(WORDS, layers, n_ctx=110, start="<s>").build()


@pytest.fixture(scope="module")
def positions(positional_model):
    return position.measure(positional_model, plain_texts(30))


class TestPositions:
    """Truths 1 and 2: previous token, offsets, first token, uniform."""

    def test_uniform_head_has_the_values_of_uniform_attention(self):
        model = Planted(WORDS, [[planted.uniform]], n_ctx=64).build()
        table = position.measure(model, plain_texts(5))
        harmonic = sum(1 / k for k in range(1, 65))
        for measure, expected in [("previous-token", (harmonic - 1) / 63), ("entropy", 1.0), ("distance", 15.75)]:
            row = only(table, measure=measure, sink="kept")
            assert row.value == pytest.approx(expected, abs=1e-5)
            assert row.gain == pytest.approx(0, abs=1e-6)

    def test_first_token_head_is_missing_once_the_sink_is_removed(self, positions):
        kept = only(positions, layer=0, head=3, measure="first-token", sink="kept")
        assert kept.value == pytest.approx(1.0, abs=1e-6)
        assert only(positions, layer=0, head=3, measure="entropy", sink="kept").value == pytest.approx(0, abs=1e-6)
        removed = positions[(positions.layer == 0) & (positions["head"] == 3) & (positions.sink == "removed")]
        assert removed.value.isna().all()
        assert (removed.n == 0).all()

    def test_fixed_offsets_are_positional_heads_and_uniform_is_not(self, positions):
        share = positions[positions.measure == "positional-head"].set_index(["layer", "head"])
        assert share.value[0, 0] > 0.95
        assert share.value[0, 2] < 0.2
        assert share.baseline.between(0, 0.5).all()


class TestInduction:
    """Truth 3: copies on random repeats."""

    def test_two_layer_composition_is_found_as_induction(self, positions):
        row = only(positions, layer=1, head=1, measure="induction")
        assert row.value == pytest.approx(1.0, abs=1e-6)
        assert row.ci_low > 0.9
        others = positions[(positions.measure == "induction") & ~((positions.layer == 1) & (positions["head"] == 1))]
        assert others.value.max() < 0.1

    def test_both_heads_of_the_composition_carry_the_copy_and_no_other(self, positional_model):
        tested = position.effects(positional_model)
        effects, (task,) = tested.table, tested.tasks
        assert task["copying"] == 1.0
        assert task["difference"] == pytest.approx(20.0, abs=1e-4)  # 10 for the right token, -10 when it is broken
        carrying = {(0, 0), (1, 1)}
        for _, row in effects.iterrows():
            expected = 1.0 if (row.layer, row["head"]) in carrying else 0.0
            assert row.effect == pytest.approx(expected, abs=1e-5), row

    def test_without_the_previous_token_head_copying_is_chance(self, positional_model):
        ids = position.repeated(positional_model, 20, 20, seed=1)[:, :-1]
        whole = run(positional_model, ids).logits
        ablated = run(positional_model, ids, edit={"decoder.0.attn.z": zero(head=0)}).logits
        right = position.repeated(positional_model, 20, 20, seed=1)[:, 22:]
        asked = slice(21, None)  # the second copy, each token asked for the next
        assert (whole[:, asked].argmax(-1) == right).all()
        # the induction head then looks at all it sees alike: one token of twenty at most is right by chance
        assert (ablated[:, asked].argmax(-1) == right).float().mean() <= 1 / 20


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


def meeting(first: str, second: str, pronoun: str, antecedent: int, number: int) -> AnnotatedText:
    """Two names and a pronoun that stands for one of them."""
    words = (first, "saw", second, ".", pronoun, "ran")
    chains = ["a", "b"]
    mentions = (Mention(0, 1, 0, "a"), Mention(2, 3, 2, "b"), Mention(4, 5, 4, chains[antecedent]))
    return AnnotatedText(words, (True,) * 6, f"document {number}", mentions=mentions)


class TestAntecedent:
    """Truth 4: reference by gender."""

    def test_selects_every_antecedent_where_nearest_and_first_find_half(self, reference_model):
        rng = random.Random(0)
        texts = []
        for number in range(80):
            he, she, antecedent = rng.choice(MASCULINE), rng.choice(FEMININE), number % 2
            pronoun = ["He", "She"][number // 2 % 2]
            mine, other = (he, she) if pronoun == "He" else (she, he)
            texts.append(meeting(*((mine, other) if antecedent == 0 else (other, mine)), pronoun, antecedent, number))
        found = measured(coreference.Collector(reference_model), reference_model, texts)
        table, baselines = found.heads, found.baselines
        row = only(table, layer=1, head=0, measure="antecedent", sink="kept")
        assert (row.value, row.n) == (1.0, 80)
        assert row.q < 1e-6
        for name in ("nearest", "first"):
            assert only(baselines, baseline_name=name, measure="antecedent", sink="kept").value == 0.5
        silent = only(table, layer=0, head=0, measure="antecedent", sink="kept")
        assert silent.gain <= 0

    def test_cannot_choose_between_names_of_one_gender(self, reference_model):
        texts = [meeting(*random.Random(n).sample(MASCULINE, 2), "He", n % 2, n) for n in range(40)]
        row = only(coreference.measure(reference_model, texts), layer=1, head=0, measure="antecedent-mass", sink="kept")
        assert row.value == pytest.approx(0.5, abs=1e-6)

    @pytest.mark.parametrize("direction", ["denoise", "noise"])
    def test_patching_finds_the_head_both_ways_and_nothing_elsewhere(self, reference_model, direction):
        pairs = Pairs.from_texts(reference_model, ["Tim was sad because"], ["Amy was sad because"], [" he"], [" she"])
        shares = sweep(reference_model, pairs, logit_difference(), direction=direction).recovered()
        expected = torch.zeros_like(shares)
        expected[1, 0] = 1.0
        torch.testing.assert_close(shares, expected, atol=1e-5, rtol=0)

    def test_of_one_person_a_head_that_looks_nowhere_tells_he_from_she_too(self, reference_model):
        task = {each["task"]: each for each in coreference.effects(reference_model).tasks}["name-gender"]
        assert task["clean"] == pytest.approx(STRENGTH, abs=1e-4)
        assert task["neutral"] == pytest.approx(0, abs=1e-4)
        assert "a copy of it whose heads look elsewhere" in task["refused"]

    def test_names_of_one_gender_make_no_difference_and_shares_are_refused(self, reference_model):
        from interp.patching import sweep_by_forward

        pairs = Pairs.from_texts(reference_model, ["Tim was sad because"], ["Tom was sad because"], [" he"], [" she"])
        found = sweep_by_forward(reference_model, pairs, logit_difference())
        assert found.difference().abs().max() == 0
        with pytest.warns(InputWarning, match="too little"):
            assert found.recovered().isnan().all()


# Grammar: every noun has one adjective, somewhere before it.

NOUNS, ADJECTIVES, ADVERBS = ["cat", "dog", "hat-box", "cup"], ["big", "red-dish", "old"], ["very", "quite"]


def phrase(rng: random.Random, adverb: bool) -> tuple[list[str], list[str], list[int], list[str]]:
    """ "the big [very] cat ran": words, tags, heads and relations; the adverb stands between adjective and noun."""
    adjective, noun = rng.choice(ADJECTIVES), rng.choice(NOUNS)
    between = [rng.choice(ADVERBS)] if adverb else []
    words = ["the", adjective, *between, noun, "ran"]
    at = 2 + len(between)
    tags = ["DET", "ADJ", *["ADV"] * len(between), "NOUN", "VERB"]
    relations = ["det", "amod", *["advmod"] * len(between), "nsubj", "root"]
    return words, tags, [at, at, *[1] * len(between), at + 1, -1], relations


def grammar(count: int, adverbs: bool, phrases: int = 6) -> list[AnnotatedText]:
    rng = random.Random(0)
    texts = []
    for number in range(count):
        words, tags, heads, relations = [], [], [], []
        for which in range(phrases):
            found = phrase(rng, adverbs and which % 2 == 0)
            heads += [head + len(words) if head >= 0 else head for head in found[2]]
            words += found[0]
            tags += found[1]
            relations += found[3]
        texts.append(
            AnnotatedText(
                tuple(words),
                (True,) * len(words),
                f"document {number}",
                tags=tuple(tags),
                heads=tuple(heads),
                relations=tuple(relations),
            )
        )
    return texts


def grammar_model(*, causal: bool):
    noun_pieces = [piece for noun in NOUNS for piece in ([noun] if "-" not in noun else [*noun.split("-"), "-"])]
    adjective_pieces = [piece for word in ADJECTIVES for piece in word.replace("-", " - ").split()]
    vocabulary = dict.fromkeys(["the", "ran", *noun_pieces, *adjective_pieces, *ADVERBS, "-"])
    nouns = [piece for piece in noun_pieces if piece != "-"]
    adjectives = [piece for piece in adjective_pieces if piece != "-"]
    layers = [[planted.word_to_word([*nouns, "-"], adjectives), planted.uniform, planted.offset(-1)]]
    return Planted(list(vocabulary), layers, n_ctx=64, causal=causal, start="<s>").build()


AMOD = "relation:amod:head->dependent"


class TestGrammar:
    """Truth 8: tags and relations, with words of several pieces."""

    def test_with_adverbs_between_half_of_them_the_offset_falls_and_the_head_stays(self):
        table = part_of_speech.measure(grammar_model(causal=True), grammar(25, adverbs=True))
        row = only(table, head=0, measure=AMOD, sink="kept")
        assert (row.value, row.baseline) == (1.0, 0.5)
        assert row.ci_low > 0.4
        assert only(table, head=2, measure=AMOD, sink="kept").gain <= 0

    @pytest.mark.parametrize("causal", [True, False])
    def test_uniform_head_and_offset_head_have_lift_one(self, causal):
        table = part_of_speech.measure(grammar_model(causal=causal), grammar(40, adverbs=True))
        lifts = table[table.measure.str.startswith("tag:") & (table.sink == "kept") & (table["head"] == 1)]
        assert len(lifts) > 4
        assert (lifts.value - 1).abs().max() < 1e-4
        assert (lifts.ci_low.abs() < 1e-3).all()


OFFSETS = ("previous-token", "offset:-2", "offset:-3", "offset:-4")


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def offset_heads(request):
    """Heads that follow position and nothing else."""
    return compose(3, form=request.param, n_layers=1, n_heads=4, norm=NoNorm(), behaviours=OFFSETS)


@pytest.mark.parametrize("text", ["adjacent", "apart", "meetings", "episodes", "shuffled"])
def test_a_head_at_a_fixed_offset_prefers_no_tag(offset_heads, text):
    lexicon = offset_heads.lexicon
    corpus = {
        "adjacent": lambda: texts.sentences(lexicon, 30, apart=False),
        "apart": lambda: texts.sentences(lexicon, 60, apart=True),
        "meetings": lambda: texts.meetings(lexicon, 80),
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


class TestWordsAndPadding:
    """Truth 10: pieces of words, and padding."""

    def test_pooled_rows_still_add_up_to_one(self):
        from interp.patterns import membership, pool

        generator = torch.Generator().manual_seed(0)
        pattern = torch.rand(2, 3, 12, 12, generator=generator).softmax(-1)
        words = membership([[0, 0, 1, 2, 2, 2, 3, 3, 3, 4, 5, 5]] * 2, 6, 12)
        torch.testing.assert_close(pool(pattern, words, words).sum(-1), torch.ones(2, 3, 6), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_on_either_side_changes_nothing_and_gets_no_attention(self, positional_model, side):
        rows = [list(range(2, 30)), list(range(30, 40))]
        batch = TokenBatch.from_rows(rows, side=side)
        out = run(positional_model, batch, capture="decoder.*.attn.pattern")
        for number, row in enumerate(rows):
            alone = run(positional_model, torch.tensor([row])).logits
            torch.testing.assert_close(out.logits[number][batch.mask[number]], alone[0], atol=1e-6, rtol=0)
            for pattern in out.activations.values():
                real = batch.mask[number]
                to_padding = pattern[number][:, real][..., ~real]
                assert to_padding.sum() == 0
