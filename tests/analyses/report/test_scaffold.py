"""All commands write their directories alike: records have the same keys, pages show every kind of value."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing
from pages import outside_addresses, page_of, slips, unlisted
from tiny import LLAMA

from analyses.corpora import Corpus
from analyses.execution.provenance import SCHEMA
from analyses.page import sections as values
from analyses.page.sections import Definitions, Page, Section, Source, Table, bold, link
from analyses.report.scaffold import Run, short_name, write
from interp import InputError, Transformer, TransformerConfig

HOSTILE = "<script>alert(1)</script> & co"
RECORDED = {"made_by", "schema", "command", "seed", "versions", "processor", "seconds", "stages", "corpora", "files"}
RECORDED |= {"sentences", "tables_sha256"}
TABLE = pd.DataFrame({"layer": [0, 1]})


def drawing() -> Drawing:
    figure = Drawing(figsize=(2, 2))
    figure.suptitle("Is it\ndrawn?")
    return figure


def page(**more) -> Page:
    rows = [["a", bold(HOSTILE)], "over the rows", [[values.Tokens([(HOSTILE, True)])], "b"]]
    marked = Table(["", HOSTILE], rows, "lr")
    inline = values.emphasis("two"), values.code("three"), values.soft(" four "), link("five", "here")
    blocks = [
        HOSTILE,
        ["one, ", *inline, values.page_link("default/report.html")],
        *(values.remark("soft"), values.caveat("beware")),
        values.Bullets([HOSTILE, values.joined(["x", bold("y")], "; ")]),
        Definitions([("term", "said", values.Bullets(["more"]))]),
        Section("Below", [marked, values.Figure("drawn", drawing(), HOSTILE, f"Two dots. {HOSTILE}")], "here"),
        values.Details("Folded", values.counts_table([{"texts": 3, "nothing": 0}], ["read"])),
    ]
    return Page(f"What of {HOSTILE}?", ["short"], [Section("One", blocks, "one")], tables={"layers": TABLE}, **more)


def record_of(out: Path, doc: Page, models=None, **how) -> dict:
    write(out, lambda run: doc, models or {}, **how)
    return json.loads((out / "run.json").read_text())


MODEL = Transformer(TransformerConfig(decoder=LLAMA))


def test_every_record_has_the_same_keys_whatever_was_measured(tmp_path):
    corpus = Corpus("texts", "fake", frozenset({"tags"}), "0" * 64, lambda: iter(()))
    doc = page(corpora=[Source(corpus, values.UNUSED, {"measured": []})], facts={"own": 1}, models={"b": {"more": 2}})
    single = record_of(tmp_path / "one", doc, {"a": MODEL}, seed=3, command="interp x")
    two = record_of(tmp_path / "two", doc, {"a": MODEL, "b": MODEL})
    none = record_of(tmp_path / "none", page())
    assert {*single} - {"name", "model", "own"} == {*two} - {"models", "own"} == {*none} - {"models"} == RECORDED
    assert (single["schema"], single["seed"], single["command"], single["own"]) == (SCHEMA, 3, "interp x", 1)
    source = {"name": "texts", "kind": "fake", "sha256": "0" * 64, "annotates": ["tags"], "measured": []}
    assert single["corpora"] == [source]
    assert len(single["model"]["fingerprint"]) == 64
    assert single["model"]["sha256"] is None  # not read from files
    assert [each["name"] for each in two["models"]] == ["a", "b"]
    assert two["models"][1]["more"] == 2
    assert two["models"][0] == {"name": "a", **single["model"]}
    # the record has the page's summary in words

    first = (link("First", "first"), ("Seen in ", bold("L1.H3"), "."), values.Bullets(["and", values.code("there")]))
    summary = Definitions([first, ("Second", values.remark("Not a sentence."))])
    record = record_of(tmp_path / "out", replace(page(), summary=["Before.", summary]))
    assert record["sentences"] == {"First": "First: Seen in L1.H3. and there"}


def test_every_kind_of_value_is_on_the_page_escaped_and_nothing_is_from_outside(tmp_path):
    facts = record_of(tmp_path / "out", page(), command=HOSTILE)
    files = {"tables/layers.csv", "tables/layers.parquet", "figures/drawn.svg", "figures/drawn.png"}
    assert {*facts["files"]} == files | {"report.html", "run.json"}
    report = page_of(tmp_path / "out")
    assert not {"link", "iframe"} & {tag for tag, _ in report.tags}
    assert [tag for tag, _ in report.tags].count("script") == 1
    assert unlisted(report) == []
    assert outside_addresses(report) == ["default/report.html"]
    assert report.text.count(HOSTILE) == 9
    text = " ".join(report.text.split())
    for phrase in (
        "one, twothree four fivedefault/report.html",
        "soft beware",
        "x; y",
        "term said more",
        "Below",
        "Folded",
        "texts3",
    ):
        assert phrase in text, phrase
    assert "nothing" not in text
    (image,) = [attrs for tag, attrs in report.tags if tag == "img"]
    assert image["alt"] == f"Two dots. {HOSTILE}"
    assert {"one", "here", "made"} <= {attrs.get("id") for _, attrs in report.tags}
    classes = [attrs.get("class") for tag, attrs in report.tags if tag in {"td", "th"}]
    assert classes.count("number") == 5


def test_a_page_is_shown_while_the_rest_is_measured_and_says_what_is_to_come(tmp_path):
    out, stages = tmp_path / "out", []

    def measure(run: Run) -> Page:
        run.show(page(unfinished="effects"))
        assert json.loads((out / "run.json").read_text())["unfinished"] == "effects"
        assert "Still being measured: effects." in page_of(out).text
        assert pd.read_csv(out / "tables/layers.csv").equals(TABLE)
        for stage in ("reading", "drawing", "reading"):
            run.say(stage, 0)
        return page()

    write(out, measure, {}, progress=lambda stage, count: stages.append(stage))
    facts = json.loads((out / "run.json").read_text())
    assert "unfinished" not in facts
    assert "Still being measured" not in page_of(out).text
    message = f"{out / 'report.html'} shows the first results\n"
    assert stages == ["writing a first page", message, "reading", "drawing", "reading", "writing figures"]
    # and how long each stage took
    assert [*facts["stages"]] == ["starting", "writing a first page", "reading", "drawing", "writing figures"]
    assert facts["seconds"] == pytest.approx(sum(facts["stages"].values()), abs=0.3)


def test_contents_lead_to_definitions_and_to_how_a_run_is_cited_and_a_page_has_no_slips(tmp_path):
    paths = ("/somewhere/else/MiniLM/", "gum:/somewhere/gum", "../models/own", "org/name", "tales:100")
    assert [*map(short_name, paths)] == ["MiniLM", "gum", "own", "org/name", "tales:100"]
    small = Transformer(TransformerConfig(decoder=replace(LLAMA, n_layers=1)))
    defining = Page("What?", ["short"], [], definitions=[("n", "how many")])
    for number, models in enumerate(({"/a/path/tiny": MODEL}, {"a": small}, {"a": MODEL, "b": small})):
        facts = record_of(tmp_path / str(number), defining, models, seed=7)
        source = (tmp_path / str(number) / "report.html").read_text("utf-8")
        assert slips(source) == []
        contents = re.findall(r'href="#([^"]+)"', source.split("</nav>")[0])
        assert contents[-3:] == ["made", "cite", "definitions"]
        if number == 0:
            cited = f"tiny (fingerprint {facts['model']['fingerprint'][:12]}); seed 7"
            assert cited in page_of(tmp_path / str(number)).text


@pytest.mark.parametrize(
    "path", ["javascript:alert(1).html", "../other.html", "/etc/page.html", "page.txt", "a\\b.html"]
)
def test_a_page_leads_to_pages_below_it_alone(path):
    with pytest.raises(InputError, match="expected a page below the report's own directory"):
        values.page_link(path)
