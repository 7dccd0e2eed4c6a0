"""Facts from tables made by hand: what they rest on, which comes first, and the sentences that they make."""

from dataclasses import replace

import pandas as pd
import pytest

from analyses.behaviours import OURS
from analyses.head_names import Place
from analyses.headlines import ranking
from analyses.headlines.facts import facts
from analyses.headlines.sentences import again, headline, sentences
from tests.analyses.headlines.hand_made_tables import RULE, hand_made, heads_row, label_row


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    return hand_made()


def told(tables, layer, head) -> list[tuple[str, str]]:
    found = ranking.ranked(facts(tables, OURS)[Place("decoder", "self", layer, head)])
    return [(fact.words.short, fact.kind) for fact in found]


def test_labels_and_minimal_pairs_are_facts_and_what_is_needed_comes_first(tables):
    assert told(tables, 1, 0) == [("induction", "looks there and needed"), ("copying", "needed")]
    assert told(tables, 0, 1) == [("was/were", "needed")]


def test_a_quiet_head_has_no_facts(tables):
    assert told(tables, 0, 0) == []


def test_a_relation_comes_before_a_pair_of_tags_before_near_tokens_which_are_one_fact(tables):
    shown = [short for short, _ in told(tables, 1, 1)]
    assert shown == ["object to its verb", "noun to verb", "nearby"]


def test_what_is_enough_but_not_needed_is_no_fact(tables):
    assert all(kind == "looks there" for _, kind in told(tables, 1, 1))


def test_an_effect_that_is_not_established_keeps_its_q_beside_that_of_attention(tables):
    (fact,) = [each for each in facts(tables, OURS)[Place("decoder", "self", 1, 1)] if each.name.startswith("relation")]
    assert (fact.q, fact.q_effect) == (0.001, 0.4)
    assert (fact.value, fact.baseline, fact.baseline_name) == (0.7, 0.6, "last VERB")
    assert fact.strength == pytest.approx(0.39 / 0.7)


def test_every_row_of_every_fact_is_one_row_of_its_table(tables):
    for own in facts(tables, OURS).values():
        for row in (row for fact in own for row in fact.rows):
            assert row.find(tables)
    fact = facts(tables, OURS)[Place("decoder", "self", 1, 0)][0]
    gone = {**tables, "labels": tables["labels"].iloc[1:]}
    with pytest.raises(KeyError, match="expected one row labels: stack decoder"):
        fact.rows[0].find(gone)


def test_heads_come_first_that_carry_most_of_an_answer(tables):
    order = [place.named(several=False) for place in ranking.strongest(facts(tables, OURS))]
    assert order == ["L0.H1", "L1.H0", "L1.H1"]


def test_most_of_what_a_head_does_comes_before_what_is_less_simple(tables):
    tables["heads"].loc[tables["heads"]["measure"] == "previous-token", "value"] = 0.6
    tables["labels"] = tables["labels"].loc[~tables["labels"]["label"].str.startswith("relation")]
    assert [short for short, _ in told(tables, 1, 1)] == ["token before", "noun to verb"]


def test_without_labels_findings_of_attention_are_facts(tables):
    bare = {name: tables[name] for name in ("heads", "effects", "tasks")}
    assert told(bare, 1, 1) == [
        ("object to its verb", "looks there"),
        ("noun to verb", "looks there"),
        ("nearby", "looks there"),
    ]


def test_without_labels_what_does_not_beat_its_rules_has_the_name_of_the_rule_that_it_follows_or_none(tables):
    bare = {name: tables[name] for name in ("heads", "effects", "tasks")}
    fails = tables["rules"].assign(verdict="does not beat them")
    assert [short for short, _ in told(bare | {"rules": fails}, 1, 1)] == ["noun to verb", "nearby"]
    follows = fails.assign(rule="last VERB", predicts=0.8)
    found = facts(bare | {"rules": follows}, OURS)[Place("decoder", "self", 1, 1)]
    (rule,) = (fact for fact in found if fact.name == "rule:last VERB")
    assert (rule.words.short, rule.value, rule.rung) == ("last verb", 0.8, 1)
    assert rule.read_on == "the half that reports"
    alone = bare | {"rules": follows, "heads": bare["heads"].loc[~bare["heads"]["measure"].str.startswith("tag:")]}
    alone["effects"] = tables["effects"].iloc[:2]
    said = sentences(alone, facts(alone, OURS), OURS)[1]
    assert said.first == "L1.H1 goes to the last verb in 80% of cases, as a simple rule does."
    likes = RULE | {"measure": "tag:NOUN->VERB", "verdict": "does not beat them", "rule": "any->VERB", "predicts": 0.9}
    rest = bare["heads"].loc[~bare["heads"]["measure"].str.startswith("relation:")]
    alone |= {"heads": rest, "rules": pd.DataFrame([likes])}
    said = sentences(alone, facts(alone, OURS), OURS)[1]
    assert said.first == "L1.H1 looks at verbs, whoever asks 3.0 times as much as distance explains."


def test_sentences_say_head_verb_object_percentage_rule_and_caveat(tables):
    said = sentences(tables, facts(tables, OURS), OURS)
    assert headline(said) == "Position is found, syntax in part"
    assert [each.text for each in said] == [
        "L1.H0 looks at what followed this token before (induction) with 90% of its attention; uniform attention gets "
        "2%. Replacing L1.H0 removes 15% of copying and changes 6 of 40 answers.",
        "L1.H1 goes from an object to its verb in 70% of cases; taking the last verb gets 60%. Where taking the last "
        "verb errs, L1.H1 is right in 55%. Replacing L0.H1 removes 35% of the choice of was or were and changes 6 of "
        "40 answers; the model is right in 65%.",
    ]
    assert [each.first for each in said] == [f"{each.clauses[0].text}." for each in said]


def test_a_sentence_is_made_again_from_its_rows_and_follows_them(tables):
    said = sentences(tables, facts(tables, OURS), OURS)
    for clause in (clause for each in said for clause in each.clauses):
        assert again(clause, tables, OURS) == clause.text
    changed = {**tables, "rules": tables["rules"].assign(value=0.95)}
    assert "95% of cases; taking the last verb gets 60%" in again(said[1].clauses[0], changed, OURS)


def test_who_looks_at_a_class_whoever_asks_is_told_by_the_lift(tables):
    own = label_row(1, 1, "part-of-speech", "rule:any->VERB", "attention", 2.0, measure="tag:NOUN->VERB")
    rule = RULE | {"measure": "tag:NOUN->VERB", "rival": "words of other tags", "rule": "any->VERB", "predicts": 0.9}
    rest = {**tables, "labels": pd.DataFrame([own]), "rules": pd.DataFrame([RULE, rule])}
    rest["effects"] = tables["effects"].iloc[:2]
    said = sentences(rest, facts(rest, OURS), OURS)
    assert said[1].first == "L1.H1 looks at verbs, whoever asks 3.0 times as much as distance explains."


def test_the_closest_head_is_the_best_of_the_half_that_does_not_report(tables):
    other = RULE | {"head": 0, "value": 0.9, "choosing_margin": 0.02, "verdict": "not testable here"}
    quiet = {**tables, "labels": tables["labels"].iloc[:1], "effects": tables["effects"].iloc[:2]}
    quiet["rules"] = pd.DataFrame([RULE, other])
    (_, syntax) = sentences(quiet, facts(quiet, OURS), OURS)
    assert syntax.text == (
        "No head is shown to go from an object to its verb: at best L1.H1 gets 70% (held-out), taking the last verb "
        "60%."
    )


def test_a_model_that_sees_few_of_a_relation_is_said_to(tables):
    few = {**tables, "rules": pd.DataFrame([RULE | {"asked": 0.05}])}
    assert sentences(few, facts(few, OURS), OURS)[1].first == (
        "L1.H1 goes from an object to its verb in 70% of the 5% of cases that it sees; taking the last verb gets 60%."
    )
    few |= {"labels": tables["labels"].iloc[:1], "effects": tables["effects"].iloc[:2]}
    assert (
        "at best L1.H1 gets 70% of the 5% of cases that it sees (held-out)"
        in sentences(few, facts(few, OURS), OURS)[1].text
    )


def test_what_shows_in_effects_only_is_told_by_its_effect_first(tables):
    rest = {**tables, "labels": tables["labels"].iloc[:1]}
    said = sentences(rest, facts(rest, OURS), OURS)
    assert headline(said) == "Position is found, syntax in effects only"
    assert said[1].first == (
        "Replacing L0.H1 removes 35% of the choice of was or were and changes 6 of 40 answers; the model is right in "
        "65%."
    )
    assert said[1].rest.startswith("No head is shown to go from an object to its verb: ")


def test_what_no_head_shows_is_said_beside_the_head_that_comes_closest(tables):
    rest = {**tables, "labels": tables["labels"].iloc[:1], "effects": tables["effects"].iloc[:2]}
    said = sentences(rest, facts(rest, OURS), OURS)
    assert said[1].verdict == "none"
    assert said[1].text == (
        "No head is shown to go from an object to its verb: at best L1.H1 gets 70% (held-out), "
        "taking the last verb 60%."
    )


def test_what_no_head_shows_is_read_off_many_items_or_how_few_is_said(tables):
    rest = {name: rows.iloc[:0] for name, rows in tables.items() if name != "heads"}
    few = heads_row(0, 0, "part-of-speech", "relation:obj:dependent->head", 1.0, 0.1, n=3, q=0.9)
    heads = tables["heads"].assign(q=0.9)

    def told(*rows) -> str:
        own = {**rest, "heads": pd.DataFrame(rows)}
        return sentences(own, facts(own, OURS), OURS)[-1].text

    assert "gets 100% of only 3, " in told(few)
    (many,) = heads.loc[heads["measure"] == "relation:obj:dependent->head"].to_dict("records")
    assert "at best L1.H1 gets 70%, " in told(few, many)


def test_attention_is_untested_where_nothing_was_patched_or_hidden(tables):
    bare = {"heads": tables["heads"]}
    said = sentences(bare, facts(bare, OURS), OURS)
    assert headline(said) == "Position and syntax show in attention (effect untested)"
    assert headline(said[:1]) == "Position shows in attention (effect untested)"
    none = [replace(said[-1], verdict="none", title=title) for title in ("syntax", "coreference")]
    assert headline([*said[:1], *none]) == (
        "Position shows in attention (effect untested), syntax and coreference not found"
    )


def test_heads_of_several_attentions_are_told_apart(tables):
    cross = heads_row(1, 0, "position", "monotonicity", 0.9, 0.0, unit="correlation") | {"attention": "cross"}
    both = {"heads": pd.concat([tables["heads"], pd.DataFrame([cross])])}
    found = facts(both, OURS)
    assert [*found][-1].named(several=True) == "cross.L1.H0"
    assert next(iter(found)).named(several=True) == "decoder.L0.H0"


def test_ties_of_evidence_go_to_the_larger_lower_bound():
    fact = facts({"heads": pd.DataFrame([heads_row(0, 0, "position", "induction", 0.9, 0.1)])}, OURS)
    (own,) = fact[Place("decoder", "self", 0, 0)]
    surer = replace(own, strength=own.strength + 0.01, name="surer")
    assert [each.name for each in ranking.ranked([own, surer])] == ["surer", "induction"]
