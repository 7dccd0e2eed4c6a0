"""The command and the report: what they write, how they refuse, and what a page may hold."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pages import page_of
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from analyses import behaviours, report
from analyses.behaviours import OURS
from analyses.causal_tests import Effects
from analyses.cli import app as cli
from analyses.cli import command_frame as frame
from analyses.corpora import Corpus
from analyses.experiments import experiments_section as section
from analyses.experiments.experiment import Experiment, Outcome
from analyses.figures.kinds import plot_from
from analyses.findings import best, causes, notable, varied
from analyses.head_tables import BOTH_READINGS, Collected, Heads, Measured, Scored
from analyses.headlines import head_cards
from analyses.measures import Behaviour, Measure
from analyses.reading.collectors import collect
from analyses.reading.windows import Reading
from analyses.report import full_report, label_section
from analyses.report.behaviour_sections import strongest
from interp import AnnotatedText, InputError, Mention, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.patterns import Totals
from interp.statistics import benjamini_hochberg

REAL = Path(__file__).parents[4] / "shared/models/stories260K"
needs_real = pytest.mark.skipif(not REAL.exists(), reason="shared/models/stories260K is not here")
HOSTILE = "<script>alert(1)</script>"
WORDS = ["Tim", "saw", HOSTILE, "&", "Sue", ".", "He", "was", "there", "with", "her", "dog"]


def text(document: str) -> AnnotatedText:
    n = len(WORDS)
    mentions = Mention(0, 1, 0, "t"), Mention(4, 5, 4, "s"), Mention(6, 7, 6, "t"), Mention(10, 11, 10, "s")
    return AnnotatedText(
        tuple(WORDS), (True,) * n, document, ("NOUN",) * n, (-1, *[0] * (n - 1)), ("dep",) * n, mentions, (0,)
    )


def corpus(name: str = "texts", annotates: frozenset[str] = frozenset({"tags", "relations", "chains"})) -> Corpus:
    return Corpus(name, "fake", annotates, "0" * 64, lambda: iter([text(f"d{i}{HOSTILE}") for i in range(3)]))


@pytest.fixture(scope="module")
def model() -> Transformer:
    vocabulary = {word: at for at, word in enumerate(["<unk>", *dict.fromkeys(WORDS)])}
    backend = Backend(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    torch.manual_seed(0)
    stack = StackConfig(2, 11, 3, 5, 7, 29, len(vocabulary), causal=True)
    return Transformer(TransformerConfig(decoder=stack), Tokenizer(backend))


def fake(
    behaviour: str,
    needs: frozenset[str] = frozenset(),
    *,
    left_out: str | None = None,
    refused: str | None = None,
    baselines: Sequence[Mapping[str, object]] = (),
    counts: Mapping[str, int] | None = None,
    error: Exception | None = None,
) -> Behaviour:
    """An analysis that reads its corpus and reports one clear head, L1.H2."""
    units = {"previous-token": "share", "distance": "tokens"}
    pictures = OURS[behaviour].pictures
    where = {"stack": "decoder", "attention": "self"}
    cells = [{**where, "layer": layer, "head": head} for layer in range(2) for head in range(3)]

    def rows(name: str, n: int) -> list[dict[str, object]]:
        return [
            {
                **cell,
                **{"behaviour": behaviour, "measure": each, "sink": "kept", "corpus": name, "value": gain},
                **{"baseline": 0.0, "baseline_name": "uniform", "gain": gain, "ci_low": gain - 0.02},
                **{"ci_high": gain + 0.02, "p": 0.01, "q": 0.01, "n": n, "unit": units[each], "together": ""},
                **{"reference": np.nan, "documents": 40, "fewest": 5, "readings": "kept"},
                **dict.fromkeys(("reference_gain", "reference_low", "reference_q"), np.nan),
                **dict.fromkeys(("norm_value", "norm_gain", "norm_low", "norm_high"), np.nan),
            }
            for cell in cells
            for each in ("previous-token", "distance")
            for gain in [0.9 if (cell["layer"], cell["head"]) == (1, 2) else 0.001]
        ]

    class Told(Collected):
        def measured(self, *, seed=0):
            table = pd.DataFrame(rows(self.corpus, self.documents))
            return Measured(table, pd.DataFrame([*baselines]), self.counts, self.documents)

    class Collector:
        def __init__(self, model, *, seed=0, heads=None):
            self.texts = 0

        def add(self, batch):
            self.texts += len(batch.windows)

        def collected(self, reading):
            if error is not None:
                raise error
            told = counts or {"texts": self.texts, f"words {HOSTILE}": 2}
            return Told(Heads("decoder", 2, 3), behaviour, reading.corpus.name, (), told, self.texts)

    def effects(model, *, pairs=40, seed=0, progress=None):
        columns = ["layer", "head", "behaviour", "task", "intervention", "effect", "ci_low", "ci_high", "p", "q", "n"]
        columns += ["flips", "choosing_bound"]
        rows = [
            {**cell, "behaviour": behaviour, "task": "swap", "intervention": way, "effect": 0.5 * cell["layer"]}
            | {
                "ci_low": 0.5 * cell["layer"] - 0.1,
                "ci_high": 0.5 * cell["layer"] + 0.1,
                "p": 0.02,
                "q": 0.01,
                "n": pairs,
                "flips": 3,
                "choosing_bound": 0.5 * cell["layer"] - 0.1,
            }
            for way in ("denoise", "noise")
            for cell in cells
        ]
        table = pd.DataFrame([] if left_out or refused else rows, columns=[*where, *columns])
        task = {"task": "swap", "behaviour": behaviour, "n": pairs, "clean": 2.0, "corrupt": -2.0, "neutral": 0.1}
        task |= {"difference": 4.0, "accuracy": 1.0, "left_out": 3, "refused": refused}
        return Effects(table, left_out=left_out) if left_out else Effects(table, [task])

    measures = [Measure(name, unit=unit) for name, unit in units.items()]
    told = {"headline": ("previous-token",), "needs": needs, "effects": effects, "pictures": pictures, "bare": {}}
    return replace(OURS[behaviour], measures=measures, collector=Collector, **told)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "3000"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ],
)
def test_how_threads_wait_is_set_where_the_user_has_not(given, expected, monkeypatch, capsys):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert {name: os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ} == expected


@pytest.fixture
def fakes(monkeypatch):
    """The three analyses replaced by quick ones, and the generated tales by a corpus of our own."""
    modules = [
        fake("position"),
        fake("part-of-speech", frozenset({"tags"})),
        fake("coreference", frozenset({"chains"})),
    ]
    for module in modules:
        monkeypatch.setitem(behaviours.OURS, module.name, module)
    monkeypatch.setattr("analyses.corpora.serving.read", lambda spec: corpus(f"generated {spec}"))
    monkeypatch.setattr(section, "EXPERIMENTS", {})


def experiment(title: str, left_out: Mapping[str, int] | None = None, error: str | None = None) -> Experiment[Outcome]:
    """An experiment that finds 1 of 2, or nothing."""

    def measure(model, *, seed):
        if error is not None:
            raise InputError(error)
        return Outcome(pd.DataFrame({"found": [0.5]}), {"stories": 2}, left_out or {})

    return Experiment(
        name=title,
        title=title,
        question=f"{title}?",
        command="word-sense",
        caption="Read it so.",
        measure=measure,
        sentence=lambda found: f"{title} is {found.table['found'].iloc[0]:.2f}.",
        plot=plot_from(kind="intervals", series=[{"value": "found", "label": "one line"}]),
    )


def test_every_experiment_has_a_line_and_a_figure_or_a_reason(model, fakes, tmp_path, monkeypatch):
    kinds = {
        "one": experiment(f"One {HOSTILE}", {"pairs that come apart": 3}),
        "two": experiment("Two", error="expected a causal model, got an encoder"),
        "three": experiment("Three", error="expected a causal model, got an encoder"),
        "four": experiment("Four"),
    }
    monkeypatch.setattr(section, "EXPERIMENTS", kinds)
    out = report.build(model, [corpus()], tmp_path / "out")
    facts, page = json.loads((out / "run.json").read_text()), page_of(out)
    shown = " ".join(page.text.split())
    assert f"One {HOSTILE} is 0.50. Left out: 3 pairs that come apart. Read it so. Four Four is 0.50." in shown
    reason = "Not asked of this model: Two; Three: expected a causal model, got an encoder."
    assert shown.count(reason) == shown.count("got an encoder") == 1
    names = {attrs.get("id") for _, attrs in page.tags}
    links = [str(attrs["href"])[1:] for _, attrs in page.tags if str(attrs.get("href")).startswith("#experiment")]
    assert [*dict.fromkeys(links)] == ["experiments", "experiment-one", "experiment-four"]  # in contents, and in short
    assert set(links) <= names
    alts = [attrs["alt"] for tag, attrs in page.tags if tag == "img"]
    assert sum("one line" in alt for alt in alts) == 2
    assert {f"{kind}/{name}" for kind, name in (("tables", "one.csv"), ("figures", "four.svg"))} <= set(facts["files"])
    assert not [name for name in facts["files"] if "two" in name]
    assert facts["experiments"]["one"] == {
        "used": {"stories": 2},
        "left_out": {"pairs that come apart": 3},
        "refused": {},
    }
    assert set(facts["not_asked"]) == {"two", "three"}


def test_a_model_that_no_experiment_can_be_asked_of_is_one_sentence(model, fakes, tmp_path, monkeypatch):
    refused = {name: experiment(name, error="expected a tokenizer") for name in ("one", "two")}
    monkeypatch.setattr(section, "EXPERIMENTS", refused)
    shown = page_of(report.build(model, [corpus()], tmp_path / "out")).text
    assert shown.count("None of the articles’ experiments can be asked of this model: expected a tokenizer.") == 1


@pytest.mark.parametrize(
    ("behaviours", "asked", "run"), [(None, None, True), (None, False, False), (["position"], None, False)]
)
@pytest.mark.slow
def test_experiments_are_part_of_a_report_of_everything(model, fakes, tmp_path, behaviours, asked, run):
    out = report.build(model, [corpus()], tmp_path / "out", behaviours=behaviours, experiments=asked)
    assert ("experiments" in json.loads((out / "run.json").read_text())) == run
    assert any(attrs.get("id") == "experiments" for _, attrs in page_of(out).tags) == run


def test_a_report_is_complete(model, fakes, tmp_path):
    out = report.build(model, [corpus()], tmp_path / "out", command="interp report", name="tiny", seed=3)
    facts = json.loads((out / "run.json").read_text())
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert written == set(facts["files"])
    assert {f"tables/{name}.{kind}" for name in ("heads", "effects", "tasks") for kind in ("csv", "parquet")} <= written
    assert facts["seed"] == 3
    assert facts["command"] == "interp report"
    assert len(facts["model"]["fingerprint"]) == 64
    assert facts["corpora"][0]["measured"] == ["position", "part-of-speech", "coreference"]
    assert facts["left_out"]["position"]["texts"] == 3
    assert facts["left_out"]["position"]["pairs left out of swap"] == 3
    assert {"python", "torch", "numpy", "interp"} <= set(facts["versions"])
    heads = pd.read_parquet(out / "tables/heads.parquet")
    assert set(heads["behaviour"]) == set(behaviours.OURS)
    shown = " ".join(page_of(out).text.split())
    assert "L1.H2 looks at the token before with 90% of its attention; uniform attention gets 0%" in shown
    assert "Fewer than 20 documents" in shown
    assert "L1.H0 alone restores 0.500 (95% 0.400 to 0.600; 3 of 40 answers change) and removes 0.500 (95%" in shown
    assert "Apart from labels and minimal pairs, heads are chosen and reported on the same text" in shown
    assert {f"tables/{name}.csv" for name in ("labels", "evidence")} <= written


def test_what_is_known_of_heads_is_made_once_and_sentences_are_read_while_other_parts_are_made(
    model, fakes, tmp_path, monkeypatch
):
    made, said = [], []
    for module in (full_report, head_cards):
        monkeypatch.setattr(module, "facts", lambda *given, facts=module.facts: made.append(given) or facts(*given))
    options = {"labels": False, "probes": False, "experiments": False}
    report.build(model, [corpus()], tmp_path / "out", progress=lambda stage, count: said.append(stage), **options)
    assert len(made) == 1
    rest = next(stage for stage in said if stage.startswith("the rest of"))
    assert said.index("reading sentences") < said.index(rest)


def test_plain_text_leaves_out_what_needs_annotation_and_says_so(model, fakes, tmp_path):
    said = []
    plain = corpus("plain", frozenset())
    out = report.build(model, [plain], tmp_path / "out", labels=False, progress=lambda stage, count: said.append(stage))
    facts, shown = json.loads((out / "run.json").read_text()), " ".join(page_of(out).text.split())
    reason = "it needs tags, and plain has no annotation; add --corpus tales"
    assert set(pd.read_csv(out / "tables/heads.csv")["behaviour"]) == {"position"}
    assert reason in facts["not_measured"]["part-of-speech"]
    assert "coreference chains" in facts["not_measured"]["coreference"]
    assert [(each["name"], each["measured"]) for each in facts["corpora"]] == [("plain", ["position"])]
    assert facts["on_generated_text"] == []
    assert f"Not measured: {reason}" in shown
    assert "was to be measured on" not in shown
    assert [stage for stage in said if f"part-of-speech is left out: {reason}" in stage]
    with pytest.raises(InputError, match=reason):
        report.build(model, [plain], tmp_path / "none", behaviours=["part-of-speech"], labels=False, probes=False)


def test_labels_and_probes_can_be_left_out(model, fakes, tmp_path):
    out = report.build(model, [corpus()], tmp_path / "out", labels=False, probes=False)
    facts = json.loads((out / "run.json").read_text())
    assert facts["labels_left_out"] is None
    assert not any("labels" in name or "layers" in name for name in facts["files"])
    shown = " ".join(page_of(out).text.split())
    assert "heads are chosen and reported on the same text" in shown
    assert "Probes of every layer" not in shown


def test_q_is_over_everything_that_a_table_tests(model, fakes, tmp_path):
    out = report.build(model, [corpus()], tmp_path / "out")
    for name in ("heads", "effects"):
        table = pd.read_parquet(out / f"tables/{name}.parquet")
        assert set(table["behaviour"]) == set(behaviours.OURS)
        np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))


def test_a_refused_task_says_what_was_measured(model, fakes, tmp_path, monkeypatch):
    refused = fake("position", refused="clean and corrupted prompts differ by 0.1 ± 0.2")
    monkeypatch.setitem(behaviours.OURS, "position", refused)
    out = report.build(model, [corpus()], tmp_path / "out", behaviours=["position"])
    shown = " ".join(page_of(out).text.split())
    assert shown.count("no head was tested: clean and corrupted prompts differ by 0.1 ± 0.2.") == 2


def test_rules_stand_beside_the_heads_that_must_beat_them(model, fakes, tmp_path, monkeypatch):
    rules = [{"measure": "previous-token", "sink": "kept", "baseline_name": "nearest", "value": 0.551}]
    monkeypatch.setitem(behaviours.OURS, "coreference", fake("coreference", baselines=rules))
    out = report.build(model, [corpus()], tmp_path / "out", behaviours=["coreference"])
    assert "nearest0.551" in page_of(out).text
    assert (out / "tables/baselines.csv").exists()


def test_few_labelled_heads_are_named_and_many_counted():
    where = {"stack": "encoder", "attention": "self"}
    many = [
        {**where, "layer": 1, "head": head, "behaviour": "part-of-speech", "label": "tag:A->B"} for head in range(5)
    ]
    one = {**where, "layer": 1, "head": 3, "behaviour": "coreference", "label": "antecedent"}
    labels = pd.DataFrame([one, *many]).assign(evidence="attention", readout="tag probe", task=None, n=9)
    numbers = ("gain", "gain_low", "gain_high", "effect", "effect_low", "effect_high", "q")
    labels = labels.assign(**dict.fromkeys(numbers, 0.5))
    short = label_section.short(labels, {name: each.title for name, each in OURS.items()})
    assert short.startswith("5 heads carry labels")
    assert short.endswith("By behaviour: coreference 1 (L1.H3), part of speech and syntax 5.")
    assert label_section.readouts(labels) == "a probe of the word’s tag"


def test_all_heads_of_a_label_stand_beside_the_one_that_is_missed_most():
    where = {"stack": "decoder", "attention": "self", "layer": 1, "behaviour": "position"}
    shared = {"label": "induction", "measure": "induction", "heads": 2, "all_low": 11.0, "all_high": 13.0, "others": 2}
    shared |= {"others_effect": 0.0, "others_low": -0.5, "others_high": 0.5}
    rows = [
        {**where, **shared, "head": head, "effect": 0.1 * head, "all_effect": 12.5, "rest_effect": 7.5 * head}
        for head in (1, 2)
    ]
    alone = {
        **where,
        **shared,
        "head": 3,
        "label": "self",
        "heads": 1,
        "effect": 0.3,
        "all_effect": 0.3,
        "rest_effect": np.nan,
    }
    (told,) = label_section.together(pd.DataFrame([*rows, alone])).rows
    assert "".join(getattr(part, "text", part) for cell in told for part in cell) == (
        "induction2+0.200 (L1.H2)+12.500 +11.000 to +13.000+7.50020.000 −0.500 to +0.500"
    )
    assert label_section.together(pd.DataFrame([alone])) is None


def test_lifts_and_shares_are_ranked_apart(model, fakes, tmp_path):
    (found,) = collect(Reading(model, corpus()), [behaviours.OURS["position"].collector(model)])
    assert isinstance(found, Collected)
    heads = found.table()
    lifts = heads.assign(measure="tag:NOUN->ADJ", value=3.0, gain=2.0, unit="lift")
    shares, ranked = strongest(pd.concat([heads, lifts]), ("previous-token", "tag:NOUN->ADJ"))
    assert shares.caption.startswith("Shares. ")
    assert {row[1] for row in shares.rows} == {"previous-token"}
    assert "1 is no preference" in ranked.caption
    assert {row[2] for row in ranked.rows} == {"3.000"}


def test_a_behaviour_that_this_model_cannot_show_is_left_out_and_the_rest_reported(model, fakes, tmp_path, monkeypatch):
    monkeypatch.setitem(
        behaviours.OURS, "coreference", fake("coreference", error=InputError("no pronoun in the window"))
    )
    out = report.build(model, [corpus()], tmp_path / "out")
    assert page_of(out).text.count("Not measured: no pronoun in the window.") == 2
    assert json.loads((out / "run.json").read_text())["not_measured"] == {"coreference": "no pronoun in the window"}
    assert set(pd.read_csv(out / "tables/heads.csv")["behaviour"]) == {"position", "part-of-speech"}


def test_unknown_tokens_are_said_and_a_text_of_nothing_else_is_refused(model, fakes, tmp_path, monkeypatch):
    monkeypatch.setitem(behaviours.OURS, "position", fake("position", counts={"tokens": 100, "unknown tokens": 40}))
    out = report.build(model, [corpus()], tmp_path / "out")
    assert "40% of the tokens of this text are unknown to the model" in page_of(out).text
    monkeypatch.setitem(behaviours.OURS, "position", fake("position", counts={"tokens": 100, "unknown tokens": 91}))
    with pytest.raises(InputError, match="91 of the 100 tokens"):
        report.build(model, [corpus()], tmp_path / "none", behaviours=["position"])


def test_nothing_is_fetched_and_nothing_hostile_is_markup(model, fakes, tmp_path):
    out = report.build(model, [corpus(HOSTILE)], tmp_path / "out", name="<img src=x>", command=HOSTILE)
    source, page = (out / "report.html").read_text("utf-8"), page_of(out)
    assert not any(tag in {"link", "iframe", "object"} for tag, _ in page.tags)
    assert HOSTILE not in source  # the page has scripts, and none of them is this one
    assert HOSTILE in page.text
    assert "<img src=x>" in page.text
    addresses = [value for _, attrs in page.tags for key, value in attrs.items() if key in {"src", "href", "srcset"}]
    assert addresses
    assert all(address and address.startswith(("data:", "#")) for address in addresses)
    named = source.replace("http://www.w3.org/2000/svg", "")  # what SVG is called, not where it is
    assert not re.search(r"url\(|@import|https?://", named)


@pytest.mark.slow
def test_a_behaviour_that_no_corpus_annotates_is_measured_on_stories_and_the_report_says_so(model, fakes, tmp_path):
    tagged = corpus("tagged", frozenset({"tags"}))
    out = report.build(model, [tagged], tmp_path / "out")
    facts = json.loads((out / "run.json").read_text())
    assert facts["on_generated_text"] == ["coreference"]
    assert {each["name"]: each["measured"] for each in facts["corpora"]} == {
        "tagged": ["position", "part-of-speech"],
        "generated tales:100": ["coreference"],
    }
    assert page_of(out).text.count("measured on generated tales") == 1
    out = report.build(model, [corpus("bare", frozenset())], tmp_path / "bare")
    facts = json.loads((out / "run.json").read_text())
    assert [each["measured"] for each in facts["corpora"]] == [["position"]]  # nothing stands in for plain text
    assert facts["on_generated_text"] == []


def test_a_causal_test_that_was_left_out_says_why(model, fakes, tmp_path, monkeypatch):
    monkeypatch.setitem(behaviours.OURS, "position", fake("position", left_out="this model has no output layer."))
    out = report.build(model, [corpus()], tmp_path / "out", behaviours=["position"])
    assert "this model has no output layer." in page_of(out).text
    assert json.loads((out / "run.json").read_text())["causal_test_left_out"] == {
        "position": "this model has no output layer."
    }


@pytest.mark.parametrize("behaviours", [None, ["coreference"]])
def test_a_failing_analysis_leaves_nothing(model, fakes, tmp_path, monkeypatch, behaviours):
    """A fault of the program always; what a model cannot show only where nothing else is asked for."""
    error = RuntimeError("a bug") if behaviours is None else InputError("no chains")
    monkeypatch.setitem(OURS, "coreference", fake("coreference", error=error))
    with pytest.raises(type(error), match=str(error)):
        report.build(model, [corpus()], tmp_path / "out", behaviours=behaviours)
    assert not os.listdir(tmp_path)


def test_a_corpus_that_is_damaged_further_down_leaves_nothing(model, fakes, tmp_path):
    def texts():
        yield text("d0")
        raise InputError("line 7 is damaged")

    damaged = replace(corpus(), source=texts)
    with pytest.raises(InputError, match="line 7"):
        report.build(model, [damaged], tmp_path / "out")
    assert not os.listdir(tmp_path)


# Findings.


KNOWN = {measure.name: measure for behaviour in OURS.values() for measure in behaviour.measures}


def findings_table(**gains: float) -> pd.DataFrame:
    where = {"stack": "decoder", "attention": "self", "layer": 0, "head": 0, "sink": "kept", "baseline": 0.4}
    rows = []
    for name, gain in gains.items():
        measure = KNOWN.get(name.replace("_", ":"), Measure(name))
        reference = 0.4 if measure.reference else np.nan  # no easier than the baseline, unless a test says so
        rule = {
            "unit": measure.unit,
            "together": measure.together,
            "reference": reference,
            **{"reference_gain": gain, "reference_low": gain - 0.02, "reference_q": 0.01},
            "documents": 40,
            "fewest": 8,
            "readings": "kept",
            "behaviour": "any",
            "corpus": "texts",
        }
        rows.append({**where, "measure": measure.name, "gain": gain, "ci_low": gain - 0.02, "q": 0.01, **rule})
    return pd.DataFrame(rows)


def test_a_head_that_only_finds_the_previous_pronoun_is_no_coreference_head():
    assert notable(findings_table(antecedent=0.3, antecedent_named=-0.1)).empty
    assert notable(findings_table(antecedent=-0.1, antecedent_named=0.3)).empty
    assert list(notable(findings_table(antecedent=0.3, antecedent_named=0.2))["measure"]) == [
        "antecedent",
        "antecedent:named",
    ]


def test_on_all_items_a_coreference_head_need_only_beat_the_nearest_mention():
    table = findings_table(antecedent=-0.1, antecedent_named=0.3)
    on_all = table["measure"] == "antecedent"
    beats = table.assign(reference_gain=np.where(on_all, 0.1, np.nan), reference_low=np.where(on_all, 0.08, np.nan))
    assert list(notable(beats)["measure"]) == ["antecedent:named"]
    assert notable(beats.assign(reference_gain=0.0)).empty
    assert notable(beats.assign(reference_low=-0.01)).empty
    assert notable(beats.assign(reference_q=0.2)).empty  # a test of its own, which may fail by itself


def test_the_gain_over_the_reference_is_estimated_on_its_own_totals():
    """The nearest mention is as far below the head in every document; the strictest rule is above it in some."""
    measure, heads = KNOWN["antecedent"], Heads("decoder", 1, 1)
    totals = Totals.empty(3, 1)  # the head, nearest, and a rule that is the strictest
    groups = torch.arange(20)
    right = torch.stack([torch.full((20,), 5.0), torch.full((20,), 3.0), (groups % 2) * 6.0 + 3.0], 1)[..., None]
    totals.add(groups, right, torch.full_like(right, 10.0))
    scored = Scored(totals, [measure], "kept", ["nearest", "other"])
    (row,) = Collected(heads, "coreference", "texts", [scored], {}, 20).table().to_dict("records")
    assert row["baseline_name"] == "other"
    assert row["gain"] == pytest.approx(-0.1)
    assert (row["reference"], row["reference_gain"]) == (pytest.approx(0.3), pytest.approx(0.2))
    moved = row["ci_low"] + row["baseline"] - row["reference"]
    assert moved < 0.15 < row["reference_low"]  # it never varies, and the strictest does
    assert row["reference_q"] < 0.05


def test_without_a_start_token_a_finding_about_words_must_hold_without_the_first_position():
    kept = findings_table(induction=0.3).assign(readings=BOTH_READINGS)
    assert notable(kept).empty
    for gain, holds in ((0.2, 1), (0.04, 0)):
        without = kept.assign(sink="removed", gain=gain, ci_low=gain - 0.02)
        assert len(notable(pd.concat([kept, without], ignore_index=True))) == holds


def test_a_gain_below_five_hundredths_is_no_finding():
    assert notable(findings_table(induction=0.049)).empty
    assert len(notable(findings_table(induction=0.051))) == 1


def test_what_the_false_discovery_rate_does_not_allow_is_no_finding():
    assert notable(findings_table(induction=0.3).assign(q=0.06)).empty


def test_entropy_and_distance_describe_and_are_no_findings():
    assert notable(findings_table(entropy=0.3, distance=4.0)).empty


def test_a_head_is_named_once_with_its_largest_gain():
    table = findings_table(induction=0.1, self=0.4)
    assert list(best(table, ["induction", "self"])["measure"]) == ["self"]


def test_no_measure_comes_twice_before_every_one_has_come():
    table = pd.concat(
        [
            findings_table(a=0.9, b=0.1),
            findings_table(a=0.8).assign(head=1),
            findings_table(a=0.7, b=0.2).assign(head=2),
        ]
    )
    chosen = varied(table, ["a", "b"])
    assert list(zip(chosen["head"], chosen["measure"], strict=True)) == [(0, "a"), (2, "b"), (1, "a")]


def test_negative_effects_are_no_causes():
    effects = fake("position").effects(None).table
    effects.loc[effects["layer"] == 1, ["effect", "ci_low", "ci_high"]] *= -1
    assert causes(effects, "swap").empty


# The command line.


def test_help_brings_in_nothing_heavy():
    code = (
        "import sys\nfrom analyses.cli.app import main\ntry:\n    main(['report', '--help'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'pandas', 'matplotlib', 'numpy', 'jinja2', 'interp'} & set(sys.modules)\n"
        "    sys.exit(f'{heavy} imported' if heavy else end.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--corpus" in done.stdout


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr with which the command refuses."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("interp: ")
    return line


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, in which a refused command must leave nothing new."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["report", "position", "part-of-speech", "coreference"])
def test_a_missing_model_directory_is_one_line(here, capsys, command):
    assert "nowhere" in refusal(capsys, command, "--model", "nowhere")
    assert not os.listdir(here)


def test_a_wrong_option_is_one_line(here, capsys):
    assert "float8" in refusal(capsys, "report", "--dtype", "float8")


def test_an_unknown_family_is_one_line(here, capsys):
    folder = here / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "perceiver"}')
    assert "perceiver" in refusal(capsys, "report", "--model", "model")
    assert os.listdir(here) == ["model"]


@needs_real
def test_truncated_weights_are_one_line(here, capsys):
    shutil.copytree(REAL, here / "model")
    weights = here / "model/model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:5000])
    assert "model.safetensors" in refusal(capsys, "report", "--model", "model")
    assert os.listdir(here) == ["model"]


@needs_real
@pytest.mark.parametrize(
    ("content", "says"), [("", "corpus.txt"), ("a\tb\tc\n1\t2\t3\n", "corpus.txt"), ("once upon a time", "corpus.txt")]
)
def test_a_corpus_that_is_empty_or_of_another_format_is_one_line(here, capsys, content, says):
    (here / "corpus.txt").write_text(content)
    assert says in refusal(capsys, "report", "--model", str(REAL), "--corpus", "corpus.txt")
    assert os.listdir(here) == ["corpus.txt"]


@needs_real
def test_an_output_path_that_is_a_file_is_one_line(here, capsys):
    (here / "out").write_text("mine")
    assert "out is a file" in refusal(capsys, "report", "--model", str(REAL), "--out", "out")
    assert (here / "out").read_text() == "mine"


@needs_real
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there_is_one_line(here, capsys):
    assert "cuda" in refusal(capsys, "report", "--model", str(REAL), "--device", "cuda")
    assert not os.listdir(here)


@needs_real
def test_generate_continues_as_the_author_says(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", "Once upon a time", "--model", str(REAL), "--tokens", "20"])
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("Once upon a time, there was a little girl named Lily.")


def test_an_interrupted_command_ends_with_one_line(here, capsys, monkeypatch):
    monkeypatch.setattr(frame, "opened", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit) as ended:
        cli.main(["report"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interp: interrupted; nothing was written\n"
    assert not os.listdir(here)


# Examples.


def test_word_patterns_of_a_text_add_up_and_miss_nothing(model):
    from analyses.reading.examples import Head, word_patterns

    (pattern,) = word_patterns(model, text("d"), [Head("decoder", 1, 2)])
    np.testing.assert_allclose(pattern.sum(1), 1, atol=1e-6)
    with pytest.raises(InputError, match="no head"):
        word_patterns(model, text("d"), [Head("decoder", 1, 3)])


def test_an_excerpt_keeps_what_is_inside():
    part = text("d").excerpt(4, 9)
    assert part.words == ("Sue", ".", "He", "was", "there")
    assert part.mentions == (Mention(0, 1, 0, "s"), Mention(2, 3, 2, "t"))
    assert part.heads == (-1,) * 5


def test_a_run_without_out_takes_no_earlier_ones_place(model, fakes, here, capsys, monkeypatch):
    monkeypatch.setattr(frame, "opened", lambda *_: model)
    monkeypatch.setattr("analyses.cli.measure_commands.corpora", lambda specs: [corpus()])

    def told(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["interp", "position", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main(["position", *arguments])
        assert not ended.value.code
        (written,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("wrote"))
        return written.split(";")[0]

    assert told() == "wrote position/report.html"
    assert told("--seed", "1") == "wrote position-2/report.html (position was there already)"
    assert told("--seed", "2", "--out", "position") == "wrote position/report.html"  # as asked
    assert [json.loads((here / name / "run.json").read_text())["seed"] for name in ("position", "position-2")] == [2, 1]
