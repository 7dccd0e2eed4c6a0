"""The table of probes: planted models whose layers are known, the items that are asked, and what is refused."""

import random
from dataclasses import replace

import pandas as pd
import pytest
import torch

from analyses import probes
from analyses.corpora import read
from analyses.figures.probes import probes_by_layer
from analyses.probe_items import choose
from analyses.probe_items import read as read_vectors
from interp import AnnotatedText, InputError, Mention, run
from models import load, planted
from models.planted import Planted

BEFORE = {"the": "DET", "they": "PRON"}
BOTH = [f"both{at}" for at in range(6)]  # a noun after "the", a verb after "they"
NOUNS, VERBS = [f"noun{at}" for at in range(6)], [f"verb{at}" for at in range(6)]
WORDS = [*BEFORE, *BOTH, *NOUNS, *VERBS]


def tagged(count: int, seed: int = 0) -> list[AnnotatedText]:
    """Documents of twelve words in pairs: "the" and a noun, "they" and a verb."""
    rng = random.Random(seed)
    texts = []
    for number in range(count):
        words, tags = [], []
        for _ in range(6):
            before = rng.choice([*BEFORE])
            words += [before, rng.choice([*BOTH, *(NOUNS if before == "the" else VERBS)])]
            tags += [BEFORE[before], "NOUN" if before == "the" else "VERB"]
        texts.append(AnnotatedText(tuple(words), (True,) * 12, f"document {number}", tags=tuple(tags)))
    return texts


def model(heads: int = 1):
    return Planted(WORDS, [[planted.offset(-1, remember=True)] * heads, [planted.uniform] * heads], n_ctx=24).build()


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return probes.measure(model(), tagged(120))


def stream(table: pd.DataFrame, task: str = "tag") -> pd.DataFrame:
    return table[(table.task == task) & table["head"].isna()].set_index("depth")


class TestPlantedTruth:
    def test_the_word_before_is_needed_for_the_words_that_are_both(self, table):
        rows = stream(table)
        assert rows.ambiguous_n[0] > 50
        assert rows.ambiguous_accuracy[0] == pytest.approx(0.5, abs=0.1)
        assert rows.ambiguous_baseline[0] == pytest.approx(0.5, abs=0.1)
        assert rows.ambiguous_accuracy[1] == rows.ambiguous_accuracy[2] == 1.0
        assert rows.accuracy[1] == 1.0
        assert rows.accuracy[0] == pytest.approx(rows.baseline[0], abs=0.03)
        assert rows.baseline_name[0] == "most frequent of the type"

    def test_word_identity_is_not_selective(self, table):
        first = stream(table).loc[0]  # the embedding says which word stands here and nothing else
        assert first.control_accuracy == 1.0
        assert first.selectivity < 0
        assert first.ci_low <= first.selectivity <= first.ci_high < 0

    def test_the_expected_layer_is_the_one_that_brings_the_word_before(self, table):
        depths = probes.depths(table).set_index("measure")
        assert depths.value["expected layer"] == pytest.approx(1.0, abs=0.02)
        assert depths.ci_low["expected layer"] <= 1.0 <= depths.ci_high["expected layer"]
        assert depths.value["centre of gravity"] > 0.5

    def test_one_row_a_site_in_the_shared_columns(self, table):
        assert [*table.columns] == probes.LAYER_COLUMNS
        assert [*zip(table.site, table.layer, table.depth, strict=True)] == [
            *[("resid_pre", 0, 0), ("resid_post", 0, 1), ("resid_post", 1, 2), ("attn.z", 0, 1), ("attn.z", 1, 2)],
        ]
        assert (table.selectivity == table.accuracy - table.control_accuracy).all()
        assert table.untrained_accuracy.between(0, 1).all()

    def test_nothing_gained_has_no_expected_layer(self):
        silent = Planted(WORDS, [[planted.uniform], [planted.uniform]], n_ctx=24).build()
        rows = probes.depths(probes.measure(silent, tagged(60))).set_index("measure")
        assert rows.loc["expected layer", ["value", "ci_low", "ci_high"]].isna().all()


PEOPLE = ["Tim", "Tom", "Sue", "Ann"]
PRONOUNS = {"he": ("Tim", "Tom"), "she": ("Sue", "Ann")}
TALE = [*PEOPLE, *PRONOUNS, "saw", "and", "ran", "met"]


def referring(count: int, seed: int = 0) -> list[AnnotatedText]:
    """A man and a woman in either order, and a pronoun for one of them."""
    rng = random.Random(seed)
    texts = []
    for number in range(count):
        pronoun = rng.choice([*PRONOUNS])
        own, other = rng.choice(PRONOUNS[pronoun]), rng.choice(PRONOUNS["she" if pronoun == "he" else "he"])
        names = [own, other]
        rng.shuffle(names)
        words = (names[0], rng.choice(["saw", "met"]), names[1], "and", pronoun, "ran")
        at = 2 * names.index(own)
        mentions = (Mention(at, at + 1, at, "a"), Mention(2 - at, 3 - at, 2 - at, "b"), Mention(4, 5, 4, "a"))
        texts.append(AnnotatedText(words, (True,) * 6, f"tale {number}", mentions=mentions))
    return texts


class TestEdges:
    def test_a_pronoun_that_fetches_its_name_is_read_and_no_name_alone(self):
        head = planted.antecedent(PRONOUNS, {name: [name] for name in PEOPLE})
        tale = Planted(TALE, [[head]], n_ctx=12).build()
        rows = stream(probes.measure(tale, referring(400)), "coreference")
        assert rows.n[0] > 150
        assert rows.accuracy[1] == 1.0
        # eight pairs of pronoun and name: a control task that knows them by heart is as good
        assert rows.control_accuracy[1] > 0.9

    def test_as_many_right_as_wrong_and_the_nearest_of_each(self):
        (asked,) = [
            each for each in choose(model(), referring(1), referring(3, 1)[1:], words=9, edges=9).asked["train"]
        ]
        assert [edge.same for edge in asked.edges].count(True) == 1
        assert len(asked.edges) == 2
        assert {edge.mention for edge in asked.edges} == {0, 2}
        nearest = next(edge for edge in asked.edges if edge.mention == 2)
        assert nearest.rules[0] == float(nearest.same)


class TestItems:
    def test_order_of_documents_changes_nothing(self):
        texts = tagged(40)
        columns = ["accuracy", "control_accuracy", "selectivity", "ci_low", "ci_high", "untrained_accuracy", "n"]
        one, other = (probes.measure(model(), each)[columns] for each in (texts, texts[::-1]))
        pd.testing.assert_frame_equal(one, other)

    def test_no_document_is_on_both_sides(self):
        items = choose(model(), tagged(80), None, words=10**6, edges=0)
        assert not items.documents["train"] & items.documents["test"]
        assert len(items.documents["test"]) == pytest.approx(20, abs=10)
        both = tagged(4)
        with pytest.raises(InputError, match="of both the corpus and the held-out one"):
            probes.measure(model(), both, held_out=both)

    def test_words_are_capped_and_those_of_held_out_documents_half_as_much(self):
        others = [replace(each, document=f"other {at}") for at, each in enumerate(tagged(80))]
        items = choose(model(), tagged(80), others, words=120, edges=0)
        n = [sum(len(each.words) for each in items.asked[split]) for split in ("train", "test")]
        assert n == [120, 60]

    def test_a_word_is_the_mean_of_its_pieces_at_every_site(self):
        built = Planted(["a", "b", "c", "-"], [[planted.offset(-1, remember=True)] * 3], n_ctx=24).build()
        texts = [AnnotatedText(("a-b", "c"), (True, True), f"document {at}", tags=("X", "Y")) for at in range(3)]
        (asked, *_) = choose(built, texts[:1], texts[1:], words=9, edges=0).asked["train"]
        made = read_vectors(built, [asked])
        out = run(built, "a-b c", capture=["decoder.0.resid_post", "decoder.0.attn.z"])
        torch.testing.assert_close(made.words.stream[1, 0], out["decoder.0.resid_post"][0, :3].mean(0))
        torch.testing.assert_close(made.words.stream[1, 1], out["decoder.0.resid_post"][0, 3])
        torch.testing.assert_close(made.words.heads[:, 0], out["decoder.0.attn.z"][0, :3].mean(0))

    def test_long_texts_are_read_in_windows_and_every_word_once(self):
        long = replace(tagged(1)[0], words=tagged(1)[0].words * 8, space_after=(True,) * 96, tags=tagged(1)[0].tags * 8)
        items = choose(model(), [long], tagged(3)[1:], words=10**6, edges=0)
        assert len(items.asked["train"]) > 2
        assert sorted(word for each in items.asked["train"] for word in each.words) == [*range(96)]


class TestRefusals:
    @pytest.mark.parametrize(("task", "says"), [("tag", "tags"), ("coreference", "chains"), ("relation", "relations")])
    def test_a_corpus_without_what_a_task_needs(self, task, says):
        plain = [AnnotatedText(("the", "noun0"), (True, True), f"document {at}") for at in range(30)]
        with pytest.raises(InputError, match=says):
            probes.measure(model(), plain, tasks=[task])

    def test_a_corpus_without_anything(self):
        plain = [AnnotatedText(("the", "noun0"), (True, True), f"document {at}") for at in range(30)]
        with pytest.raises(InputError, match="tags or dependency relations or chains"):
            probes.measure(model(), plain)

    def test_one_document(self):
        with pytest.raises(InputError, match="a quarter for the test"):
            probes.measure(model(), tagged(1))

    def test_fewer_types_than_classes(self):
        texts = [AnnotatedText(("the", "the"), (True, True), f"document {at}", tags=("A", "B")) for at in range(30)]
        with pytest.raises(InputError, match="2 classes and 1 types"):
            probes.measure(model(), texts)

    def test_an_unknown_task(self):
        with pytest.raises(InputError, match="no probe for 'gender': expected tag, relation, coreference"):
            probes.measure(model(), tagged(10), tasks=["gender"])


class TestFigure:
    def test_a_panel_a_task_and_one_for_the_depths(self, table):
        figure = probes_by_layer(table, probes.depths(table))
        panel, below = figure.axes
        assert panel.get_title().startswith("tag, n ")
        assert len(panel.lines) == 5
        assert [label.get_text() for label in below.get_yticklabels()] == ["tag"]


@pytest.mark.slow
def test_the_most_frequent_tag_of_the_type_on_english_web_text(shared_file):
    folder = shared_file("data", "ud-ewt")
    sides = [
        [pair for text in read(folder / name) for pair in zip(text.words, text.tags, strict=True)]
        for name in ("en_ewt-ud-train.conllu.gz", "en_ewt-ud-dev.conllu")
    ]
    tags = sorted({tag for _, tag in sides[0]})
    own, other = probes.commonest_labels([word for word, _ in sides[0]], [tags.index(tag) for _, tag in sides[0]])
    right = [own.get(word, other) == tags.index(tag) for word, tag in sides[1]]
    assert sum(right) / len(right) == pytest.approx(0.86, abs=0.01)


def test_the_default_model_reads_generated_tags_from_context():
    rows = stream(probes.measure(load("default"), read("stories:60:5"), tasks=["tag"], words=1500))
    assert rows.accuracy[1] > rows.accuracy[0] + 0.01
    assert rows.accuracy[1] > rows.baseline[1]
    assert rows.selectivity[2] > rows.selectivity[1] > rows.selectivity[0]
