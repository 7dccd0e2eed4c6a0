"""The table of probes: planted models whose layers are known, the items that are asked, and what is refused."""

import gzip
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import probe as probes
from analyses.corpora import read
from analyses.figures.probe_curves import probe_depths, probes_by_layer
from analyses.probe import Probed, probe_runs
from analyses.probe.fitted import Scores, halves_of
from analyses.probe.fitted import read as read_vectors
from analyses.probe.probe_tasks import choose
from interp import AnnotatedText, InputError, Mention, run
from interp.probes import commonest_labels
from models import load, planted
from models.planted import Planted

BEFORE = {"the": "DET", "they": "PRON"}
BOTH = [f"both{at}" for at in range(6)]  # a noun after "the", a verb after "they"
NOUNS, VERBS = [f"noun{at}" for at in range(6)], [f"verb{at}" for at in range(6)]
BOUNDS = ["value", "ci_low", "ci_high"]
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
def probed() -> Probed:
    return probes.measure(model(), tagged(120))


@pytest.fixture(scope="module")
def table(probed) -> pd.DataFrame:
    return probed.layers


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
        assert rows.ambiguous_low[1] > 0.2  # the word before says what the type does not
        assert rows.ambiguous_low[0] < 0.05

    def test_word_identity_is_not_selective(self, table):
        first = stream(table).loc[0]  # the embedding says which word stands here and nothing else
        assert first.control_accuracy == 1.0
        assert first.selectivity < 0
        assert first.ci_low <= first.selectivity <= first.ci_high < 0

    def test_the_expected_layer_is_the_one_that_brings_the_word_before(self, probed):
        depths = probed.depths.set_index("measure")
        assert depths.value["expected layer"] == pytest.approx(1.0, abs=0.02)
        assert depths.ci_low["expected layer"] <= 1.0 <= depths.ci_high["expected layer"]
        assert depths.value["centre of gravity"] > 0.5

    def test_one_row_a_site_in_the_shared_columns(self, table):
        assert [*table.columns] == probes.LAYER_COLUMNS
        assert [*zip(table.site, table.layer, table.depth, strict=True)] == [
            *[("resid_pre", 0, 0), ("resid_post", 0, 1), ("resid_post", 1, 2), ("attn.z", 0, 1), ("attn.z", 1, 2)],
        ]
        assert table.untrained_accuracy.between(0, 1).all()

    def test_the_expected_layer_is_the_papers_formula_on_the_cumulative_accuracies(self):
        # noisy tags, so that single documents gain in one layer and lose as much in another
        last = ["VERB" if at % 3 else "NOUN" for at in range(60)]
        noisy = [replace(text, tags=(*text.tags[:-1], tag)) for text, tag in zip(tagged(60), last, strict=True)]
        found = probes.measure(model(), noisy)
        scores = stream(found.layers).cumulative_accuracy.to_numpy()
        gains = np.diff(scores)
        by_hand = (np.arange(1, len(scores)) * gains).sum() / gains.sum()
        assert found.depths.set_index("measure").value["expected layer"] == pytest.approx(by_hand, abs=1e-6)

    @pytest.mark.parametrize(
        "beside", [probe_runs.CONTROL, probe_runs.RULE, probe_runs.UNTRAINED, probe_runs.AMBIGUOUS]
    )
    def test_every_difference_has_its_interval(self, table, beside):
        rows = stream(table)
        assert (rows[beside.difference] == rows[beside.value] - rows[beside.rival]).all()
        assert (rows[beside.low] <= rows[beside.difference]).all()
        assert (rows[beside.difference] <= rows[beside.high]).all()

    def test_nothing_gained_has_no_expected_layer(self):
        silent = Planted(WORDS, [[planted.uniform], [planted.uniform]], n_ctx=24).build()
        rows = probes.measure(silent, tagged(60)).depths.set_index("measure")
        assert rows.loc["expected layer", BOUNDS].isna().all()


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
        rows = stream(probes.measure(tale, referring(400)).layers, "coreference")
        assert rows.n[0] > 150
        assert rows.accuracy[1] == 1.0
        # eight pairs of pronoun and name: a control task that knows them by heart is as good
        assert rows.control_accuracy[1] > 0.9

    def test_as_many_right_as_wrong_and_the_nearest_of_each(self):
        (asked,) = choose(model(), referring(1), referring(3, 1)[1:], words=9, edges=9).windows["train"]
        assert [edge.same for edge in asked.edges].count(True) == 1
        assert len(asked.edges) == 2
        assert {edge.mention for edge in asked.edges} == {0, 2}
        nearest = next(edge for edge in asked.edges if edge.mention == 2)
        assert nearest.rules[0] == float(nearest.same)


class TestItems:
    def test_order_of_documents_changes_nothing(self):
        texts = tagged(40)
        columns = ["accuracy", "control_accuracy", "selectivity", "ci_low", "ci_high", "untrained_accuracy", "n"]
        one, other = (probes.measure(model(), each).layers[columns] for each in (texts, texts[::-1]))
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
        n = [sum(len(each.words) for each in items.windows[split]) for split in ("train", "test")]
        assert n == [120, 60]

    def test_a_word_is_the_mean_of_its_pieces_at_every_site(self):
        built = Planted(["a", "b", "c", "-"], [[planted.offset(-1, remember=True)] * 3], n_ctx=24).build()
        texts = [AnnotatedText(("a-b", "c"), (True, True), f"document {at}", tags=("X", "Y")) for at in range(3)]
        (asked, *_) = choose(built, texts[:1], texts[1:], words=9, edges=0).windows["train"]
        made = read_vectors(built, [asked])
        out = run(built, "a-b c", capture=["decoder.0.resid_post", "decoder.0.attn.z"])
        torch.testing.assert_close(made["words"].stream[1, 0], out["decoder.0.resid_post"][0, :3].mean(0))
        torch.testing.assert_close(made["words"].stream[1, 1], out["decoder.0.resid_post"][0, 3])
        torch.testing.assert_close(made["words"].heads[:, 0], out["decoder.0.attn.z"][0, :3].mean(0))

    def test_long_texts_are_read_in_windows_and_every_word_once(self):
        long = replace(tagged(1)[0], words=tagged(1)[0].words * 8, space_after=(True,) * 96, tags=tagged(1)[0].tags * 8)
        items = choose(model(), [long], tagged(3)[1:], words=10**6, edges=0)
        assert len(items.windows["train"]) > 2
        assert sorted(word for each in items.windows["train"] for word in each.words) == [*range(96)]


def alike(words: tuple[str, ...], tags: tuple[str, ...] | None = None) -> list[AnnotatedText]:
    return [AnnotatedText(words, (True,) * len(words), f"document {at}", tags=tags) for at in range(30)]


PLAIN = alike(("the", "noun0"))


@pytest.mark.parametrize(
    ("texts", "tasks", "says"),
    [
        (PLAIN, ["coreference"], "chains"),
        (PLAIN, None, "tags or dependency relations or chains"),
        (tagged(1), None, "a quarter for the test"),
        (alike(("the", "the"), ("A", "B")), None, "2 classes and 1 types"),
        (tagged(10), ["gender"], "no probe for 'gender': expected tag, relation, coreference"),
    ],
)
def test_what_cannot_be_probed_is_refused(texts, tasks, says):
    with pytest.raises(InputError, match=says):
        probes.measure(model(), texts, tasks=tasks)


def without_expected(depths: pd.DataFrame) -> pd.DataFrame:
    return depths.assign(**{name: depths[name].where(depths["measure"] != "expected layer") for name in BOUNDS})


class TestFigures:
    def test_one_task_has_no_differences_and_two_have(self, probed):
        (alone,) = probe_depths(probed.depths, 2).axes
        assert [label.get_text() for label in alone.get_yticklabels()] == ["tag"]
        both = pd.concat([probed.depths.assign(task=task) for task in ("tag", "relation", "relation - tag")])
        left, right = probe_depths(both, 2).axes
        assert [label.get_text() for label in left.get_yticklabels()] == ["tag", "relation"]
        assert [label.get_text() for label in right.get_yticklabels()] == ["relation – tag"]
        (missing,) = probe_depths(without_expected(probed.depths), 2).axes
        assert [text.get_text() for text in missing.texts] == ["nothing surely gained after the embedding"]

    @pytest.mark.parametrize(("width", "font_size"), [(3.3, 8), (6.9, 9)])
    def test_three_tasks_fit_a_column_and_a_page(self, table, probed, width, font_size):
        tasks = ["tag", "relation", "coreference"]
        layers = pd.concat([table.assign(task=task) for task in tasks])
        pairs = ["relation - tag", "coreference - tag", "coreference - relation"]
        depths = without_expected(pd.concat([probed.depths.assign(task=task) for task in (*tasks, *pairs)]))
        page = {"width": width, "font_size": font_size, "title": None}
        for figure in (probes_by_layer(layers, **page), probe_depths(depths, 2, **page)):
            figure.draw_without_rendering()
            inked = figure.get_tightbbox()
            assert inked.x0 > -0.02
            assert inked.x1 < width + 0.02
            assert figure.get_figheight() < 7
            for ax in figure.axes:
                assert all(text.get_window_extent().x1 <= ax.get_window_extent().x1 for text in ax.texts)


def found(halves: torch.Tensor, cumulative: torch.Tensor | None = None, groups: torch.Tensor | None = None) -> Scores:
    """What a model of two blocks might give, whose whole mix has settled on the first."""
    cumulative = torch.ones(3, 1) if cumulative is None else cumulative
    groups = torch.zeros(1, dtype=torch.long) if groups is None else groups
    none = torch.zeros(1, len(groups))
    shares, documents = torch.tensor([0.0, 1.0, 0.0]), {"train": 1, "test": 1}
    return Scores(groups, none, none, none, none[0], "", None, cumulative, shares, halves, 1, documents)


def test_a_group_that_gained_as_much_as_it_lost_counts_in_the_expected_layer():
    gained_early, gained_late, lost_early, never = [0.0, 1, 1], [0.0, 0, 1], [1.0, 0, 0], [0.0, 0, 0]
    right = torch.tensor([gained_early, never] * 20 + [gained_late, lost_early] * 20).T
    given = found(torch.zeros(0, 3), right, torch.arange(40).repeat_interleave(2))
    value, low, high = probe_runs.expected_with_interval(given, None, seed=0)
    assert value == pytest.approx(2.0)  # (20 x 1 + 20 x (2 - 1)) / (20 + 20 x 0)
    assert low < 2 < high


class TestGravity:
    def test_the_reach_is_students_t_of_how_far_halves_stray_from_the_whole(self):
        halves = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])  # 1, .5, 1.5, 1
        value, low, high = probe_runs.centre_with_interval(found(halves), None)
        reach = 2.776445 * (0.5 / 4) ** 0.5  # t of .975 at 4 degrees of freedom
        assert value == 1.0
        assert (low, high) == (pytest.approx(1 - reach, abs=1e-5), pytest.approx(1 + reach, abs=1e-5))

    @pytest.mark.parametrize(
        ("half", "bounds"),
        [([0.0, 1.0, 0.0], (1.0, 1.0, 1.0)), ([0.0, 0.0, 1.0], (1.0, 0.0, 2.0))],
        ids=["halves agree with the whole", "halves all stray the same way"],  # no further than there are layers
    )
    def test_how_far_halves_stray_is_doubt(self, half, bounds):
        assert probe_runs.centre_with_interval(found(torch.tensor([half]).repeat(8, 1)), None) == bounds

    def test_a_difference_is_taken_half_by_half(self):
        one = found(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]))
        assert probe_runs.centre_with_interval(one, one) == (0.0, 0.0, 0.0)

    def test_halves_are_half_of_the_documents_and_the_same_for_every_task(self):
        groups = torch.arange(40).repeat(3)
        drawn = halves_of(groups, seed=1)
        assert [len(groups[kept].unique()) for kept in drawn] == [20] * 8
        assert len({tuple(kept.tolist()) for kept in drawn}) == 8
        fewer = groups[:80].flip(0)
        again = halves_of(fewer, seed=1)
        assert [{*fewer[kept].tolist()} for kept in again] == [{*groups[kept].tolist()} for kept in drawn]
        assert halves_of(torch.tensor([1, 2, 3]), seed=1) == []


@pytest.mark.slow
def test_the_most_frequent_tag_of_the_type_on_english_web_text(shared_file):
    folder = shared_file("data", "ud-ewt")
    sides = []
    for name in ("en_ewt-ud-train.conllu.gz", "en_ewt-ud-dev.conllu"):  # words and tags alone are asked
        with (gzip.open if name.endswith(".gz") else open)(folder / name, "rt", encoding="utf-8") as lines:
            rows = [line.split("\t") for line in lines if line[0].isdecimal()]
        sides.append([(row[1], row[3]) for row in rows if row[0].isdecimal()])
    tags = sorted({tag for _, tag in sides[0]})
    own, other = commonest_labels([word for word, _ in sides[0]], [tags.index(tag) for _, tag in sides[0]])
    right = [own.get(word, other) == tags.index(tag) for word, tag in sides[1]]
    assert sum(right) / len(right) == pytest.approx(0.86, abs=0.01)


@pytest.mark.slow
def test_the_default_model_reads_generated_tags_from_context():
    rows = stream(probes.measure(load("default"), read("stories:60:5"), tasks=["tag"], words=1500).layers)
    assert rows.accuracy[1] > rows.accuracy[0] + 0.01
    assert rows.accuracy[1] > rows.baseline[1]
    assert rows.selectivity[2] > rows.selectivity[1] > rows.selectivity[0]
