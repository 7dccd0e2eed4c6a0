"""Probes: planted models with known layers, the items, and what is written, printed and refused."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import command
from pages import outside_addresses, page_of, unlisted

from analyses import probe as probes
from analyses.corpora import Corpus, read
from analyses.page.sections import Paragraph, Part, Section
from analyses.probe import Probed, probe_runs, probe_section, section
from analyses.probe.fitted import Scores, halves_of
from analyses.probe.fitted import read as read_vectors
from analyses.probe.probe_tasks import choose
from analyses.report.builders import probe as build
from analyses.wording.formats import percent
from interp import AnnotatedText, InputError, Mention, run
from models import load, planted
from models.planted import Planted

BEFORE = {"the": "DET", "they": "PRON"}
BOTH = [f"both{number}" for number in range(6)]  # a noun after "the", a verb after "they"
NOUNS, VERBS = [f"noun{number}" for number in range(6)], [f"verb{number}" for number in range(6)]
BOUNDS = ["value", "ci_low", "ci_high"]
WORDS = [*BEFORE, *BOTH, *NOUNS, *VERBS]


def tagged(count: int, seed: int = 0) -> list[AnnotatedText]:
    """Documents of twelve words, in pairs: "the" and a noun, "they" and a verb."""
    rng = random.Random(seed)
    texts = []
    for number in range(count):
        words, tags = "", []
        for _ in range(6):
            before = rng.choice([*BEFORE])
            words += f"{before} {rng.choice([*BOTH, *(NOUNS if before == 'the' else VERBS)])} "
            tags += [BEFORE[before], "NOUN" if before == "the" else "VERB"]
        texts.append(replace(AnnotatedText.plain(words, f"document {number}"), tags=tuple(tags)))
    return texts


def model(heads: int = 1):
    return Planted(WORDS, [[planted.offset(-1, remember=True)] * heads, [planted.uniform] * heads], n_ctx=24).build()


@pytest.fixture(scope="module")
def probed() -> Probed:
    return probes.measure(model(), tagged(120))


def stream(table: pd.DataFrame, task: str = "tag") -> pd.DataFrame:
    return table[(table.task == task) & table["head"].isna()].set_index("depth")


class TestPlantedTruth:
    def test_the_word_before_is_needed_for_the_words_that_are_both(self, probed):
        rows = stream(probed.layers)
        assert rows.ambiguous_n[0] > 50
        assert rows.ambiguous_accuracy[0] == pytest.approx(0.5, abs=0.1)
        assert rows.ambiguous_baseline[0] == pytest.approx(0.5, abs=0.1)
        assert rows.ambiguous_accuracy[1] == rows.ambiguous_accuracy[2] == 1.0
        assert rows.accuracy[1] == 1.0
        assert rows.accuracy[0] == pytest.approx(rows.baseline[0], abs=0.03)
        assert rows.baseline_name[0] == "the word’s most frequent label"
        assert rows.ambiguous_low[1] > 0.2  # the word before tells what the type does not
        assert rows.ambiguous_low[0] < 0.05

        first = rows.loc[0]  # the embedding knows the word here and nothing else
        assert first.control_accuracy == 1.0
        assert first.selectivity < 0
        assert first.ci_low <= first.selectivity <= first.ci_high < 0

    def test_the_expected_layer_is_the_one_that_brings_the_word_before(self, probed):
        depths = probed.depths.set_index("measure")
        assert depths.value["expected layer"] == pytest.approx(1.0, abs=0.02)
        assert depths.ci_low["expected layer"] <= 1.0 <= depths.ci_high["expected layer"]
        assert depths.value["centre of gravity"] > 0.5

    def test_one_row_a_site_in_the_shared_columns(self, probed):
        table = probed.layers
        assert [*table.columns] == probes.LAYER_COLUMNS
        sites = [("resid_pre", 0, 0), ("resid_post", 0, 1), ("resid_post", 1, 2), ("attn.z", 0, 1), ("attn.z", 1, 2)]
        assert [*zip(table.site, table.layer, table.depth, strict=True)] == sites
        assert table.untrained_accuracy.between(0, 1).all()

    def test_the_expected_layer_is_the_papers_formula_on_the_cumulative_accuracies(self):
        # noisy tags, so some documents gain in one layer and lose as much in another
        last = ["VERB" if number % 3 else "NOUN" for number in range(60)]
        noisy = [replace(text, tags=(*text.tags[:-1], tag)) for text, tag in zip(tagged(60), last, strict=True)]
        result = probes.measure(model(), noisy)
        scores = stream(result.layers).cumulative_accuracy.to_numpy()
        gains = np.diff(scores)
        by_hand = (np.arange(1, len(scores)) * gains).sum() / gains.sum()
        assert result.depths.set_index("measure").value["expected layer"] == pytest.approx(by_hand, abs=1e-6)

    def test_every_difference_has_its_interval(self, probed):
        for columns in (probe_runs.CONTROL, probe_runs.RULE, probe_runs.UNTRAINED, probe_runs.AMBIGUOUS):
            value, rival, difference, low, high = (stream(probed.layers)[column] for column in columns)
            assert (difference == value - rival).all()
            assert ((low <= difference) & (difference <= high)).all()

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
        right, wrong = rng.choice(PRONOUNS[pronoun]), rng.choice(PRONOUNS["she" if pronoun == "he" else "he"])
        names = [right, wrong]
        rng.shuffle(names)
        words = f"{names[0]} {rng.choice(['saw', 'met'])} {names[1]} and {pronoun} ran"
        chains = {2 * names.index(right): "a", 2 * names.index(wrong): "b", 4: "a"}
        mentions = tuple(Mention(place, place + 1, place, chain) for place, chain in chains.items())
        texts.append(replace(AnnotatedText.plain(words, f"tale {number}"), mentions=mentions))
    return texts


class TestItems:
    def test_a_pronoun_that_fetches_its_name_is_read_and_no_name_alone(self):
        head = planted.antecedent(PRONOUNS, {name: [name] for name in PEOPLE})
        tale = Planted(TALE, [[head]], n_ctx=12).build()
        rows = stream(probes.measure(tale, referring(400)).layers, "coreference")
        assert rows.n[0] > 150
        assert rows.accuracy[1] == 1.0
        # with eight pairs of pronoun and name, memorising the control task does as well
        assert rows.control_accuracy[1] > 0.9

    def test_as_many_right_as_wrong_and_the_nearest_of_each(self):
        (window,) = choose(model(), referring(1), referring(3, 1)[1:], words=9, edges=9).windows["train"]
        assert [edge.corefers for edge in window.edges].count(True) == 1
        assert len(window.edges) == 2
        assert {edge.mention for edge in window.edges} == {0, 2}
        nearest = next(edge for edge in window.edges if edge.mention == 2)
        assert nearest.rules[0] == float(nearest.corefers)

    def test_order_of_documents_changes_nothing(self):
        texts = tagged(40)
        columns = ["accuracy", "control_accuracy", "selectivity", "ci_low", "ci_high", "untrained_accuracy", "n"]
        first, second = (probes.measure(model(), each).layers[columns] for each in (texts, texts[::-1]))
        pd.testing.assert_frame_equal(first, second)

    def test_no_document_is_on_both_sides(self):
        items = choose(model(), tagged(80), None, words=10**6, edges=0)
        assert not items.documents["train"] & items.documents["test"]
        assert len(items.documents["test"]) == pytest.approx(20, abs=10)
        texts = tagged(4)
        with pytest.raises(InputError, match="is a document of both corpora"):
            probes.measure(model(), texts, held_out=texts)

    def test_words_are_capped_and_those_of_held_out_documents_half_as_much(self):
        others = [replace(each, document=f"other {number}") for number, each in enumerate(tagged(80))]
        items = choose(model(), tagged(80), others, words=120, edges=0)
        n = [sum(len(each.words) for each in items.windows[split]) for split in ("train", "test")]
        assert n == [120, 60]

    def test_a_word_is_the_mean_of_its_pieces_at_every_site(self):
        built = Planted(["a", "b", "c", "-"], [[planted.offset(-1, remember=True)] * 3], n_ctx=24).build()
        texts = alike("a-b c", ("X", "Y"))[:3]
        (window, *_) = choose(built, texts[:1], texts[1:], words=9, edges=0).windows["train"]
        words = read_vectors(built, [window])["words"]
        out = run(built, "a-b c", capture=["decoder.0.resid_post", "decoder.0.attn.z"])
        stream, z = out["decoder.0.resid_post"][0], out["decoder.0.attn.z"][0]
        torch.testing.assert_close(words.stream[1], torch.stack([stream[:3].mean(0), stream[3]]))
        torch.testing.assert_close(words.heads[:, 0], z[:3].mean(0))

    def test_long_texts_are_read_in_windows_and_every_word_once(self):
        (text,) = tagged(1)
        long = replace(text, words=text.words * 8, space_after=(True,) * 96, tags=text.tags * 8)
        items = choose(model(), [long], tagged(3)[1:], words=10**6, edges=0)
        assert len(items.windows["train"]) > 2
        assert sorted(word for each in items.windows["train"] for word in each.words) == [*range(96)]


def alike(words: str, tags: tuple[str, ...] | None = None) -> list[AnnotatedText]:
    return [replace(AnnotatedText.plain(words, f"document {number}"), tags=tags) for number in range(30)]


PLAIN = alike("the noun0")


@pytest.mark.parametrize(
    ("texts", "tasks", "says"),
    [
        (PLAIN, ["coreference"], "chains"),
        (PLAIN, None, "tags or dependency relations or chains"),
        (tagged(1), None, "a quarter for the test"),
        (alike("the the", ("A", "B")), None, "2 classes and 1 types"),
        (tagged(10), ["gender"], "no probe for 'gender': expected tag, relation, coreference"),
    ],
)
def test_what_cannot_be_probed_is_refused(texts, tasks, says):
    with pytest.raises(InputError, match=says):
        probes.measure(model(), texts, tasks=tasks)


def grades(halves: torch.Tensor, cumulative: torch.Tensor | None = None, groups: torch.Tensor | None = None) -> Scores:
    """Scores that a model of two blocks might give, with all weight of the mix on the first."""
    cumulative = torch.ones(3, 1) if cumulative is None else cumulative
    groups = torch.zeros(1, dtype=torch.long) if groups is None else groups
    none = torch.zeros(1, len(groups))
    shares, documents = torch.tensor([0.0, 1.0, 0.0]), {"train": 1, "test": 1}
    return Scores(groups, none, none, none, none[0], "", None, cumulative, shares, halves, 1, documents)


def test_a_group_that_gained_as_much_as_it_lost_counts_in_the_expected_layer():
    gained_early, gained_late, lost_early, never = [0.0, 1, 1], [0.0, 0, 1], [1.0, 0, 0], [0.0, 0, 0]
    right = torch.tensor([gained_early, never] * 20 + [gained_late, lost_early] * 20).T
    scores = grades(torch.zeros(0, 3), right, torch.arange(40).repeat_interleave(2))
    value, low, high = probe_runs.expected_with_interval(scores, None, seed=0)
    assert value == pytest.approx(2.0)  # (20 x 1 + 20 x (2 - 1)) / (20 + 20 x 0)
    assert low < 2 < high


REACH = 2.776445 * (0.5 / 4) ** 0.5  # Student's t of .975 at 4 degrees of freedom; halves lie at 1, .5, 1.5 and 1
STRAYING = [[0.25, 0.5, 0.25], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]]


class TestGravity:
    @pytest.mark.parametrize(
        ("halves", "bounds"),
        [
            (STRAYING, (1.0, 1 - REACH, 1 + REACH)),
            ([[0.0, 1.0, 0.0]] * 8, (1.0, 1.0, 1.0)),
            ([[0.0, 0.0, 1.0]] * 8, (1.0, 0.0, 2.0)),  # clipped to the layers that exist
        ],
        ids=["halves stray", "halves agree with the whole", "halves all stray the same way"],
    )
    def test_how_far_halves_stray_from_the_whole_is_doubt(self, halves, bounds):
        task = grades(torch.tensor(halves))
        assert probe_runs.centre_with_interval(task, None) == pytest.approx(bounds, abs=1e-5)
        assert probe_runs.centre_with_interval(task, task) == (0.0, 0.0, 0.0)  # the difference is computed half by half

    def test_halves_are_half_of_the_documents_and_the_same_for_every_task(self):
        groups = torch.arange(40).repeat(3)
        halves = halves_of(groups, seed=1)
        assert [len(groups[half].unique()) for half in halves] == [20] * 8
        assert len({tuple(half.tolist()) for half in halves}) == 8
        fewer = groups[:80].flip(0)
        again = halves_of(fewer, seed=1)
        assert [{*fewer[half].tolist()} for half in again] == [{*groups[half].tolist()} for half in halves]
        assert halves_of(torch.tensor([1, 2, 3]), seed=1) == []


@pytest.mark.slow
def test_the_default_model_reads_generated_tags_from_context():
    rows = stream(probes.measure(load("default"), read("stories:60:5"), tasks=["tag"], words=1500).layers)
    assert rows.accuracy[1] > rows.accuracy[0] + 0.01
    assert rows.accuracy[1] > rows.baseline[1]
    assert rows.selectivity[2] > rows.selectivity[1] > rows.selectivity[0]


HOSTILE = "<script>alert(1)</script>"


def corpus(name: str, texts: list[AnnotatedText], *annotates: str) -> Corpus:
    return Corpus(name, "fake", frozenset(annotates), "0" * 64, lambda: iter(texts))


def reader():
    """A model that reads both tagged pairs and tales."""
    heads = [planted.offset(-1, remember=True), planted.antecedent(PRONOUNS, {name: [name] for name in PEOPLE})]
    return Planted([*WORDS, *TALE], [heads], n_ctx=24).build()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, list[tuple[str, int]]]:
    """The report's directory, and its progress messages."""
    texts = [corpus(f"tags {HOSTILE}", tagged(80), "tags"), corpus("tales", referring(120), "chains")]
    messages: list[tuple[str, int]] = []
    out = tmp_path_factory.mktemp("probes") / "out"
    build(reader(), texts, out, command="typed", name="a reader", progress=lambda stage, n: messages.append((stage, n)))
    return out, messages


class TestWhatIsWritten:
    def test_tables_figures_and_record(self, built):
        out, messages = built
        facts = json.loads((out / "run.json").read_text())
        names = {f"tables/{name}.{kind}" for name in ("layers", "depths") for kind in ("csv", "parquet")}
        names |= {f"figures/probes_by_layer.{kind}" for kind in ("svg", "png")}
        assert {*facts["files"]} == {*names, "report.html", "run.json"}
        assert {*pd.read_csv(out / "tables/layers.csv").task} == {"tag", "coreference"}
        trained = {name: task["trained_on"] for name, task in facts["tasks"].items()}
        assert trained == {"tag": f"tags {HOSTILE}", "coreference": "tales"}  # the first text with the annotation
        assert facts["not_probed"] == {"relation": f"no dependency relations in tags {HOSTILE}, tales"}
        assert facts["left_out"]["tales"]["texts"] == sum(facts["tasks"]["coreference"]["documents"].values()) == 120
        stages = [*dict.fromkeys(stage for stage, _ in messages)]
        assert stages[:2] == ["probes: choosing words", "probes: fitting"]
        assert max(texts for stage, texts in messages if stage == "probes: choosing words") == 120

    def test_the_page_says_its_numbers_and_what_is_not_there_and_opens_offline(self, built):
        page, rows = page_of(built[0]), pd.read_csv(built[0] / "tables/layers.csv")
        best = rows[(rows.task == "tag") & rows["head"].isna()].nlargest(1, "accuracy").iloc[0]
        phrases = [
            f"Read best after 1 of 1 block: {percent(best.accuracy)} of {best.n}",
            f"+{best.ambiguous_gain:.3f} +{best.ambiguous_low:.3f}",
            "Dependency relations: not probed: no dependency relations in",
            "The tasks were tested on different texts",
            "Is syntax read from lower layers than coreference?",
            "coreference - tag",
            HOSTILE,
        ]
        assert [each for each in phrases if each not in page.text] == []
        assert (outside_addresses(page), unlisted(page)) == ([], [])


def tasks_of(part: Part) -> dict[str, Section]:
    (whole,) = part.sections
    tasks = [each for each in whole.blocks if isinstance(each, Section) and each.id != "probes-depths"]
    return {each.id.removeprefix("probes-"): each for each in tasks}


def caveats_of(task: Section) -> list[str]:
    return ["".join(each.text) for each in task.blocks if isinstance(each, Paragraph) and each.kind == "caveat"]


def test_what_annotates_a_task_tests_it_and_other_tasks_keep_a_quarter_and_say_so():
    relations = {"heads": (-1, *[0] * 11), "relations": ("det", "obj") * 6}
    source = corpus("both", [replace(text, **relations) for text in tagged(80)], "tags", "relations")
    texts = [replace(text, document=f"other {text.document}") for text in tagged(30, seed=1)]
    part = section(model(), [source], held_out=[corpus("dev", texts, "tags")])
    tag, relation = tasks_of(part).values()
    assert "of dev (30 documents)" in tag.blocks[0][1].text
    assert not [each for each in caveats_of(tag) if "held" in each or "kept" in each]
    assert "held out" in relation.blocks[0][1].text
    caveat = "No dependency relations in dev, so documents of the same corpus were kept for the test."
    assert caveat in caveats_of(relation)
    assert [task["tested_on"] for task in part.facts["tasks"].values()] == ["dev", "held-out documents"]


def damaged():
    yield from tagged(1)
    raise InputError("line 7 is damaged")


SAME = corpus("same", tagged(9), "tags")


@pytest.mark.parametrize(
    ("source", "held_out", "says"),
    [
        (corpus("plain", []), [], "tag: no tags in plain; relation: no dependency relations in plain"),
        (corpus("one", tagged(1), "tags"), [], "got 1 to train on and 0 to test on"),
        (SAME, [SAME], "a document of both"),
        (replace(SAME, source=damaged), [], "^line 7 is damaged$"),  # an error, not a reason to leave it out
        (corpus("strange", alike("xx yy", ("A", "B")), "tags"), [], "unknown to this model's tokenizer"),
    ],
)
def test_what_cannot_be_probed_leaves_nothing(tmp_path, source, held_out, says):
    with pytest.raises(InputError, match=says):
        build(model(), [source], tmp_path / "out", held_out=held_out)
    assert not (tmp_path / "out").exists()


def test_one_task_that_fails_leaves_the_others():
    part = section(reader(), [corpus("tales", [*referring(60)], "chains", "tags")])
    assert [*tasks_of(part)] == ["coreference"]
    assert "the corpus has no text with tags" in dict(part.short)["Parts of speech"]


def depths(**bounds: tuple[float, float]) -> pd.DataFrame:
    """Differences with bounds as in `coreference_tag_expected=(low, high)`; all others are above 0."""
    rows = []
    for pair in ("relation - tag", "coreference - tag", "coreference - relation"):
        for name in ("expected layer", "centre of gravity"):
            low, high = bounds.get(f"{pair.replace(' - ', '_')}_{name.split()[0]}", (0.5, 1.5))
            rows.append({"task": pair, "measure": name, "value": (low + high) / 2, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


UNSURE, LOWER = (-0.1, 0.4), (-2.0, -1.0)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({}, "Yes, by both measures."),
        ({"coreference_relation_centre": UNSURE}, "By the expected layer: yes. By the centre of gravity: unclear"),
        ({"coreference_tag_expected": UNSURE, "coreference_tag_centre": UNSURE}, "Unclear."),
        ({"coreference_relation_expected": LOWER, "coreference_tag_expected": UNSURE}, "By the expected layer: n"),
        ({"relation_tag_expected": LOWER}, "Yes, by both measures."),
    ],
)
def test_verdicts(bounds, says):
    assert str(probe_section.verdict(depths(**bounds))).startswith(says)
    assert probe_section.verdict(depths()[:2]) is None  # no coreference


def test_the_command_probes_the_default_model_and_says_where_it_wrote(tmp_path, capsys):
    pairs = (("the", "DET"), ("dog", "NOUN")), (("he", "PRON"), ("ran", "VERB"))
    lines = ""
    for number in range(40):
        lines += f"# newdoc id = d{number}\n"
        for index, (word, tag) in enumerate(pairs[number % 2], 1):
            lines += f"{index}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n"
        lines += "\n"
    (tmp_path / "tagged.conllu").write_text(lines)
    out = tmp_path / "new" / "out"
    ended = command(capsys, "probes", "--corpus", str(tmp_path / "tagged.conllu"), "--out", str(out), "--seed", "3")
    assert not ended.code
    assert str(out / "report.html") in ended.out
    facts = json.loads((out / "run.json").read_text())
    assert (facts["seed"], [*facts["tasks"]]) == (3, ["tag"])
    assert "What can be read from the layers of the default model?" in page_of(out).text
