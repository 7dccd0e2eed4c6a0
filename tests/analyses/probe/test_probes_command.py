"""`interp probes`: what it writes, what its sentences say of which numbers, and how it refuses text it cannot use."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import command
from pages import outside_addresses, page_of, unlisted

from analyses.corpora import Corpus
from analyses.page.sections import Paragraph, Part, Section
from analyses.probe import probe_section, section
from analyses.report.builders import probe as build
from analyses.wording.formats import percent
from interp import AnnotatedText, InputError
from models import planted
from models.planted import Planted
from tests.analyses.probe.test_probe_tables import PEOPLE, PRONOUNS, TALE, WORDS, model, referring, tagged

HOSTILE = "<script>alert(1)</script>"


def corpus(name: str, texts: list[AnnotatedText], *annotates: str) -> Corpus:
    return Corpus(name, "fake", frozenset(annotates), "0" * 64, lambda: iter(texts))


def reader():
    """A model that reads both the tagged pairs and the tales."""
    heads = [planted.offset(-1, remember=True), planted.antecedent(PRONOUNS, {name: [name] for name in PEOPLE})]
    return Planted([*WORDS, *TALE], [heads], n_ctx=24).build()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, list[tuple[str, int]]]:
    """Where it was written, and what was said on the way."""
    texts = [corpus(f"tags {HOSTILE}", tagged(80), "tags"), corpus("tales", referring(120), "chains")]
    said: list[tuple[str, int]] = []
    out = tmp_path_factory.mktemp("probes") / "out"
    build(reader(), texts, out, command="typed", name="a reader", progress=lambda stage, n: said.append((stage, n)))
    return out, said


def run_json(out: Path) -> dict:
    return json.loads((out / "run.json").read_text())


class TestWhatIsWritten:
    def test_tables_figures_and_record(self, built):
        written, said = built
        facts = run_json(written)
        names = {f"tables/{name}.{kind}" for name in ("layers", "depths") for kind in ("csv", "parquet")}
        names |= {f"figures/{name}.{kind}" for name in ("probes_by_layer", "probe_depths") for kind in ("svg", "png")}
        assert {*facts["files"]} == {*names, "report.html", "run.json"}
        assert {*pd.read_csv(written / "tables/layers.csv").task} == {"tag", "coreference"}
        trained = {name: task["trained_on"] for name, task in facts["tasks"].items()}
        assert trained == {"tag": f"tags {HOSTILE}", "coreference": "tales"}  # the first text that annotates it
        assert facts["not_probed"] == {"relation": f"no dependency relations in tags {HOSTILE}, tales"}
        assert facts["left_out"]["tales"]["texts"] == sum(facts["tasks"]["coreference"]["documents"].values()) == 120
        stages = [*dict.fromkeys(stage for stage, _ in said)]
        assert stages[:2] == ["probes: choosing words", "probes: reading, untrained"]
        assert max(texts for stage, texts in said if stage == "probes: choosing words") == 120

    def test_the_page_says_its_numbers_and_what_is_not_there_and_opens_offline(self, built):
        page, rows = page_of(built[0]), pd.read_csv(built[0] / "tables/layers.csv")
        best = rows[(rows.task == "tag") & rows["head"].isna()].nlargest(1, "accuracy").iloc[0]
        said = [
            f"Read best after 1 of 1 block: {percent(best.accuracy)} of {best.n}",
            f"+{best.ambiguous_gain:.3f} +{best.ambiguous_low:.3f}",
            "Dependency relations: not probed: no dependency relations in",
            "The tasks were not asked on the same text",
            "Is syntax read low in the model, and coreference high?",
            "Is coreference read higher than parts of speech?",
            HOSTILE,
        ]
        assert [each for each in said if each not in page.text] == []
        assert (outside_addresses(page), unlisted(page)) == ([], [])


def tasks_of(part: Part) -> dict[str, Section]:
    (whole,) = part.sections
    tasks = [each for each in whole.blocks if isinstance(each, Section) and each.id != "probes-depths"]
    return {each.id.removeprefix("probes-"): each for each in tasks}


def source_of(task: Section) -> str:
    _, source = task.blocks[0]
    return source.text


def caveats_of(task: Section) -> list[str]:
    return ["".join(each.text) for each in task.blocks if isinstance(each, Paragraph) and each.kind == "caveat"]


class TestHeldOut:
    def test_what_annotates_a_task_tests_it_and_other_tasks_keep_a_quarter_and_say_so(self):
        relations = {"heads": (-1, *[0] * 11), "relations": ("det", "obj") * 6}
        given = corpus("both", [replace(text, **relations) for text in tagged(80)], "tags", "relations")
        other = [replace(text, document=f"other {text.document}") for text in tagged(30, seed=1)]
        shown = section(model(), [given], held_out=[corpus("dev", other, "tags")])
        tag, relation = tasks_of(shown).values()
        assert "of dev (30 documents)" in source_of(tag)
        assert not [each for each in caveats_of(tag) if "held" in each or "kept" in each]
        assert "kept apart" in source_of(relation)
        kept = "No dependency relations in dev, so documents of the same corpus were kept for the test."
        assert kept in caveats_of(relation)
        assert shown.facts["tasks"]["tag"]["tested_on"] == "dev"
        assert shown.facts["tasks"]["relation"]["tested_on"] == "documents kept apart"


def damaged():
    yield from tagged(1)
    raise InputError("line 7 is damaged")


STRANGE = [AnnotatedText(("xx", "yy"), (True, True), f"d{at}", ("A", "B")) for at in range(30)]
SAME = corpus("same", tagged(9), "tags")


@pytest.mark.parametrize(
    ("given", "held_out", "says"),
    [
        (corpus("plain", []), [], "tag: no tags in plain; relation: no dependency relations in plain"),
        (corpus("one", tagged(1), "tags"), [], "got 1 to train on and 0 to test on"),
        (SAME, [SAME], "a document of both"),
        (replace(SAME, source=damaged), [], "^line 7 is damaged$"),  # an error, and no reason
        (corpus("strange", STRANGE, "tags"), [], "unknown to this model's tokenizer"),
    ],
)
def test_what_cannot_be_probed_leaves_nothing(tmp_path, given, held_out, says):
    with pytest.raises(InputError, match=says):
        build(model(), [given], tmp_path / "out", held_out=held_out)
    assert not (tmp_path / "out").exists()


def test_one_task_that_fails_leaves_the_others():
    shown = section(reader(), [corpus("tales", [*referring(60)], "chains", "tags")])
    assert [*tasks_of(shown)] == ["coreference"]
    assert "the corpus has no text with tags" in dict(shown.short)["Parts of speech"]


def depths(**bounds: tuple[float, float]) -> pd.DataFrame:
    """Differences with the bounds `coreference_tag_expected=(low, high)`; all others are above 0."""
    rows = []
    for pair in ("relation - tag", "coreference - tag", "coreference - relation"):
        for name in ("expected layer", "centre of gravity"):
            low, high = bounds.get(f"{pair.replace(' - ', '_')}_{name.split()[0]}", (0.5, 1.5))
            rows.append({"task": pair, "measure": name, "value": (low + high) / 2, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


UNSURE, LOWER = (-0.1, 0.4), (-2.0, -1.0)


class TestSentences:
    @pytest.mark.parametrize(
        ("tasks", "question"),
        [
            (None, "Is syntax read low in the model, and coreference high?"),
            (["tag", "tag", "relation", "relation", *["relation - tag"] * 2], "Which is read higher in the model?"),
            ("tag", "How deep in the model is it read?"),
        ],
    )
    def test_the_question_is_one_that_the_tasks_can_answer(self, tasks, question):
        assert probe_section.question_of(depths() if tasks is None else depths().assign(task=tasks)) == question

    @pytest.mark.parametrize(
        ("bounds", "says"),
        [
            ({}, "Yes, by both measures."),
            (
                {"coreference_relation_centre": UNSURE},
                "By the expected layer: yes. By the centre of gravity: it cannot",
            ),
            ({"coreference_tag_expected": UNSURE, "coreference_tag_centre": UNSURE}, "It cannot be told."),
            (
                {"coreference_relation_expected": LOWER, "coreference_tag_expected": UNSURE},
                "By the expected layer: no.",
            ),
            ({"relation_tag_expected": LOWER}, "Yes, by both measures."),
        ],
    )
    def test_verdicts(self, bounds, says):
        assert str(probe_section.verdict(depths(**bounds))).startswith(says)
        assert probe_section.verdict(depths()[:2]) is None  # nothing of coreference

    def test_differences_say_which_way_and_what_cannot_be_told(self):
        given = depths(relation_tag_expected=(-2, -1), coreference_tag_centre=(-0.25, 0.75))
        one, other, _ = probe_section.differences(given)
        assert one.startswith("Are dependency relations read higher than parts of speech? By the expected layer, no,")
        assert "yes: +1.000 (95% +0.500 to +1.500) blocks" in one
        assert "By the centre of gravity, it cannot be told: +0.250 (95% −0.250 to +0.750) blocks" in other
        missing = given.assign(value=np.nan, ci_low=np.nan, ci_high=np.nan)
        assert probe_section.verdict(missing) == "It cannot be told."
        assert "it cannot be told: one of them has none" in probe_section.differences(missing)[0]


def test_the_command_probes_the_default_model_and_says_where_it_wrote(tmp_path, capsys):
    pairs = ("the\tDET", "dog\tNOUN"), ("he\tPRON", "ran\tVERB")
    lines = []
    for number in range(40):
        first, second = (pair.split("\t") for pair in pairs[number % 2])
        rows = [f"{at}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_" for at, (word, tag) in enumerate([first, second], 1)]
        lines.append("\n".join([f"# newdoc id = d{number}", *rows]) + "\n\n")
    (tmp_path / "tagged.conllu").write_text("".join(lines))
    out = tmp_path / "new" / "out"
    ended = command(capsys, "probes", "--corpus", str(tmp_path / "tagged.conllu"), "--out", str(out), "--seed", "3")
    assert not ended.code
    assert str(out / "report.html") in ended.out
    assert run_json(out)["seed"] == 3
    assert [*run_json(out)["tasks"]] == ["tag"]
    assert "What can be read from the layers of the default model?" in page_of(out).text
