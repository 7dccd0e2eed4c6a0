"""Planted heads of every rung and specialists: each attends as its rule says, and rules differ."""

from collections import Counter
from collections.abc import Iterator

import pandas as pd
import pytest
import torch

from analyses import coreference, part_of_speech
from analyses.behaviours import OURS
from analyses.labels import knockouts
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect
from analyses.scoring.strata import of_pair
from benchmarks.planted import FORMS, Composed, linked_texts, strata
from benchmarks.planted.rungs import SHARE, SINK, Rung, compose_rungs, compose_sinks
from benchmarks.planted.strata import compose_strata, false_links
from benchmarks.planted.truth import rule_keys
from interp import AnnotatedText, run


@pytest.fixture(scope="module", params=enumerate(FORMS), ids=lambda case: case[1])
def composed(request) -> Composed:
    seed, form = request.param
    return compose_rungs(seed, form=form)


def patterns(composed: Composed) -> Iterator[tuple[AnnotatedText, torch.Tensor]]:
    """Each text with its attention between words: layer head query key."""
    for text in (*linked_texts.clauses(composed.lexicon, 6), *linked_texts.reports(composed.lexicon, 6)):
        out = run(composed.model, text.text, capture="*.attn.pattern")
        yield text, torch.stack([each[0] for each in out.activations.values()])[..., 1:, 1:]


def test_each_head_attends_to_what_its_rule_names(composed):
    rules = ("object", "nearest of class", "offset", "nearest mention", "same form", "name-aware", "leftmost")
    counts = Counter()
    for text, pattern in patterns(composed):
        for rule in (*rules, "antecedent"):
            (place,) = composed.where(rule)
            for query, key in rule_keys(rule, text, composed).items():
                assert pattern[place.layer, place.head, query, key] > 0.95, (rule, text.text, query, key)
                counts[rule] += 1
    assert min(counts[rule] for rule in (*rules, "antecedent")) >= 5


def test_a_mixture_shares_its_attention(composed):
    mixtures = [each for each in composed.placed if " with " in each.behaviour.name]
    assert len(mixtures) == 2
    apart = 0
    for text, pattern in patterns(composed):
        for place in mixtures:
            first, second = (rule_keys(name, text, composed) for name in place.behaviour.name.split(" with "))
            row = pattern[place.layer, place.head]
            for query in first.keys() & second.keys():
                differ = first[query] != second[query]
                apart += differ
                assert row[query, first[query]] == pytest.approx(SHARE if differ else 1.0, abs=1e-3)
                assert row[query, second[query]] == pytest.approx(1 - SHARE if differ else 1.0, abs=1e-3)
    assert apart >= 6


def test_heads_of_classes_share_their_attention_among_the_class(composed):
    (everyone,), (verbs,), (stops,) = (composed.where(name) for name in ("class of key", "tag pair", "comma lover"))
    for text, pattern in patterns(composed):
        tags = text.tags or ()
        nouns, ends = (torch.tensor([name == tag for name in tags]) for tag in ("NOUN", "PUNCT"))
        last = {tag: len(tags) - 1 - tags[::-1].index(tag) for tag in ("VERB", "PUNCT")}
        assert pattern[everyone.layer, everyone.head, last["PUNCT"]][nouns].sum() > 0.95
        assert pattern[verbs.layer, verbs.head, last["VERB"]][nouns].sum() > 0.95
        assert pattern[verbs.layer, verbs.head, last["PUNCT"]][nouns].sum() < 0.5
        assert pattern[stops.layer, stops.head, last["PUNCT"]][ends].sum() > 0.95


@pytest.mark.slow
def test_rules_name_each_head_and_set_only_the_deserving_apart(composed):
    corpora = linked_texts.clauses(composed.lexicon, 60), linked_texts.reports(composed.lexicon, 60)
    tables = []
    for module, corpus in zip((part_of_speech, coreference), corpora, strict=True):
        (collected,) = collect(Reading(composed.model, corpus), [module.Collector(composed.model)])
        tables.append(collected.rules(seed=0))
    table = pd.concat(tables)
    for place in composed.placed:
        rows = table.loc[(table["layer"] == place.layer) & (table["head"] == place.head)]
        rung = place.behaviour
        chosen = rows.loc[rows["measure"].str.startswith(("relation:obj", "antecedent"))]
        beats = {*chosen.loc[chosen["verdict"] == "beats", "measure"]}
        if isinstance(rung, Rung) and rung.rules:
            tagged = rung.measure.startswith("tag:")
            (names,) = [rows.loc[rows["measure"] == rung.measure, "rule"]] if not tagged else [rows["verdict"]]
            assert tagged or names.tolist() == [*rung.rules], rung.name
            deserves = rung.rules[0] in {"the relation itself", "the antecedent itself"}
            assert (rung.measure in beats) == deserves, rung.name
            if rung.name == "class of key":
                verdicts = rows.loc[rows["measure"].str.fullmatch("tag:.*->NOUN"), "verdict"]
                assert len(verdicts) >= 3
                assert "beats" not in {*verdicts}


@pytest.mark.slow
def test_hiding_a_sink_costs_what_removing_it_does_not():
    composed = compose_sinks(0)
    corpus = linked_texts.clauses(composed.lexicon, 6)
    options = {"behaviours": [OURS["position"]], "texts": 6, "armed": {"first-token"}}
    table = knockouts.measure(composed.model, corpus, **options).table
    for place in composed.where(SINK):
        where = (table["layer"] == place.layer) & (table["head"] == place.head) & (table["measure"] == "first-token")
        (row,) = table.loc[where].to_dict("records")
        assert row["effect"] > 0.1
        assert row["exchange"] > 0.1
        assert row["removal"] == pytest.approx(0.0, abs=1e-5)


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
        head = place.layer, place.head
        assert accuracy[place.behaviour.label, *head] == 1.0
        assert accuracy[measure, *head] < 0.8
        assert rivals[place.behaviour.label] < 0.8


def test_kinds_of_clauses_are_strata():
    composed = compose_strata(0)
    counts = Counter()
    for text in strata.clauses(composed.lexicon, 20, 1):
        edges = zip(text.heads, text.relations, range(len(text.words)), strict=True)
        for head, relation, word in edges:
            if relation in {"nsubj", "obj"} and head >= 0:
                counts.update((relation, name) for name in of_pair(text, word, head))
    between = ("one noun between", "attractor between", "clause between")
    assert min(counts[relation, name] for relation in ("nsubj", "obj") for name in between) >= 5


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
