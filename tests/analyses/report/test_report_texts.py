"""What a report says of a behaviour and of a figure, by rule from its tables; and every name leads to what it means."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analyses import report
from analyses.behaviours import ACROSS, OURS
from analyses.figures import measure_name
from analyses.headlines.sentences import rule_sentence
from analyses.measures.head_tables import Measured
from analyses.page.sections import Definitions, Section, Table, plain
from analyses.report import illustrations as drawn
from analyses.report.behaviour_sections import attention, cause
from analyses.report.full_report import DEFINITIONS
from analyses.report.report_parts import label_counts
from analyses.report.scaffold import render
from analyses.scoring.rules import (
    ANTECEDENT,
    ANY_WORD,
    BEATS,
    CANNOT_TELL,
    EQUIVALENT,
    LADDER,
    NEAREST,
    NO_RULE,
    OFFSETS,
    OTHERS,
    WORSE,
    plain_name,
)
from analyses.tasks.causal_tests import Effects
from tests.analyses.headlines.hand_made_tables import effect_row, hand_made, heads_row, label_row
from tests.pages import page_of, retold

OBJECT = "relation:obj:dependent->head"


@pytest.mark.parametrize(
    ("measure", "rule", "verdict", "rival", "said"),
    [
        (
            OBJECT,
            "last VERB",
            EQUIVALENT,
            "last VERB",
            "it goes to the last verb (74% of its choices), which is right in",
        ),
        (
            OBJECT,
            "offset -1",
            CANNOT_TELL,
            "last VERB",
            "it goes to the word before (74% of its choices); taking the la",
        ),
        (OBJECT, NO_RULE, BEATS, "last VERB", "it goes by no simple rule; taking the last verb is right in 91%: the "),
        ("antecedent", ANTECEDENT, BEATS, "same gender", "nothing simpler predicts its choices than the antecedent"),
        ("tag:NOUN->ADJ", None, BEATS, OTHERS, "Nouns look at adjectives more than other words do."),
        ("tag:VERB->PRON", None, WORSE, OTHERS, "Verbs look at pronouns less than other words do."),
    ],
)
def test_beside_a_head_stands_the_rule_that_it_goes_by_and_what_rules_get(measure, rule, verdict, rival, said):
    row = {"measure": measure, "rival": rival, "rival_value": 0.914, "rule": rule, "predicts": 0.743}
    of_choices = rival != OTHERS  # their numbers are of one half, those beside them of the whole text
    assert rule_sentence(row | {"verdict": verdict}).startswith("On the half that reports " * of_choices + said)


def measured(behaviour: str, *rows: dict) -> Measured:
    return Measured(pd.DataFrame([row | {"behaviour": behaviour} for row in rows]))


def in_short(behaviour: str, *rows: dict, bars: dict[str, float] | None = None) -> list[str]:
    known = {} if bars is None else bars
    return [plain(each) for each in attention(OURS[behaviour], measured(behaviour, *rows), known)]


def test_behind_the_best_head_stand_others_that_show_it_and_what_heads_gain_that_have_learnt_nothing():
    rows = [heads_row(0, head, "position", "previous-token", 0.9 - 0.1 * head, 0.02) for head in range(3)]
    others = "gets 2%. 3 of 3 heads are above it, next L0.H1, L0.H2."
    assert in_short("position", *rows, bars={"previous-token": 0.04})[0].endswith(others)
    assert in_short("position", *rows, bars={"previous-token": 0.88})[0].endswith(
        f"{others} Heads that have learnt nothing stay below 88%."
    )
    (*_, last) = attention(OURS["position"], measured("position", *rows))
    assert last == "Without labels nothing says what heads gain that have learnt nothing."
    # where no head stands out the closest is named
    rows = [heads_row(0, 1, "position", "self", 0.03, 0.02), heads_row(0, 1, "position", "previous-token", 0.04, 0.02)]
    assert in_short("position", *rows) == [
        "No head stands out. The closest: L0.H1 looks at the token before with 4% of its attention; uniform attention "
        "gets 2%."
    ]


def test_no_measure_that_leads_a_page_is_called_by_its_name():
    for behaviour, name in ((each, name) for each in OURS.values() for name in each.headline):
        unit = behaviour[name].unit
        (said, *_) = in_short(behaviour.name, heads_row(0, 0, behaviour.name, name, 0.9, 0.1, unit=unit))
        assert unit == "entropy" or said.startswith("L0.H0 "), name
        assert not re.search(r":|->|→|“|\d\.\d\d", said), name


def test_a_task_is_told_by_what_it_decides_with_what_each_head_removes_and_restores():
    tables = hand_made()
    others = [effect_row(0, head, "repeat", way, 0.12, 0.1) for head in (0, 1) for way in ("noise", "denoise")]
    effects = pd.concat([tables["effects"], pd.DataFrame(others)])
    repeat, agreement = tables["tasks"].to_dict("records")
    first, second = cause(Effects(effects, [repeat, agreement]))
    assert first == (
        "Replacing L1.H0 removes 15% of copying, and alone it restores 16% (6 and 6 of 40 answers change); "
        "L0.H0 12% and 12% (6 and 6 of 40); L0.H1 12% and 12% (6 and 6 of 40)."
    )
    assert plain(second).startswith("Replacing L0.H1 removes 35% of the choice of was or were, and alone it restores")
    assert plain(second).endswith(
        ". The model is right in only 65% of the prompts; what these heads carry often does not decide its answer."
    )
    for way, said in (("noise", "Replacing L1.H0 removes"), ("denoise", "Alone L1.H0 restores")):
        rows = effects.loc[(effects["intervention"] == way) & (effects["head"] == 0) & (effects["layer"] == 1)]
        (one,) = cause(Effects(rows, [repeat]))
        assert plain(one).startswith(said)
    refused = {"task": "gender", "carried": "his/her", "refused": "the model puts the right answer first in 3 of 40"}
    adjacent = {"task": "agreement-adjacent", "carried": "adjacent was/were", "accuracy": 0.9}
    assert cause(Effects(effects.head(0), [refused, adjacent])) == [
        f"Of the choice of his or her no head was tested: {refused['refused']}.",
        "No single head surely carries 5% of the choice of was or were right after its noun.",
    ]


def test_a_grid_names_the_heads_with_most_and_counts_its_dots():
    rows = [(1, 0, "induction", 0.9), (0, 1, "induction", 0.3), (0, 0, "induction", float("nan"))]
    rows = [heads_row(layer, head, "position", name, value, 0.02) for layer, head, name, value in rows]
    rows[1]["q"] = 0.5
    rows += [heads_row(layer, 0, "position", "distance", value, 6.0) for layer, value in ((0, 4.0), (1, 2.0))]
    heads = pd.DataFrame(rows)
    said = "induction: most in L1.H0 0.880, L0.H1 0.280 (1 of 3 heads marked)."
    assert drawn.grid_alt(heads, ["induction"]) == f"Gains over the baseline. {said}"
    assert drawn.grid_alt(heads, ["distance"], "value") == "distance: most in L0.H0 4.000, L1.H0 2.000."
    assert "(none of 3 heads marked)" in drawn.grid_alt(heads.assign(q=1.0), ["induction"])
    assert drawn.grid_alt(heads.iloc[2:3], ["induction"]).endswith("induction: undefined.")
    both = pd.concat([heads.iloc[:1], heads.iloc[:1].assign(attention="cross")])
    assert "decoder.L1.H0 0.880, cross.L1.H0 0.880" in drawn.grid_alt(both, ["induction"], "gain")
    parts = {"position": pd.DataFrame([[0.2, 0.4], [0.6, np.nan]]), "nothing": pd.DataFrame([[np.nan, np.nan]])}
    assert drawn.shares_alt(parts) == "position: 0.400 on average, most in L1.H0."
    assert drawn.distance_alt(heads) == "Mean distance in tokens: layer 0 4.0, layer 1 2.0; uniform attention 6.0."


def test_a_stripe_is_told_by_its_distance():
    before, corner = 0.9 * np.eye(5, k=-1) + 0.02, np.full((5, 5), 0.02)
    corner[4, 0] = 1.0  # one cell, as large as it may be, is no stripe
    first = np.zeros((5, 5))
    first[:, 0] = 0.8
    stripes = {"L0.H0\nprevious-token": before, "b": before + 0.5 * (corner > 0.5), "c": np.eye(1), "d": first}
    assert drawn.stripes_alt(stripes | {"e": corner * 0.0 + 0.01}) == (
        "L0.H0 previous-token: 0.920 of its attention 1 back; b: 0.920 of its attention 1 back; "
        "c: 1.000 of its attention on the token itself; d: 0.800 of its attention on the first token; e: no stripe."
    )


def test_patterns_between_words_name_their_widest_lines_and_leave_out_what_is_not_drawn():
    pattern = np.array([[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.6, 0.04, np.nan]])
    words, lines = ["Anna", "slept", "she"], "L0.H0: Anna to Anna 1.000, slept to slept 0.700, she to Anna 0.600."
    assert drawn.lines_alt({"L0.H0": pattern}, words) == lines
    assert drawn.lines_alt({"L0.H0": pattern}, words, 2) == "L0.H0: from she to Anna 0.600."
    assert drawn.cells_alt({"a:x->y": pattern[:1] * 0}, ["NOUN"], words) == "a:x→y: nothing."


def test_labels_are_told_with_their_heads():
    rows = [label_row(0, head, "position", "induction", "both", 0.5, effect=head / 10) for head in range(8)]
    rows += [label_row(0, 0, "part-of-speech", "tag:NOUN->VERB", "attention", 0.5)]
    labels = pd.DataFrame(rows)
    assert drawn.label_map_alt(labels, 16) == (
        "8 of 16 heads have a label. induction: L0.H0, L0.H1, L0.H2, L0.H3, L0.H4, L0.H5 and 2 more; "
        "tag:NOUN→VERB: L0.H0."
    )
    said = drawn.agreement_alt(labels, labels)
    assert said.startswith("Gain across, effect in nats up, of 8 heads. Largest effects of heads with a label: ")
    assert "induction: most in L0.H7 0.700, L0.H6 0.600, L0.H5 0.500; tag:NOUN→VERB: most in L0.H0 0.001." in said
    assert drawn.agreement_alt(labels, labels.iloc[:0]).endswith("None has a label.")


def test_no_figure_of_a_report_or_the_documentation_has_its_title_or_caption_for_an_alternative(position_report):
    assert len([tag for tag, _ in page_of(position_report).tags if tag == "figure"]) >= 4
    assert retold((position_report / "report.html").read_text("utf-8")) == []
    root = Path(report.__file__).parents[2]
    pages = [root / "README.md", root / "models/checkpoints/default/README.md", *sorted(root.glob("docs/**/*.md"))]
    texts = [page.read_text("utf-8") for page in pages]
    pictures = [found for text in texts for found in re.findall(r"!\[(.*?)\]\(\S*?(\w+)\.png\)", text)]
    assert len(pictures) >= 15
    assert [name for alt, name in pictures if len(alt.split()) < 12] == []
    assert len({*pictures}) == len({name for _, name in pictures}), "one picture, one text"


ALL_MEASURES = [each for behaviour in (*OURS.values(), *ACROSS.values()) for each in behaviour.measures]
RULES = [
    plain_name(name)
    for name in (*(rule.name for rule in (*OFFSETS, *NEAREST, *LADDER)), f"{ANY_WORD}NOUN", "same gender")
]
NAMES = {*filter(None, [*RULES, *(name for each in ALL_MEASURES for name in (each.name, each.called))])}


def test_every_measure_and_label_leads_to_a_definition():
    names, columns = sorted(map(measure_name, NAMES)), ["measure", "label", "relation"]
    table = Section("Heads", [Table(columns, [[name] * 3 for name in names])])
    page = render("?", [], [table, Section("Definitions", [Definitions([*DEFINITIONS.items()], "terms")])], {})
    links = re.findall(r'<td><a href="#(definition-[^"]+)">([^<]+)</a></td>', page.replace("&gt;", ">"))
    assert sorted(name for _, name in links) == sorted(names * 3)
    assert {to for to, _ in links} <= {*re.findall(r'<span id="(definition-[^"]+)"', page)}
    assert "nsubj subject to verb" in DEFINITIONS["relation"]


def test_few_labelled_heads_are_named_and_many_counted():
    many = [{"head": head, "behaviour": "part-of-speech", "label": "tag:A->B"} for head in range(5)]
    labels = pd.DataFrame([{"head": 3, "behaviour": "coreference", "label": "antecedent"}, *many])
    labels = labels.assign(stack="encoder", attention="self", layer=1, evidence="attention", task=None, n=9)
    short = label_counts(labels, {name: each.title for name, each in OURS.items()})
    assert short.startswith("5 heads carry labels")
    assert short.endswith("By behaviour: coreference 1 (L1.H3), part of speech and syntax 5.")
