"""Facts from hand-made tables: what do they rest on, which comes first, how are they worded and named?"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from tiny import LLAMA

from analyses import view
from analyses.behaviours import OURS
from analyses.headlines.facts import called_by, facts, ranked, strongest
from analyses.headlines.head_cards import overview
from analyses.headlines.sentences import Sentence, sentences, verdicts
from analyses.page.sections import Page
from analyses.report.scaffold import write
from analyses.wording.head_names import Place
from interp import InputError, Transformer, TransformerConfig, run, zero
from interp.running import edited
from models import load, save, weights_digest
from tests.analyses.headlines.hand_made_tables import RULE, hand_made, heads_row


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    return hand_made()


def names_of(tables, layer, head) -> list[tuple[str, str]]:
    head_facts = facts(tables, OURS)[Place("decoder", "self", layer, head)]
    return [(fact.words.short, fact.kind) for fact in ranked(head_facts)]


def sentences_of(tables) -> list[Sentence]:
    return sentences(tables, facts(tables, OURS), OURS)


def test_what_is_needed_comes_first_then_what_simpler_descriptions_leave_over(tables):
    assert names_of(tables, 1, 0) == [("induction", "looks there and needed"), ("copying", "needed")]
    assert names_of(tables, 0, 1) == [("was/were", "needed")]
    assert names_of(tables, 0, 0) == []
    attends = [(short, "looks there") for short in ("object to its verb", "noun to verb", "nearby")]
    assert names_of(tables, 1, 1) == attends  # being sufficient without being necessary is no fact
    assert names_of({name: tables[name] for name in ("heads", "effects", "tasks")}, 1, 1) == attends  # without labels
    order = [place.named(prefix=False) for place in strongest(facts(tables, OURS))]
    assert order == ["L0.H1", "L1.H0", "L1.H1"]
    # an unestablished effect keeps its q, beside attention's
    group = facts(tables, OURS)[Place("decoder", "self", 1, 1)]
    (fact,) = [fact for fact in group if fact.label.kind == "relation"]
    assert (fact.q, fact.q_effect) == (0.001, 0.4)
    assert fact.value == 0.7
    assert fact.strength == pytest.approx(0.39 / 0.7)


def test_every_row_of_every_fact_is_the_one_row_of_its_table_with_its_key(tables):
    for row in (row for group in facts(tables, OURS).values() for fact in group for row in fact.rows):
        rows = tables[row.table]
        for column, value in row.key:
            rows = rows.loc[rows[column] == value]
        assert len(rows) == 1


def test_strength_beats_finer_names(tables):
    """A strong coarse label names a head before a weak finer one."""
    of_relation = tables["labels"]["label"].str.startswith("relation")
    tables["labels"].loc[of_relation, ["gain", "gain_low", "gain_high"]] = 0.07, 0.06, 0.08
    assert [short for short, _ in names_of(tables, 1, 1)] == ["noun to verb", "object to its verb", "nearby"]


def test_without_labels_what_does_not_beat_its_rules_has_the_name_of_the_rule_that_it_follows_or_none(tables):
    bare = {name: tables[name] for name in ("heads", "effects", "tasks")}
    fails = tables["rules"].assign(verdict="worse")
    assert [short for short, _ in names_of(bare | {"rules": fails}, 1, 1)] == ["noun to verb", "nearby"]
    follows = fails.assign(rule="last VERB", predicts=0.8)
    group = facts(bare | {"rules": follows}, OURS)[Place("decoder", "self", 1, 1)]
    (rule,) = (fact for fact in group if fact.name == "rule:last VERB")
    assert (rule.words.short, rule.value, rule.rung) == ("last verb", 0.8, 1)
    alone = bare | {"rules": follows, "heads": bare["heads"].loc[~bare["heads"]["measure"].str.startswith("tag:")]}
    alone["effects"] = tables["effects"].iloc[:2]
    assert sentences_of(alone)[1].first == "L1.H1 goes to the last verb in 80% of cases, as a simple rule does."
    likes = RULE | {"measure": "tag:NOUN->VERB", "verdict": "equivalent", "rule": "any->VERB", "predicts": 0.9}
    rest = bare["heads"].loc[~bare["heads"]["measure"].str.startswith("relation:")]
    alone |= {"heads": rest, "rules": pd.DataFrame([likes])}
    assert sentences_of(alone)[1].first == "L1.H1 looks at verbs from any word 3.0 times as much as distance explains."


def test_sentences_say_head_verb_object_percentage_rule_and_caveat(tables):
    position, syntax = sentences_of(tables)
    assert verdicts([position, syntax]) == "Heads track position; evidence for syntax is partial"
    looks = "L1.H0 looks at what followed this token before (induction) with 90% of its attention"
    assert position.first == f"{looks}; uniform attention gets 2%."
    assert position.rest == (
        "Given what it computed for the other prompt, L1.H0 flips 6 of 40 answers; "
        "copying moves 15% of the way to that prompt’s."
    )
    assert syntax.text == (
        "L1.H1 goes from an object to its verb in 70% of cases; taking the last verb gets 60%. Where taking the last "
        "verb errs, L1.H1 is right in 55%. Given what it computed for the other prompt, L0.H1 "
        "flips 6 of 40 answers; the choice of was or were moves 35% of the way to that prompt’s; the model is right on "
        "65% of prompts."
    )
    tables["rules"] = tables["rules"].assign(value=0.95)
    assert "95% of cases; taking the last verb gets 60%" in sentences_of(tables)[1].first


def quiet(tables, **more) -> str:
    """The sentence about syntax if no head shows it."""
    rest = {**tables, "labels": tables["labels"].iloc[:1], "effects": tables["effects"].iloc[:2], **more}
    assert sentences_of(rest)[1].verdict == "none"
    return sentences_of(rest)[1].text


def test_what_no_head_shows_is_told_by_the_head_that_comes_closest_on_the_half_that_does_not_report(tables):
    closest = "We found no head that goes from an object to its verb: at best L1.H1 gets 70%{} (held-out), "
    closest += "taking the last verb 60%."
    assert quiet(tables) == closest.format("")
    rival = RULE | {"head": 0, "value": 0.9, "choosing_margin": 0.02, "verdict": "cannot tell"}
    assert quiet(tables, rules=pd.DataFrame([RULE, rival])) == closest.format("")
    for strength, said_of_it in (
        (0.52, "We would have found a head that is right in 6 of 10 cases where this errs."),
        (0.97, "We would have found a head that is right in nearly all cases where this errs."),
        (float("nan"), "this errs in too few cases to tell"),
    ):
        assert said_of_it in quiet(tables, rules=pd.DataFrame([RULE | {"detectable": strength}]))
    rules = pd.DataFrame([RULE | {"asked": 0.05}])  # the model sees few items of a relation
    assert quiet(tables, rules=rules) == closest.format(" of the 5% of cases that it sees")
    assert "in 70% of the 5% of cases that it sees; taking" in sentences_of({**tables, "rules": rules})[1].first


def test_what_no_head_shows_is_read_off_many_items_or_how_few_is_said(tables):
    rest = {name: rows.iloc[:0] for name, rows in tables.items() if name != "heads"}
    sparse = heads_row(0, 0, "part-of-speech", "relation:obj:dependent->head", 1.0, 0.1, n=3, q=0.9)
    heads = tables["heads"].assign(q=0.9)
    assert "gets 100% of only 3, " in sentences_of({**rest, "heads": pd.DataFrame([sparse])})[-1].text
    (many,) = heads.loc[heads["measure"] == "relation:obj:dependent->head"].to_dict("records")
    assert "at best L1.H1 gets 70%, " in sentences_of({**rest, "heads": pd.DataFrame([sparse, many])})[-1].text


def test_what_shows_in_effects_only_is_told_by_its_effect_first(tables):
    lines = sentences_of({**tables, "labels": tables["labels"].iloc[:1]})
    assert verdicts(lines) == "Heads track position; evidence for syntax is causal only"
    assert lines[1].first.startswith(
        "Given what it computed for the other prompt, L0.H1 flips 6 of 40 answers; the choice "
    )
    assert lines[1].rest.startswith("We found no head that goes from an object to its verb: ")


def test_attention_is_untested_where_nothing_was_patched_or_hidden(tables):
    lines, untested = sentences_of({"heads": tables["heads"]}), "in attention (effect untested)"
    assert verdicts(lines) == f"Evidence for position and syntax is {untested}"
    none = [replace(lines[-1], verdict="none", title=title) for title in ("syntax", "coreference")]
    assert (
        verdicts([*lines[:1], *none])
        == f"Evidence for position is {untested}; we found no heads for syntax and coreference"
    )


def test_its_code_ranks_the_facts_of_a_run_and_makes_its_headline(tmp_path, monkeypatch, capsys):
    from page_code import blocks

    monkeypatch.chdir(tmp_path)
    dump(Path("report"), hand_made())
    block, flip = blocks("docs/headlines.md", "python")
    exec(compile(block, "docs/headlines.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "carries the choice of was or were needed 0.35 effects: stack decoder, attention self, layer 0, head 1, "
        "behaviour part-of-speech, task agreement, intervention noise",
        "One head carries the subject’s number to “was” and “were”, across another noun",
    ]
    exec(compile(flip, "docs/headlines.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["he 0.22", "she 0.75"]


MODEL = Transformer(TransformerConfig(decoder=LLAMA))


def dump(out: Path, tables) -> Path:
    write(out, lambda run: Page("What?", ["short"], [], tables=tables), {"tiny": MODEL}, command="interp report")
    return out


def test_heads_are_called_and_coloured_as_in_the_atlas(tmp_path):
    tables = hand_made()
    out, (_, first) = dump(tmp_path / "report", tables), overview(tables, OURS)
    atlas = {cell.name: cell for layer in first.atlases[0].layers for cell in layer}
    names = {f"L{place[2]}.H{place[3]}": called for place, called in called_by(out, MODEL).items()}
    by_name = {name: (each.words, each.behaviour, each.needed) for name, each in names.items()}
    assert by_name == {
        name: (re.sub("[\u00ad\u200b]", "", cell.word), cell.behaviour, cell.state == "needed")
        for name, cell in atlas.items()
        if cell.state != "quiet"
    }
    assert [*names] == [card.id for card in first.cards][: len(names)]
    result = view(run(MODEL, torch.tensor([[1, 2, 3]]), capture="*.pattern"), labels=out)
    assert result.viewer is not None
    assert dict(result.viewer.called) == called_by(out, MODEL)


def test_what_is_no_report_of_this_model_is_refused_in_one_line(tmp_path):
    quiet = {"heads": hand_made()["heads"].assign(q=1.0), "tasks": pd.DataFrame({"task": []})}
    assert called_by(dump(tmp_path / "quiet", quiet), MODEL) == {}
    out, bare = dump(tmp_path / "report", hand_made()), dump(tmp_path / "bare", {"cells": pd.DataFrame({"layer": [0]})})
    stranger = Transformer(TransformerConfig(decoder=replace(LLAMA, d_mlp=8)))
    for report, model, why in (
        (out, stranger, "is about tiny: it has no names for heads"),
        (out, edited(MODEL, {"decoder.0.attn.z": zero()}), r"whose fingerprint differs \(other weights, settings"),
        (out, edited(MODEL, {"decoder.0.attn.z": lambda z: z}), "whose fingerprint differs"),  # which has none
        (bare, MODEL, "bare is not a report of heads: expected a directory from `interp report`"),
    ):
        with pytest.raises(InputError, match=why):
            called_by(report, model)


def test_a_report_from_before_there_were_fingerprints_is_known_by_its_weight_files(tmp_path):
    save(MODEL, tmp_path / "model")
    loaded, out = load(tmp_path / "model"), dump(tmp_path / "report", hand_made())
    record = json.loads((out / "run.json").read_text())
    del record["model"]["fingerprint"]
    record["model"]["sha256"] = weights_digest(tmp_path / "model")
    (out / "run.json").write_text(json.dumps(record))
    assert called_by(out, loaded)
    with pytest.raises(InputError, match="whose sha256 differs"):
        called_by(out, MODEL)
