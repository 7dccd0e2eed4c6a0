"""On real heads and real text the order of facts keeps what its rule promises: evidence, then what is left over, then
size; and no head comes first by what a simple rule does as well."""

import math
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from analyses import corpora, report, runs
from analyses.behaviours import OURS
from analyses.headlines import ranking
from analyses.headlines.facts import Fact, facts
from analyses.rivals.rules import BEATS
from analyses.wording.head_names import Place
from models import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables(minilm, shared_file, tmp_path_factory) -> dict[str, pd.DataFrame]:
    """MiniLM's report on a few documents, labels and all."""
    text = corpora.read(str(shared_file("data", "ud-ewt/en_ewt-ud-dev.conllu")), limit=40)
    out: Path = tmp_path_factory.mktemp("minilm") / "out"
    report.build(load(str(minilm)), [text], out, behaviours=[*BEHAVIOURS], probes=False, experiments=False, pairs=6)
    run = runs.read(out)
    return {name: run.table(name) for name in run.tables}


BEHAVIOURS = ("position", "part-of-speech")


@pytest.fixture(scope="module")
def found(tables) -> dict[Place, list[Fact]]:
    known = facts(tables, {name: OURS[name] for name in BEHAVIOURS})
    return {place: ranking.ranked(own) for place, own in known.items() if own}


def test_what_is_needed_is_told_first_then_what_is_mainly_done_then_what_rules_leave_over_then_size(found):
    assert len(found) > 10
    for one, next_one in (pair for own in found.values() for pair in pairwise(own)):
        assert one.needed >= next_one.needed
        if one.needed == next_one.needed:
            assert one.mainly or not next_one.mainly or next_one.kind == "needed"
            if one.mainly == next_one.mainly and one.kind == next_one.kind:
                assert one.rung >= next_one.rung
                if one.rung == next_one.rung and one.sizes[0].unit == next_one.sizes[0].unit:
                    assert one.strength >= next_one.strength


def test_heads_that_the_model_needs_come_before_the_others_by_what_hiding_their_keys_costs(found):
    """No minimal pairs of a model without output: costs alone decide."""
    costs = [
        max([0, *(size.low for fact in found[place] if fact.needed for size in fact.sizes if size.unit == "nats")])
        for place in ranking.strongest(found)
    ]
    assert costs == sorted(costs, reverse=True)


def test_no_head_is_told_by_what_a_rule_does_as_well(found, tables):
    rules = tables["rules"].set_index([*Place._fields, "measure"])["verdict"]
    for place, fact in ((place, fact) for place, own in found.items() for fact in own):
        if fact.name.startswith(("relation:", "tag:")):
            assert rules[(*place, *fact.measures)] == BEATS
        if fact.name.startswith("rule:") and not fact.name.startswith("rule:any->"):
            assert math.isfinite(fact.value)
            assert fact.rung < 2  # it comes after whatever beats its rules
    assert (rules != BEATS).any()  # there are heads that a rule beats
