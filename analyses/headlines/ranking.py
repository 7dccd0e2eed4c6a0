"""Which fact of a head comes first, and which head of a model?

Of a head's facts, in this order, each step deciding only where those before it leave a tie:

1. what the model needs, before what attention alone shows;
2. what has at least half of the head's attention or choices, then what has at least half of an answer;
3. what simpler descriptions leave over (`Fact.rung`): a relation, a reference or a copy before a pair of tags, that
   before a class of words, that before a distance, and the first position last;
4. attention and need, before need alone;
5. the lower end of the interval.

Of a model's heads those come first that the model needs: by the largest share of an answer that the head carries (the
lower end of the interval on the pairs that chose it), then by its effect in nats, then as their first facts would.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from analyses.headlines.facts import KINDS, Fact
from analyses.viewer.naming import Called, HeadName
from analyses.wording.head_names import HEAD, Place

Rank = tuple[bool, int, int, bool, bool, float]


def ranked(facts: Sequence[Fact]) -> list[Fact]:
    """The facts of one head, the first to be told first."""
    return sorted(facts, key=of_fact)


def strongest(facts: Mapping[Place, Sequence[Fact]]) -> list[Place]:
    """The heads of a model that have a fact, the first to be shown first; ties go to the lower layer."""
    return sorted((place for place in facts if facts[place]), key=lambda place: _of_head(facts[place]))


def called(facts: Mapping[Place, Sequence[Fact]]) -> dict[HeadName, Called]:
    """What heads are called by the fact that is told first of each, the strongest head first."""
    first = {place: min(facts[place], key=of_fact) for place in strongest(facts)}
    return {
        place: Called(fact.words.short, fact.behaviour, ", ".join(fact.measures[:1]), fact.needed)
        for place, fact in first.items()
    }


def in_order(facts: Mapping[Place, Sequence[Fact]]) -> pd.DataFrame:
    """Every fact of every head as a row, a head's first to be told first; near tokens, one fact, have a row a label.

    Columns: those of `Place`, `behaviour`, `label` (of minimal pairs what they decide) and `evidence` (both, effect or
    attention).
    """
    evidence = {kind: str(name) for name, kind in KINDS.items()}
    rows = [
        {**place._asdict(), "behaviour": fact.behaviour, "label": label, "evidence": evidence[fact.kind]}
        for place, several in facts.items()
        for fact in ranked(several)
        for label in _labels(fact)
    ]
    return pd.DataFrame(rows, columns=[*HEAD, "behaviour", "label", "evidence"])


def _labels(fact: Fact) -> list[str]:
    labels = [str(row["label"]) for row in fact.rows if row.table == "labels"]
    return labels or [fact.words.short if fact.row("effects") else fact.name]


def of_fact(fact: Fact) -> Rank:
    """The smaller, the earlier the fact is told."""
    nats = fact.sizes[0].unit == "nats"  # cannot be ranked among shares: after them
    most = 2 if not fact.mainly else 1 if fact.kind == "needed" else 0
    return not fact.needed, most, -fact.rung, fact.kind == "needed", nats, -fact.strength


def _of_head(facts: Sequence[Fact]) -> tuple[float, float, Rank]:
    shares = [fact.strength for fact in facts if fact.kind == "needed" and fact.sizes[0].unit == "share"]
    costs = [size.low for fact in facts if fact.needed for size in fact.sizes if size.unit == "nats"]
    return -max(shares, default=0.0), -max(costs, default=0.0), min(map(of_fact, facts))
