"""The command and the report: what do they write, how do they refuse, and what may a page contain?"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from commands import command, refusal
from pages import Page, outside_addresses, page_of
from worded import worded

from analyses import behaviours, experiments, report
from analyses.behaviours import OURS
from analyses.corpora import Corpus
from analyses.experiments.experiment import Experiment, Outcome
from analyses.figures.kinds import plot_from
from analyses.headlines import head_cards
from analyses.measures.definitions import Measure, Rival
from analyses.measures.findings import best, causes, notable
from analyses.measures.head_tables import BOTH_READINGS, Collected, Heads, Measured, Scored
from analyses.page import sections
from analyses.reading.windows import Reading
from analyses.report import full_report, report_parts
from analyses.report.behaviour_sections import strongest
from analyses.report.scaffold import write
from analyses.scoring.collectors import Scoring, collect
from analyses.tasks.causal_tests import Effects
from interp import AnnotatedText, InputError, Mention, Transformer
from interp.patterns import Totals
from interp.statistics import benjamini_hochberg
from tests.analyses.headlines.hand_made_tables import head_at, heads_row

HOSTILE = "<script>alert(1)</script>"
WORDS = ["Tim", "saw", HOSTILE, "&", "Sue", ".", "He", "was", "there", "with", "her", "dog"]


def text(document: str) -> AnnotatedText:
    n = len(WORDS)
    mentions = tuple(Mention(i, i + 1, i, chain) for i, chain in ((0, "t"), (4, "s"), (6, "t"), (10, "s")))
    heads = -1, *[0] * (n - 1)
    return AnnotatedText((*WORDS,), (True,) * n, document, ("NOUN",) * n, heads, ("dep",) * n, mentions, (0,))


def corpus(name: str = "texts", annotates: frozenset[str] = frozenset({"tags", "relations", "chains"})) -> Corpus:
    return Corpus(name, "fake", annotates, "0" * 64, lambda: iter([text(f"d{i}{HOSTILE}") for i in range(3)]))


@pytest.fixture(scope="module")
def model() -> Transformer:
    return worded(*WORDS)


def fake(behaviour, needs=frozenset(), *, left_out=None, refused=None, baselines=(), counts=None, error=None):
    """An analysis that reads its corpus and reports one clear head, L1.H2."""
    units = {"previous-token": "share", "distance": "tokens"}
    cells = [head_at(*cell) for cell in np.ndindex(2, 3)]

    def rows(name: str, n: int) -> pd.DataFrame:
        more = {"corpus": name, "n": n, "documents": 40, "p": 0.01, "q": 0.01}
        more |= dict.fromkeys(("norm_value", "norm_gain", "norm_low", "norm_high"), np.nan)
        table = [
            heads_row(*cell, behaviour, each, 0.9 if cell == (1, 2) else 0.001, 0.0, unit=unit, **more)
            for cell, (each, unit) in product(np.ndindex(2, 3), units.items())
        ]
        return pd.DataFrame(table)

    class Rows(Collected):
        def measured(self, *, seed=0):
            return Measured(rows(self.corpus, self.documents), pd.DataFrame([*baselines]), self.counts, self.documents)

    class Collector(Scoring):
        def __init__(self, model, *, seed=0, heads=None):
            super().__init__(model, behaviour, heads)

        def collected(self, reading):
            if isinstance(error, InputError):
                return error
            if error is not None:
                raise error
            texts = reading.counts["texts"]
            read = counts or {"texts": texts, f"words {HOSTILE}": 2}
            return Rows(Heads("decoder", 2, 3), behaviour, reading.corpus.name, (), read, texts)

    def effects(model, *, pairs=40, seed=0, progress=None):
        ways = [{**cell, "intervention": way} for way in ("denoise", "noise") for cell in cells]
        table = pd.DataFrame(ways).assign(behaviour=behaviour, task="swap", p=0.02, q=0.01, n=pairs, flips=3)
        effect = 0.5 * table["layer"]
        bounds = {"ci_low": effect - 0.1, "ci_high": effect + 0.1, "choosing_bound": effect - 0.1}
        table = table.assign(effect=effect, **bounds).iloc[: 0 if left_out or refused else None]
        task = {"task": "swap", "behaviour": behaviour, "n": pairs, "clean": 2.0, "corrupt": -2.0, "neutral": 0.1}
        task |= {"difference": 4.0, "accuracy": 1.0, "left_out": 3, "refused": refused}
        return Effects(table, left_out=left_out) if left_out else Effects(table, [task])

    measures = [Measure(name, unit=unit) for name, unit in units.items()]
    headline = {"headline": ("previous-token",), "bare": {}}
    return replace(
        OURS[behaviour], measures=measures, collector=Collector, needs=needs, effects=effects, tasks={}, **headline
    )


@pytest.fixture(scope="module")
def faked() -> Iterator[pytest.MonkeyPatch]:
    """Replace the three analyses by quick ones, and generated tales by our own corpus."""
    with pytest.MonkeyPatch.context() as patch:
        for name, needs in (("position", ()), ("part-of-speech", ("tags",)), ("coreference", ("chains",))):
            patch.setitem(behaviours.OURS, name, fake(name, frozenset(needs)))
        patch.setattr("analyses.corpora.corpus.read", lambda spec: corpus(f"generated {spec}"))
        patch.setattr(experiments, "EXPERIMENTS", {})
        yield patch


@pytest.fixture
def fakes(faked, monkeypatch) -> pytest.MonkeyPatch:
    return monkeypatch


class Built(NamedTuple):
    """A report's directory, its run.json and its page's text."""

    out: Path
    facts: dict
    page: Page
    text: str


def build(model, out: Path, texts: Corpus | None = None, **options) -> Built:
    report.build(model, [texts or corpus()], out, **options)
    page = page_of(out)
    return Built(out, json.loads((out / "run.json").read_text()), page, " ".join(page.text.split()))


@pytest.fixture(scope="module")
def whole(model, faked, tmp_path_factory) -> Built:
    """A report of everything, with markup as names; two experiments have results, two refuse."""
    kinds = {
        "one": experiment(f"One {HOSTILE}", {"pairs that come apart": 3}),
        "two": experiment("Two", error="expected a causal model, got an encoder"),
        "three": experiment("Three", error="expected a causal model, got an encoder"),
        "four": experiment("Four"),
    }
    rules = [{"measure": "previous-token", "sink": "kept", "baseline_name": "nearest", "value": 0.551}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "EXPERIMENTS", kinds)
        patch.setitem(behaviours.OURS, "coreference", fake("coreference", frozenset({"chains"}), baselines=rules))
        names = {"name": "<img src=x>", "command": HOSTILE, "seed": 3}
        return build(model, tmp_path_factory.mktemp("whole") / "out", corpus(HOSTILE), **names)


def experiment(title: str, left_out: Mapping[str, int] | None = None, error: str | None = None) -> Experiment:
    """An experiment that finds 1 of 2, or fails."""

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
        sentence=lambda outcome: f"{title} is {outcome.table['found'].iloc[0]:.2f}.",
        plot=plot_from(kind="intervals", series=[{"value": "found", "label": "one line"}]),
    )


def test_a_report_is_complete(whole):
    out, facts = whole.out, whole.facts
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == set(facts["files"])
    tables = ("heads", "effects", "tasks", "labels", "evidence", "baselines")
    assert {f"tables/{name}.{kind}" for name in tables for kind in ("csv", "parquet")} <= files
    assert (facts["seed"], facts["command"], len(facts["model"]["fingerprint"])) == (3, HOSTILE, 64)
    assert facts["corpora"][0]["measured"] == ["position", "part-of-speech", "coreference"]
    assert facts["left_out"]["position"]["texts"] == 3
    assert facts["left_out"]["position"]["pairs left out of swap"] == 3
    assert {"python", "torch", "numpy", "interp"} <= set(facts["versions"])
    for name in ("heads", "effects"):  # q is over everything that a table tests
        table = pd.read_parquet(out / f"tables/{name}.parquet")
        assert set(table["behaviour"]) == set(behaviours.OURS)
        np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))
    assert "L1.H2 shows “previous-token” with 90% of its attention" in whole.text  # its measure has no words
    assert "Fewer than 20 documents" in whole.text
    assert (
        "Given what it computed for the other prompt, L1.H0 flips 3 of 40 answers; "
        "swap moves 50% of the way to that prompt’s" in whole.text
    )
    assert "Apart from labels and minimal pairs, heads are chosen and reported on the same text" in whole.text
    assert "nearest0.551" in whole.page.text  # rules are listed beside the heads that must beat them


def test_every_experiment_has_a_line_and_a_figure_or_a_reason(whole):
    facts, page, text = whole.facts, whole.page, whole.text
    assert f"One {HOSTILE} is 0.50. Left out: 3 pairs that come apart. Read it so. Four Four is 0.50." in text
    reason = "Not run on this model: Two; Three: expected a causal model, got an encoder."
    assert text.count(reason) == text.count("got an encoder") == 1
    links = [str(attrs["href"])[1:] for _, attrs in page.tags if str(attrs.get("href")).startswith("#experiment")]
    assert [*dict.fromkeys(links)] == ["experiments", "experiment-one", "experiment-four"]  # in contents, and in short
    assert set(links) <= {attrs.get("id") for _, attrs in page.tags}
    assert sum("one line" in attrs["alt"] for tag, attrs in page.tags if tag == "img") == 2
    assert {f"{kind}/{name}" for kind, name in (("tables", "one.csv"), ("figures", "four.svg"))} <= set(facts["files"])
    assert not [name for name in facts["files"] if "two" in name]
    counts = {"used": {"stories": 2}, "left_out": {"pairs that come apart": 3}, "refused": {}}
    assert (facts["experiments"]["one"], set(facts["not_asked"])) == (counts, {"two", "three"})


def test_nothing_is_fetched_and_nothing_hostile_is_markup(whole):
    source = (whole.out / "report.html").read_text("utf-8")
    assert not any(tag in {"link", "iframe", "object"} for tag, _ in whole.page.tags)
    assert HOSTILE not in source  # the page has scripts, but not this one
    assert HOSTILE in whole.page.text
    assert "<img src=x>" in whole.page.text
    assert outside_addresses(whole.page) == []
    markup = source.replace("http://www.w3.org/2000/svg", "")  # SVG's name, not an address to fetch
    assert not re.search(r"url\(|@import|https?://", markup)


def test_plain_text_leaves_out_what_needs_annotation_and_says_so(model, fakes, tmp_path):
    """Facts about heads are computed once per page, and sentences are read while other parts are computed."""
    calls, stages = [], []
    for module, name in ((full_report, "facts_of"), (head_cards.fact_tables, "facts")):
        facts = getattr(module, name)
        fakes.setattr(module, name, lambda *tables, facts=facts: calls.append(tables) or facts(*tables))
    refused = {name: experiment(name, error="expected a tokenizer") for name in ("one", "two")}
    fakes.setattr(experiments, "EXPERIMENTS", refused)
    plain, reason = corpus("plain", frozenset()), "it needs tags, and plain has no annotation; add --corpus tales"
    how = {"labels": False, "probes": False, "progress": lambda stage, count: stages.append(stage)}
    out, facts, _, text = build(model, tmp_path / "out", plain, **how)
    assert set(pd.read_csv(out / "tables/heads.csv")["behaviour"]) == {"position"}
    assert reason in facts["not_measured"]["part-of-speech"]
    assert "coreference chains" in facts["not_measured"]["coreference"]
    assert [(each["name"], each["measured"]) for each in facts["corpora"]] == [("plain", ["position"])]
    assert (facts["on_generated_text"], facts["labels_left_out"]) == ([], None)
    assert f"Not measured: {reason}" in text
    assert "was to be measured on" not in text
    assert text.count("None of the articles’ experiments can run on this model: expected a tokenizer.") == 1
    assert "heads are chosen and reported on the same text" in text
    assert [stage for stage in stages if f"part-of-speech is left out: {reason}" in stage]
    assert len(calls) == 2  # for the first page, and for the whole
    assert stages.index("reading sentences") < stages.index("what explains attention")
    with pytest.raises(InputError, match=reason):
        report.build(model, [plain], tmp_path / "none", behaviours=["part-of-speech"], labels=False, probes=False)


def test_all_heads_of_a_label_stand_beside_the_one_that_is_missed_most():
    shared = {"stack": "decoder", "attention": "self", "layer": 1, "behaviour": "position", "label": "induction"}
    shared |= {"measure": "induction", "heads": 2, "all_low": 11.0, "all_high": 13.0, "others": 2}
    shared |= {"others_effect": 0.0, "others_low": -0.5, "others_high": 0.5, "all_effect": 12.5}
    rows = [{**shared, "head": head, "effect": 0.1 * head, "rest_effect": 7.5 * head} for head in (1, 2)]
    alone = shared | {"head": 3, "label": "self", "heads": 1, "effect": 0.3, "rest_effect": np.nan}
    (row,) = report_parts.joint_effects(pd.DataFrame([*rows, alone])).rows
    assert "".join(getattr(part, "text", part) for cell in row for part in cell) == (
        "induction2+0.200 (L1.H2)+12.500 +11.000 to +13.000+7.50020.000 −0.500 to +0.500"
    )
    assert report_parts.joint_effects(pd.DataFrame([alone])) is None


def test_lifts_and_shares_are_ranked_apart(model, fakes, tmp_path):
    (result,) = collect(Reading(model, corpus()), [behaviours.OURS["position"].collector(model)])
    assert isinstance(result, Collected)
    heads = result.table()
    lifts = heads.assign(measure="tag:NOUN->ADJ", value=3.0, gain=2.0, unit="lift")
    shares, ranked = strongest(pd.concat([heads, lifts]), ("previous-token", "tag:NOUN->ADJ"))
    assert shares.caption.startswith("Shares. ")
    assert {row[1] for row in shares.rows} == {"previous-token"}
    assert "1 is no preference" in ranked.caption
    assert {row[2] for row in ranked.rows} == {"3.000"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"refused": "prompts differ by 0.1 ± 0.2"}, ": prompts differ by 0.1 ± 0.2."),
        ({"left_out": "this model has no output layer."}, "this model has no output layer."),
    ],
)
def test_what_one_behaviour_cannot_tell_is_said_on_the_page(model, fakes, tmp_path, changed, sentence):
    why = "no pronoun in the window"
    fakes.setitem(behaviours.OURS, "coreference", fake("coreference", error=InputError(why)))
    unknown = {"counts": {"tokens": 100, "unknown tokens": 40}}
    fakes.setitem(behaviours.OURS, "position", fake("position", **changed, **unknown))
    built = build(model, tmp_path / "out", behaviours=["position", "coreference"], labels=False, probes=False)
    assert "40% of the tokens of this text are unknown to the" in built.text
    assert built.text.count(sentence) == 1
    assert built.text.count(f"Not measured: {why}.") == 2
    assert built.facts["not_measured"] == {"coreference": why}
    assert set(pd.read_csv(built.out / "tables/heads.csv")["behaviour"]) == {"position"}
    assert built.facts["causal_test_left_out"] == ({"position": sentence} if "left_out" in changed else {})


@pytest.mark.parametrize(
    ("changed", "behaviours", "message"),
    [
        ({"error": RuntimeError("a bug")}, None, "a bug"),  # a bug always fails
        ({"counts": {"tokens": 100, "unknown tokens": 91}}, ["coreference"], "91 of the 100 tokens"),
    ],
)
def test_a_failing_analysis_leaves_nothing(model, fakes, tmp_path, changed, behaviours, message):
    fakes.setitem(OURS, "coreference", fake("coreference", **changed))
    with pytest.raises((RuntimeError, InputError), match=message):
        report.build(model, [corpus()], tmp_path / "out", behaviours=behaviours)
    assert {*os.listdir(tmp_path)} <= {".out.shards"}  # finished work is kept for the same command


KNOWN = {measure.name: measure for behaviour in OURS.values() for measure in behaviour.measures}


def findings_table(**gains: float) -> pd.DataFrame:
    base = {"stack": "decoder", "attention": "self", "layer": 0, "head": 0, "sink": "kept", "baseline": 0.4, "q": 0.01}
    base |= {"reference_q": 0.01, "documents": 40, "fewest": 8, "readings": "kept", "behaviour": "any"}
    rows = []
    for name, gain in gains.items():
        measure = KNOWN.get(name.replace("_", ":"), Measure(name))
        reference = 0.4 if measure.reference else np.nan  # no easier than the baseline, unless a test says so
        row = {"measure": measure.name, "unit": measure.unit, "together": measure.together, "reference": reference}
        rows.append({**row, "gain": gain, "ci_low": gain - 0.02, "reference_gain": gain, "reference_low": gain - 0.02})
    return pd.DataFrame(rows).assign(**base, corpus="texts")


def test_the_gain_over_the_reference_is_estimated_on_its_own_totals():
    """The nearest mention is below the head by as much in every document; the strictest rule is above it in some."""
    measure, heads = KNOWN["antecedent"], Heads("decoder", 1, 1)
    totals = Totals.empty(3, 1)  # the head, nearest, and the strictest rule
    groups = torch.arange(20)
    right = torch.stack([torch.full((20,), 5.0), torch.full((20,), 3.0), (groups % 2) * 6.0 + 3.0], 1)[..., None]
    totals.add(groups, right, torch.full_like(right, 10.0))
    scored = Scored(totals, [replace(measure, rivals=[Rival("nearest", None), Rival("other", None)])], "kept")
    (row,) = Collected(heads, "coreference", "texts", [scored], {}, 20).table().to_dict("records")
    assert row["baseline_name"] == "other"
    assert row["gain"] == pytest.approx(-0.1)
    assert (row["reference"], row["reference_gain"]) == (pytest.approx(0.3), pytest.approx(0.2))
    moved = row["ci_low"] + row["baseline"] - row["reference"]
    assert moved < 0.15 < row["reference_low"]  # its gap never varies, the strictest rule's does
    assert row["reference_q"] < 0.05


LESS = {"gain": 0.04, "ci_low": 0.02}


@pytest.mark.parametrize(
    ("gains", "changed", "without", "n"),
    [
        ({"induction": 0.049}, {}, None, 0),  # below 0.05
        ({"induction": 0.051}, {}, None, 1),
        ({"induction": 0.3}, {"q": 0.06}, None, 0),  # above the false discovery rate
        ({"entropy": 0.3, "distance": 4.0}, {}, None, 0),  # measures that only describe
        ({"antecedent": 0.3, "antecedent_named": -0.1}, {}, None, 0),  # only finds the previous pronoun
        ({"antecedent": 0.3, "antecedent_named": 0.2}, {}, None, 2),
        ({"antecedent": -0.1, "antecedent_named": 0.3}, {}, None, 0),  # unless it beats the nearest on all items
        ({"antecedent": -0.1, "antecedent_named": 0.3}, {"reference_gain": 0.1, "reference_low": 0.08}, None, 1),
        ({"antecedent": -0.1, "antecedent_named": 0.3}, {"reference_gain": 0.1, "reference_low": -0.1}, None, 0),
        ({"antecedent": -0.1, "antecedent_named": 0.3}, {"reference_gain": 0.1, "reference_q": 0.2}, None, 0),
        ({"induction": 0.3}, {"readings": BOTH_READINGS}, None, 0),  # without a start token, a second reading counts
        ({"induction": 0.3}, {"readings": BOTH_READINGS}, {}, 1),
        ({"induction": 0.3}, {"readings": BOTH_READINGS}, LESS, 0),
    ],
)
def test_what_is_a_finding(gains, changed, without, n):
    table = findings_table(**gains)
    on_all = table["measure"] != "antecedent:named"
    for column, value in changed.items():
        table[column] = np.where(on_all, value, np.nan) if column.startswith("reference_") else value
    readings = [table] if without is None else [table, table.assign(sink="removed", **without)]
    assert len(notable(pd.concat(readings, ignore_index=True))) == n


def test_the_best_heads_come_once_each_with_their_largest_gain():
    gains = {"a": 0.9, "b": 0.1}, {"a": 0.8}, {"a": 0.7, "b": 0.2}
    table = pd.concat([findings_table(**each).assign(head=head) for head, each in enumerate(gains)])
    assert list(best(table, ["a", "b"])["measure"]) == ["a"] * 3


def test_negative_effects_are_no_causes():
    effects = fake("position").effects(None).table
    effects.loc[effects["layer"] == 1, ["effect", "ci_low", "ci_high"]] *= -1
    assert causes(effects, "swap").empty


def test_help_brings_in_nothing_heavy():
    code = """import sys
from analyses.cli.app import main
try:
    main(['report', '--help'])
except SystemExit as end:
    heavy = {'torch', 'pandas', 'matplotlib', 'numpy', 'jinja2', 'interp'} & set(sys.modules)
    sys.exit(f'{heavy} imported' if heavy else end.code)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--corpus" in done.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch, stories):
    """A directory with faulty inputs; a refused command must leave nothing new there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "perceiver"}')
    shutil.copytree(stories, tmp_path / "truncated")
    weights = tmp_path / "truncated/model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:5000])
    for name, content in (("empty", ""), ("columns", "a\tb\tc\n1\t2\t3\n")):
        (tmp_path / f"{name}.txt").write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("coreference --model nowhere", "nowhere"),
        ("report --dtype float8", "float8"),
        ("report --model model", "perceiver"),
        ("report --model truncated", "model.safetensors"),
        *((f"report --model REAL --corpus {name}.txt", f"{name}.txt") for name in ("empty", "columns")),
        ("report --model REAL --out empty.txt", "empty.txt is a file"),
        pytest.param(
            "report --model REAL --device cuda",
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device"),
        ),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line_and_leaves_nothing(folder, stories, capsys, arguments, words):
    before = sorted(os.listdir(folder))
    assert words in refusal(capsys, *arguments.replace("REAL", str(stories)).split())
    assert sorted(os.listdir(folder)) == before


def test_a_log_of_json_is_json_alone_and_a_quiet_or_short_command_has_none(tmp_path, capsys, monkeypatch):
    def build(model, corpora, out, *, seed, command, progress, **how):
        progress("a part is left out\n", 0)
        write(out, lambda run: sections.Page("What?", ["short"], []), {}, seed=seed, command=command, progress=progress)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "build", build)
    lines = [json.loads(line) for line in command(capsys, "position", "--log-json").err.splitlines()]
    assert [line.get("message", line.get("stage")) for line in lines] == ["a part is left out", "done"]
    assert command(capsys, "position", "--log-json", "--quiet") == (0, "", "")
    assert command(capsys, "position").err == "a part is left out\n"


def test_a_run_without_out_takes_no_earlier_ones_place(tmp_path, capsys, monkeypatch):
    def build(model, corpora, out, *, seed, command, **how):
        write(out, lambda run: sections.Page("What?", ["short"], []), {}, seed=seed, command=command)

    def first_line(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["interp", "position", *arguments])
        code, out, _ = command(capsys, "position", *arguments)
        assert code == 0
        return out.splitlines()[0].split(";")[0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "build", build)
    assert first_line() == "wrote position/report.html"
    assert first_line("--seed", "1") == "wrote position-2/report.html (position was there already)"
    assert first_line("--seed", "2", "--out", "position") == "wrote position/report.html"  # as requested
    seeds = [json.loads((tmp_path / name / "run.json").read_text())["seed"] for name in ("position", "position-2")]
    assert seeds == [2, 1]
