"""Every measure and label that a table of a report names leads to what it means."""

import re

from analyses.behaviours import ACROSS, OURS
from analyses.figures import measure_name
from analyses.page.sections import Definitions, Section, Table
from analyses.report.full_report import DEFINITIONS
from analyses.report.renderer import render
from analyses.scoring.relations import NEAREST, OFFSETS
from analyses.scoring.rules import ANY, plain_name

MEASURES = [each for behaviour in (*OURS.values(), *ACROSS.values()) for each in behaviour.measures]
RULES = [plain_name(name) for name in (*(rule.name for rule in (*OFFSETS, *NEAREST)), f"{ANY}NOUN", "same gender")]
NAMES = {*(each.name for each in MEASURES), *(each.called for each in MEASURES if each.called), *filter(None, RULES)}


def test_every_measure_and_label_leads_to_a_definition():
    names, columns = sorted(map(measure_name, NAMES)), ["measure", "label", "relation"]
    table = Section("Heads", [Table(columns, [[name] * 3 for name in names])])
    page = render("?", [], [table, Section("Definitions", [Definitions([*DEFINITIONS.items()], "terms")])], {})
    links = re.findall(r'<td><a href="#(definition-[^"]+)">([^<]+)</a></td>', page.replace("&gt;", ">"))
    assert sorted(name for _, name in links) == sorted(names * 3)
    assert {to for to, _ in links} <= {*re.findall(r'<span id="(definition-[^"]+)"', page)}
    assert "nsubj subject to verb" in DEFINITIONS["relation"]
