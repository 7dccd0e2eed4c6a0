"""Tales tell heads of syntax from rules, on all relations except those in which English leaves no choice."""

import pytest

from benchmarks.simple_rules import strictest
from models.stories import tales

ALWAYS = {  # hardly ever is another one between a noun and its determiner or preposition
    ("det", "head->dependent", "decoder"),
    ("det", "head->dependent", "encoder"),
    ("det", "dependent->head", "encoder"),
    ("case", "head->dependent", "decoder"),
}


@pytest.mark.slow
def test_no_simple_rule_finds_more_than_four_fifths_of_a_relation_in_tales():
    table = strictest(tales(60, 1)).set_index(["relation", "way", "model"])
    assert len(table) == 42
    assert (table["exact"] <= table["right"]).all()
    above = table.index[table["right"] > 0.82]  # on 60 tales; on 300, no other is above .80 (docs/measures)
    assert set(above) == ALWAYS
    assert table.drop(above)["right"].mean() < 0.7
