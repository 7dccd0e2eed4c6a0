"""Every measure and label that a table of a report names leads to what it means."""

import re

import pytest

from analyses.behaviours import ACROSS, OURS
from analyses.figures import measure_name
from analyses.measures import Behaviour, Measure
from analyses.page.sections import Definitions, Section, Table
from analyses.report.full_report import DEFINITIONS
from analyses.report.renderer import render
from analyses.rivals.relations import NEAREST, OFFSETS
from analyses.rivals.rules import ANY, plain_name

MEASURES = [each for behaviour in (*OURS.values(), *ACROSS.values()) for each in behaviour.measures]
RULES = [plain_name(name) for name in (*(rule.name for rule in (*OFFSETS, *NEAREST)), f"{ANY}NOUN", "same gender")]
NAMES = {*(each.name for each in MEASURES), *(each.called for each in MEASURES if each.called), *filter(None, RULES)}


@pytest.mark.parametrize("column", ["measure", "label", "relation"])
def test_every_measure_and_label_leads_to_a_definition(column):
    names = sorted(map(measure_name, NAMES))
    table = Section("Heads", [Table([column], [[name] for name in names])])
    page = render("?", [], [table, Section("Definitions", [Definitions([*DEFINITIONS.items()], "terms")])], {})
    linked = dict(zip(*_links(page), strict=True))
    assert sorted(linked) == names
    assert {*linked.values()} <= {*re.findall(r'<span id="(definition-[^"]+)"', page)}


def _links(page: str) -> tuple[list[str], list[str]]:
    found = re.findall(r'<td><a href="#(definition-[^"]+)">([^<]+)</a></td>', page.replace("&gt;", ">"))
    return [name for _, name in found], [to for to, _ in found]


def test_relations_are_named_in_words_where_they_are_defined():
    assert "nsubj subject to verb" in DEFINITIONS["relation"]


def test_a_measure_of_ones_own_is_defined_by_its_title(monkeypatch):
    from analyses.report.full_report import _own_terms

    own = Behaviour("mine", "Mine", (Measure("to-stops", "attention to stops"),), lambda: None, ("to-stops",))
    assert _own_terms({**OURS, "mine": own}) == [("to-stops", "A measure of your own: attention to stops.")]
