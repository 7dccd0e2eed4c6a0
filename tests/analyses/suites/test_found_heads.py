"""Planted heads are found for their own phenomenon, and the textbook's heads are those named on the page."""

import re

import pytest
from repository import ROOT

from analyses import suites
from benchmarks.phenomena import measured
from models import load


@pytest.mark.slow
def test_planted_heads_are_found_for_their_own_phenomenon_and_for_no_other():
    """Four of the benchmark's twenty models."""
    for seed in range(4):
        assert measured(seed, 24) == {"passed": 3, "missing": 0, "wrong": 0}


@pytest.mark.slow
def test_the_textbook_passes_what_the_page_says_and_heads_are_named_for_that_alone():
    page = (ROOT / "docs/suites.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \|.+?\| ([01]\.\d\d), ([01]\.\d\d) \| ([a-z ]+) \|", page, re.MULTILINE)
    model, suite = load("textbook"), suites.joined([suites.builtin(name) for name in suites.BUILTIN[:6]])
    items, result = suites.measure(model, suite), suites.find(model, suite)
    verdicts = result.accuracy.set_index("name")["verdict"].to_dict()
    assert [row[0] for row in rows] == [*verdicts]
    for name, first, second, verdict in rows:
        poles = items[items["paradigm"] == name].groupby("pole", sort=False)["right"].mean()
        assert [f"{share:.2f}" for share in poles] == [first, second], name
        assert verdicts[name] == verdict
    heads = result.named.groupby("paradigm")[["layer", "head"]].apply(lambda part: {*map(tuple, part.to_numpy())})
    assert {*heads.index} == {name for name, verdict in verdicts.items() if verdict == "passed"}
    for name in ("agreement-phrase", "agreement-clause", "reflexives-animal"):
        assert heads[name] == {(2, 0)}
    assert heads["two-people-verb"] == {(0, 0), (1, 0)}
