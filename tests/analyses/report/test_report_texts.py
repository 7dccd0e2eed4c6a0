"""A report's sentences about behaviours and figures follow from its tables, and every name links to its meaning."""

import re

import pandas as pd

from analyses.behaviours import ACROSS, OURS
from analyses.figures import measure_name
from analyses.measures.head_tables import Measured
from analyses.page.sections import Definitions, Section, Table, plain
from analyses.report.behaviour_sections import attention, cause
from analyses.report.full_report import DEFINITIONS
from analyses.report.report_parts import label_counts
from analyses.report.scaffold import render
from analyses.scoring.rules import (
    ANY_WORD,
    LADDER,
    NEAREST,
    OFFSETS,
    plain_name,
)
from analyses.tasks.causal_tests import Effects
from tests.analyses.headlines.hand_made_tables import effect_row, hand_made, heads_row
from tests.pages import page_of, retold


def measured(behaviour: str, *rows: dict) -> Measured:
    return Measured(pd.DataFrame([row | {"behaviour": behaviour} for row in rows]))


def in_short(behaviour: str, *rows: dict, bars: dict[str, float] | None = None) -> list[str]:
    levels = {} if bars is None else bars
    return [plain(each) for each in attention(OURS[behaviour], measured(behaviour, *rows), levels)]


def test_behind_the_best_head_stand_others_that_show_it_and_what_heads_gain_that_have_learnt_nothing():
    rows = [heads_row(0, head, "position", "previous-token", 0.9 - 0.1 * head, 0.02) for head in range(3)]
    others = "gets 2%. 3 of 3 heads gain over the baseline; next: L0.H1, L0.H2."
    assert in_short("position", *rows, bars={"previous-token": 0.04})[0].endswith(others)
    for bar, reach in ((0.5, "gain less than 50%"), (0.88, "gain as much")):
        ending = f"{others} Untrained heads {reach}."
        assert in_short("position", *rows, bars={"previous-token": bar})[0].endswith(ending)
    (*_, last) = attention(OURS["position"], measured("position", *rows))
    assert last == "No labels were made, so untrained heads were not measured."
    # if no head stands out, the closest is named
    rows = [heads_row(0, 1, "position", "self", 0.03, 0.02), heads_row(0, 1, "position", "previous-token", 0.04, 0.02)]
    assert in_short("position", *rows) == [
        "No head stands out. The closest: L0.H1 looks at the token before with 4% of its attention; uniform attention "
        "gets 2%."
    ]


def test_no_measure_that_leads_a_page_is_called_by_its_name():
    for behaviour, name in ((each, name) for each in OURS.values() for name in each.headline):
        unit = behaviour[name].unit
        (line, *_) = in_short(behaviour.name, heads_row(0, 0, behaviour.name, name, 0.9, 0.1, unit=unit))
        assert unit == "entropy" or line.startswith("L0.H0 "), name
        assert not re.search(r":|->|→|“|\d\.\d\d", line), name


def test_a_task_is_told_by_what_it_decides_with_what_each_head_removes_and_restores():
    tables = hand_made()
    others = [effect_row(0, head, "repeat", way, 0.12, 0.1) for head in (0, 1) for way in ("noise", "denoise")]
    effects = pd.concat([tables["effects"], pd.DataFrame(others)])
    repeat, agreement = tables["tasks"].to_dict("records")
    first, second = cause(Effects(effects, [repeat, agreement]))
    assert first == (
        "Replacing L1.H0 removes 15% of copying, and alone it restores 16% (6 and 6 of 40 answers change); "
        "L0.H0 12% and 12% (6 and 6 of 40); L0.H1 12% and 12% (6 and 6 of 40)."
    )
    assert plain(second).startswith("Replacing L0.H1 removes 35% of the choice of was or were, and alone it restores")
    assert plain(second).endswith(
        ". The model is right on only 65% of the prompts, so what these heads carry often does not decide the answer."
    )
    for way, start in (("noise", "Replacing L1.H0 removes"), ("denoise", "Alone L1.H0 restores")):
        rows = effects.loc[(effects["intervention"] == way) & (effects["head"] == 0) & (effects["layer"] == 1)]
        (line,) = cause(Effects(rows, [repeat]))
        assert plain(line).startswith(start)
    refused = {"task": "gender", "carried": "his/her", "refused": "the model puts the right answer first in 3 of 40"}
    adjacent = {"task": "agreement-adjacent", "carried": "adjacent was/were", "accuracy": 0.9}
    assert cause(Effects(effects.head(0), [refused, adjacent])) == [
        f"No head was tested for the choice of his or her: {refused['refused']}.",
        "No single head clearly carries 5% of the choice of was or were right after its noun.",
    ]


def test_no_figure_of_a_report_or_the_documentation_has_its_title_or_caption_for_an_alternative(position_report):
    from repository import ROOT

    assert len([tag for tag, _ in page_of(position_report).tags if tag == "figure"]) >= 1
    assert retold((position_report / "report.html").read_text("utf-8")) == []
    pages = [ROOT / "README.md", ROOT / "models/checkpoints/default/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    texts = [page.read_text("utf-8") for page in pages]
    pictures = [match for text in texts for match in re.findall(r"!\[(.*?)\]\(\S*?(\w+)\.png\)", text)]
    assert len(pictures) >= 15
    assert [name for alt, name in pictures if len(alt.split()) < 12] == []
    assert len({*pictures}) == len({name for _, name in pictures}), "one picture, one text"


ALL_MEASURES = [each for behaviour in (*OURS.values(), *ACROSS.values()) for each in behaviour.measures]
RULES = [
    plain_name(name)
    for name in (*(rule.name for rule in (*OFFSETS, *NEAREST, *LADDER)), f"{ANY_WORD}NOUN", "same gender")
]
NAMES = {*filter(None, [*RULES, *(name for each in ALL_MEASURES for name in (each.name, each.called))])}


def test_every_measure_and_label_leads_to_a_definition():
    names, columns = sorted(map(measure_name, NAMES)), ["measure", "label", "relation"]
    table = Section("Heads", [Table(columns, [[name] * 3 for name in names])])
    page = render("?", [], [table, Section("Definitions", [Definitions([*DEFINITIONS.items()], "terms")])], {})
    page = page.replace("&gt;", ">").replace("<wbr>", "")
    links = re.findall(r'<td><a href="#(definition-[^"]+)">([^<]+)</a></td>', page)
    assert sorted(name for _, name in links) == sorted(names * 3)
    assert {to for to, _ in links} <= {*re.findall(r'<span id="(definition-[^"]+)"', page)}
    assert "nsubj subject to verb" in DEFINITIONS["relation"]


def test_labels_are_counted_by_evidence():
    many = [{"head": head, "behaviour": "part-of-speech", "label": "tag:A->B"} for head in range(5)]
    labels = pd.DataFrame([{"head": 3, "behaviour": "coreference", "label": "antecedent"}, *many])
    labels = labels.assign(stack="encoder", attention="self", layer=1, evidence="attention", task=None, n=9)
    short = label_counts(labels)
    assert short.startswith("5 heads carry labels")
    assert "6 with attention alone" in short
