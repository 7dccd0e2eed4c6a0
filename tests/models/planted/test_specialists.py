"""Planted heads that do one part of a job: right in every item of their stratum, and not in all."""

from collections import Counter

import pytest

from analyses import coreference, part_of_speech
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect
from analyses.scoring.strata import of_pair
from benchmarks.planted import FORMS, strata
from benchmarks.planted.strata import compose_strata, false_links


@pytest.mark.parametrize("seed", range(3))
def test_each_is_right_in_its_stratum_alone_and_no_rule_is(seed):
    composed = compose_strata(seed, form=FORMS[seed])
    texts = strata.clauses(composed.lexicon, 24, seed), strata.reports(composed.lexicon, 24, seed)
    accuracy, rivals = {}, {}
    for module, corpus in zip((part_of_speech, coreference), texts, strict=True):
        (collected,) = collect(Reading(composed.model, corpus), [module.Collector(composed.model)])
        table = collected.table(seed=0)
        table = table.loc[table["sink"] == "kept"]
        accuracy |= table.set_index(["measure", "layer", "head"])["value"].to_dict()
        rivals |= table.groupby("measure")["baseline"].max().to_dict()
    specialists = [place for place in composed.placed if place.behaviour.label]
    assert len(specialists) == (9 if FORMS[seed] == "encoder" else 17)
    for place in specialists:
        measure, _, _ = place.behaviour.label.partition("@")
        at = place.layer, place.head
        assert accuracy[place.behaviour.label, *at] == 1.0
        assert accuracy[measure, *at] < 0.8
        assert rivals[place.behaviour.label] < 0.8


def test_kinds_of_clauses_are_strata():
    composed = compose_strata(0)
    seen = Counter()
    for text in strata.clauses(composed.lexicon, 20, 1):
        edges = zip(text.heads, text.relations, range(len(text.words)), strict=True)
        for head, relation, word in edges:
            if relation in {"nsubj", "obj"} and head >= 0:
                seen.update((relation, name) for name in of_pair(text, word, head))
    between = ("one noun between", "attractor between", "clause between")
    assert min(seen[relation, name] for relation in ("nsubj", "obj") for name in between) >= 5


def test_a_label_of_another_stratum_is_false():
    composed = compose_strata(0)
    (place,) = [
        each for each in composed.placed if each.behaviour.label == "relation:obj:dependent->head@one noun between"
    ]
    names = [
        "tag:NOUN->VERB",
        "relation:obj:dependent->head@attractor between",
        "relation:obj:dependent->head@clause between",
        "relation:obj:dependent->head",
    ]
    assert false_links(place.behaviour, names) == names[2:]
