"""Planted heads of every rung: each attends as its rule says, and on its texts no simpler rule does as well."""

from collections import Counter
from collections.abc import Iterator

import pandas as pd
import pytest
import torch

from analyses import coreference, part_of_speech
from analyses.behaviours import OURS
from analyses.labels import knockouts
from analyses.reading.windows import Reading
from analyses.scoring.antecedents import RIVALS, antecedent_items
from analyses.scoring.collectors import collect
from benchmarks.labels import repaired
from benchmarks.planted import FORMS, Composed, linked_texts
from benchmarks.planted.linked_texts import SPELLINGS
from benchmarks.planted.rungs import SHARE, SINK, Rung, compose_rungs, compose_sinks
from benchmarks.simple_rules import strictest
from interp import AnnotatedText, run
from interp.patterns.nulls import distance_bin

PRONOUNS = {spelling: form for form, spellings in SPELLINGS.items() for spelling in spellings}


@pytest.fixture(scope="module", params=enumerate(FORMS), ids=lambda each: each[1])
def composed(request) -> Composed:
    seed, form = request.param
    return compose_rungs(seed, form=form)


def keys(rule: str, text: AnnotatedText, composed: Composed) -> dict[int, int]:
    """From the words that ask, the word that a rule names; those to whom it names none are left out."""
    lexicon, causal = composed.lexicon, composed.model.config.last.causal
    names, n = {*lexicon.masculine, *lexicon.feminine}, len(text.words)
    things = [at for at in range(n) if text.words[at] in lexicon.things]
    verbs = [at for at in range(n) if text.words[at] in lexicon.verbs]
    pronouns = {at: PRONOUNS[text.words[at]] for at in range(n) if text.words[at] in PRONOUNS}
    tags, mentions = text.tags or (), text.mentions or ()
    objects = [(at, to) for at, to, name in edges(text) if name == "obj" and at in things]
    if rule == "object":
        return dict(objects) if causal else {to: at for at, to in objects}
    if rule == "nearest of class":
        nouns = [at for at in range(n) if tags[at] == "NOUN"]
        asked = {at: [to for to in verbs if to < at][-1:] for at in things}
        ahead = {at: [to for to in nouns if to > at][:1] for at in verbs}
        return {at: found[0] for at, found in (asked if causal else ahead).items() if found}
    if rule == "offset":
        (place,) = composed.where("offset")
        by = int(place.behaviour.rules[0].split()[1])
        return {at: at + by for at in range(n) if 0 <= at + by < n}
    of = {
        "nearest mention": lambda at, to: True,
        "same form": lambda at, to: pronouns.get(to) == pronouns[at],
        "name-aware": lambda at, to: text.words[to] in names or sex(pronouns.get(to)) == sex(pronouns[at]),
        "leftmost": lambda at, to: text.words[to] in lexicon.openers,
        "antecedent": lambda at, to: text.words[to] in names and (chain[to] == chain[at]),
    }[rule]
    chain = {each.head: each.chain for each in mentions}
    found = {at: [to for to in sorted(chain) if to < at and of(at, to)] for at in pronouns}
    return {at: own[-1] for at, own in found.items() if own}


def sex(form: str | None) -> str | None:
    return next((sex for sex, forms in linked_texts.FORMS.items() if form in forms), None)


def patterns(composed: Composed) -> Iterator[tuple[AnnotatedText, torch.Tensor]]:
    """Each text with its attention: layer head query key, words only."""
    for text in (*linked_texts.clauses(composed.lexicon, 6), *linked_texts.reports(composed.lexicon, 6)):
        out = run(composed.model, text.text, capture="*.attn.pattern")
        yield text, torch.stack([each[0] for each in out.activations.values()])[..., 1:, 1:]


def test_each_head_attends_to_what_its_rule_names(composed):
    rules = ("object", "nearest of class", "offset", "nearest mention", "same form", "name-aware", "leftmost")
    seen = Counter()
    for text, pattern in patterns(composed):
        for rule in (*rules, "antecedent"):
            (place,) = composed.where(rule)
            for query, key in keys(rule, text, composed).items():
                assert pattern[place.layer, place.head, query, key] > 0.95, (rule, text.text, query, key)
                seen[rule] += 1
    assert min(seen[rule] for rule in (*rules, "antecedent")) >= 5


def test_a_mixture_shares_its_attention(composed):
    mixtures = [each for each in composed.placed if " with " in each.behaviour.name]
    assert len(mixtures) == 2
    apart = 0
    for text, pattern in patterns(composed):
        for place in mixtures:
            first, second = (keys(name, text, composed) for name in place.behaviour.name.split(" with "))
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
        nouns, ends = (torch.tensor([own == tag for own in tags]) for tag in ("NOUN", "PUNCT"))
        last = {tag: len(tags) - 1 - tags[::-1].index(tag) for tag in ("VERB", "PUNCT")}
        assert pattern[everyone.layer, everyone.head, last["PUNCT"]][nouns].sum() > 0.95
        assert pattern[verbs.layer, verbs.head, last["VERB"]][nouns].sum() > 0.95
        assert pattern[verbs.layer, verbs.head, last["PUNCT"]][nouns].sum() < 0.5
        assert pattern[stops.layer, stops.head, last["PUNCT"]][ends].sum() > 0.95


def test_no_simple_rule_finds_what_the_code_tells(composed):
    rules = strictest(linked_texts.clauses(composed.lexicon, 100))
    assert rules.loc[rules["relation"] == "obj", "right"].between(0.2, 0.6).all()
    items = [item for text in linked_texts.reports(composed.lexicon, 100) for item in antecedent_items(text)]
    assert all(item.named for item in items)
    for rival in RIVALS:
        right = [sum(score for score, hit in zip(rival(item), item.correct, strict=True) if hit) for item in items]
        assert sum(right) / len(right) < 0.6, rival.name


@pytest.mark.slow
def test_rules_name_each_head_and_set_only_the_deserving_apart(composed):
    corpora = linked_texts.clauses(composed.lexicon, 60), linked_texts.reports(composed.lexicon, 60)
    tables = []
    for module, corpus in zip((part_of_speech, coreference), corpora, strict=True):
        (collected,) = collect(Reading(composed.model, corpus), [module.Collector(composed.model)])
        tables.append(collected.rules(seed=0))
    table = pd.concat(tables)
    for place in composed.placed:
        own = table.loc[(table["layer"] == place.layer) & (table["head"] == place.head)]
        rung = place.behaviour
        chosen = own.loc[own["measure"].str.startswith(("relation:obj", "antecedent"))]
        beats = {*chosen.loc[chosen["verdict"] == "beats them", "measure"]}
        if isinstance(rung, Rung) and rung.rules:
            tagged = rung.measure.startswith("tag:")
            (said,) = [own.loc[own["measure"] == rung.measure, "rule"]] if not tagged else [own["verdict"]]
            assert tagged or said.tolist() == [*rung.rules], rung.name
            deserves = rung.rules[0] in {"the relation itself", "the antecedent itself"}
            assert (rung.measure in beats) == deserves, rung.name
            if rung.name == "class of key":
                verdicts = own.loc[own["measure"].str.fullmatch("tag:.*->NOUN"), "verdict"]
                assert len(verdicts) >= 3
                assert "beats them" not in {*verdicts}


@pytest.mark.slow
def test_hiding_a_sink_costs_what_removing_it_does_not():
    composed = compose_sinks(0)
    corpus = linked_texts.clauses(composed.lexicon, 6)
    asked = {"behaviours": [OURS["position"]], "texts": 6, "armed": {"first-token"}}
    table = knockouts.measure(composed.model, corpus, **asked).table
    for place in composed.where(SINK):
        where = (table["layer"] == place.layer) & (table["head"] == place.head) & (table["measure"] == "first-token")
        (row,) = table.loc[where].to_dict("records")
        assert row["effect"] > 0.1
        assert row["exchange"] > 0.1
        assert row["removal"] == pytest.approx(0.0, abs=1e-5)


Kind = tuple[str, str, str, int]  # a word's tag, its relation, its head's tag, and about how far that is


def kinds(text: AnnotatedText) -> Counter[Kind]:
    tags, heads, relations = text.tags or (), text.heads or (), text.relations or ()
    far = distance_bin(torch.tensor(heads) - torch.arange(len(heads))).tolist()
    return Counter((tags[at], relations[at], tags[to], far[at]) for at, to in enumerate(heads) if to >= 0)


def test_repaired_dependencies_keep_tags_and_distances_and_nothing_else():
    before = same = kept = objects = 0
    for text in linked_texts.clauses(compose_rungs(0).lexicon, 20):
        anew = repaired(text, 0)
        assert (anew.words, anew.tags) == (text.words, text.tags)
        assert kinds(anew) <= kinds(text)
        before, kept = before + kinds(text).total(), kept + kinds(anew).total()
        old, new = ({(at, to) for at, to, name in edges(each) if name == "obj"} for each in (text, anew))
        objects, same = objects + len(new), same + len(old & new)
    assert kept > 0.8 * before
    assert 0.2 < same / objects < 0.7  # the word itself is one of those that fit


def edges(text: AnnotatedText) -> Iterator[tuple[int, int, str]]:
    yield from zip(range(len(text.words)), text.heads or (), text.relations or (), strict=True)
