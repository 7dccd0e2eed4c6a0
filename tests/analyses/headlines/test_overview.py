"""The first screen: atlas, cards and sentences on a page, from hand-made tables and from a planted model."""

import random
from dataclasses import replace

import pandas as pd
import pytest

from analyses import corpora, report, runs
from analyses.behaviours import OURS
from analyses.headlines.facts import Tables, facts, ranked, strongest
from analyses.headlines.head_cards import Card, overview
from analyses.report.scaffold import render
from interp import AnnotatedText
from models import planted
from models.planted import Planted
from tests.analyses.headlines.hand_made_tables import hand_made, head_at, heads_row
from tests.pages import Page, page_of


def overview_page(tables: Tables) -> Page:
    line, first = overview(tables, OURS)
    return Page(render(line, [first], [], {}))


def card_of(tables: Tables, id: str) -> Card:
    return next(card for card in overview(tables, OURS)[1].cards if card.id == id)


@pytest.fixture(scope="module")
def page() -> Page:
    return overview_page(hand_made())


def cells(page: Page) -> list[dict[str, str | None]]:
    return [attrs for tag, attrs in page.tags if tag == "a" and "data-head" in attrs]


def test_the_atlas_has_layer_0_at_the_bottom_and_fills_what_is_needed(page):
    classes = {cell["data-head"]: str(cell["class"]) for cell in cells(page)}
    assert classes == {
        "L1.H0": "position needed",
        "L1.H1": "part-of-speech looks",
        "L0.H0": " quiet",
        "L0.H1": "part-of-speech needed",
    }
    assert [*classes][:2] == ["L1.H0", "L1.H1"]
    assert all(cell["href"] == f"#{cell['data-head']}" for cell in cells(page))
    assert ("a", {"class": "head", "href": "#L0.H1"}) in page.tags  # like the sentence under the headline
    cards = [attrs["id"] for tag, attrs in page.tags if tag == "article" and attrs.get("class") == "card"]
    assert cards == ["L0.H1", "L1.H0", "L1.H1", "L0.H0"]  # strongest first


def test_atlas_and_cards_say_what_the_tables_have(page):
    phrases = [
        "L1.H0: induction; needed",
        "L1.H1: object to its verb; attention alone",
        "L0.H0: –nothing found",
        "L1.H1 goes from an object to its verb in 70% of cases; taking the last verb gets 60%.",
        "False discovery rate 0.001 for attention, 0.400 for effect",
        "On average 0.050 nats a token (95%: 0.049 to 0.051).",
        "No clear effect: 0.001 nats a token",
        "right in 70 of 100 cases.",
        "Nothing stands out.",
        "tables/effects: stack decoder, attention self, layer 0, head 1, behaviour part-of-speech, task agreement, ",
        "How far it looks on the whole text",
        "on the whole text (tables/heads has all); induction on random tokens that come twice.",
        "Give L0.H1 what it computed for the other number: 6 of 40 answers flip; the model",
        "; a changed word in 30 of 40.",
        "Moves the choice of was or were 35% of the way; the model is right on 65% of prompts.",
        "L0.H1 as in “The <b>dogs</b>",
        "2 to 11 of 40 flip (95%).",
    ]
    assert [each for each in phrases if each not in page.text] == []


def test_the_answers_of_a_fact_stand_before_and_after_as_they_were_measured():
    (fact,) = card_of(hand_made(), "L0.H1").facts
    assert fact.look is not None
    assert fact.look.bars is not None
    answers = [[(answer, value) for answer, value, _ in row] for _, row in fact.look.bars.rows]
    assert answers == [[(" was", 0.8), (" were", 0.1)], [(" was", 0.2), (" were", 0.7)]]
    assert fact.id == "L0.H1/agreement"


def test_without_an_output_layer_a_card_says_what_reads_its_effects():
    tables = hand_made()
    tables["labels"]["readout"] = "tag probe"
    (fact, *_) = card_of(tables, "L1.H0").facts
    assert fact.effect.endswith("; a probe reads it, because the model has no output layer")
    assert "probe" not in card_of(hand_made(), "L1.H0").facts[0].effect


def test_an_example_that_shows_what_was_not_claimed_is_said_to_be_wrong(page):
    assert "Wrong here: no case shown is right." in page.text


def test_what_had_to_be_beaten_stands_on_the_axis_of_the_head():
    """From objects to their verbs: the head's 70% (65% to 75%) and the rule's 60%, on an axis from 0 to 1."""
    fact, *_ = card_of(hand_made(), "L1.H1").facts
    assert fact.axis is not None
    points = {point.kind: (point.at, point.low, point.high) for point in fact.axis.points}
    assert points["this"] == pytest.approx((0.7, 0.65, 0.75))
    assert points["rule"][0] == pytest.approx(0.6)
    assert dict(fact.axis.ticks) == {"0": 0.0, "100%": 1.0}


def test_a_cell_may_break_long_words_and_pairs_and_an_effect_alone_is_not_told_as_if_the_head_looked_there():
    tables = hand_made()
    renamed = {"relation:obj:dependent->head": "rule:last VERB/AUX", "tag:NOUN->VERB": "rule:last NOUN/PROPN/PRON"}
    tables["labels"]["label"] = tables["labels"]["label"].replace(renamed)
    tables["labels"].loc[0, "evidence"] = "effect"
    page = overview_page(tables)
    assert "L1.H1: last noun, name or pronoun; attention alone" in page.text
    assert "was/were" in page.text
    clause = "(induction), the model loses 0.05 nats a token, though its attention there does not stand out."
    assert f"Without what L1.H0 looks at there {clause}" in page.text


def test_heads_of_several_attentions_have_atlases_and_addresses_of_their_own():
    cross = heads_row(1, 0, "position", "monotonicity", 0.9, 0.0, unit="correlation") | {"attention": "cross"}
    heads = hand_made()["heads"]
    page = overview_page({"heads": pd.concat([heads.loc[heads["value"] < 0.5], pd.DataFrame([cross])])})
    assert {"cross.L1.H0", "decoder.L1.H1"} <= {cell["data-head"] for cell in cells(page)}
    assert "Cross-attention" in page.text
    assert "cross.L1.H0 follows the source in order: rank correlation 0.90" in page.text


def test_sentences_are_shown_with_the_word_that_asks_and_the_one_attended_to():
    line, first = overview(hand_made(), OURS)
    html = render(line, [first], [], {})
    sentence = '<mark>&lt;b&gt;one&lt;/b&gt;</mark> two <u>three</u> <span class="soft">88%</span></li>'
    assert f'<li><span aria-hidden="true">✗</span><span class="hidden">wrong:</span> {sentence}' in html
    assert "Drawn at random among 9 " in " ".join(Page(html).text.split())


# A planted model's report.

WORDS = [f"w{first}{second}" for first in "abcdefgh" for second in "jklmn"]


@pytest.mark.slow
def test_the_first_fact_of_each_planted_head_is_what_was_planted_and_stands_on_the_page_and_in_the_record(tmp_path):
    """A previous-token head that an induction head needs, an unread offset head, two uniform heads, and one that rests
    on the first token."""
    segments = (" ".join(random.Random(number).sample(WORDS, 9)) for number in range(24))
    plain = [AnnotatedText.plain(f"{each} {each} {each}", f"document {number}") for number, each in enumerate(segments)]
    texts = [replace(text, sentence_starts=(0, 9, 18)) for text in plain]
    layers = [
        [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform],
        [planted.induction(10.0), planted.uniform, planted.first_token],
    ]
    model = Planted(WORDS, layers, n_ctx=110, start="<s>").build()
    options = {"behaviours": ["position"], "probes": False, "experiments": False, "pairs": 12}
    report.build(model, [corpora.from_rows(texts, name="repeats")], tmp_path / "out", **options)
    run = runs.read(tmp_path / "out")
    tables = {name: run.table(name) for name in run.tables}
    by_head = {place: ranked(group) for place, group in facts(tables, OURS).items()}
    first = {place[2:]: group[0].words.short for place, group in by_head.items() if group}
    assert first == {(0, 0): "token before", (0, 1): "token 3 back", (1, 0): "induction", (1, 2): "first token"}
    needed = {place[2:] for place, group in by_head.items() if any(fact.is_needed for fact in group)}
    assert needed == {(0, 0), (1, 0)}
    assert {place[2:] for place in strongest(by_head)[:2]} == needed
    line, first = overview(tables, OURS)
    assert line == "L1.H0 looks at what followed this token before (induction), and the model needs it"
    assert run.facts["sentences"] == {"position": first.sentences[0].text}
    assert all(text in page_of(tmp_path / "out").text for text in (line, first.sentences[0].first))
    assert all(fact.look for card in first.cards for fact in card.facts)  # every fact has an example
    reasons = {card.id: (card.facts[0].why, card.facts[0].read_by) for card in first.cards if card.facts}
    assert "what L0.H0, which looks at the token before, wrote into them: without that part" in reasons["L1.H0"][0]
    assert reasons["L0.H0"][1] == "Read by L1.H0’s keys (−100% of the logit difference when cut)."
    assert all(sentence in page_of(tmp_path / "out").text for sentence in (*reasons["L1.H0"], *reasons["L0.H0"]))


def test_a_card_says_who_wrote_what_its_head_finds_and_who_reads_it():
    tables = hand_made()
    tables["labels"]["task"] = ["repeat", *[None] * 4]
    writers = pd.DataFrame([writers_row(1, 0, "induction", explains=True), writers_row(1, 0, "offset:-2")])
    readers = [(0.12, 0.1, 0.01, "1.1.k"), (-0.2, -0.3, 0.01, "mlp.1"), (0.3, -0.3, 0.01, "logits")]
    readers += [(0.4, 0.4, 0.2, "1.1.q"), (0.05, 0.05, 0.01, "1.1.v"), (0.02, 0.02, 0.01, "1.0.v")]
    names = ("effect", "choosing", "q", "reader")
    rows = [head_at(1, 0) | {"task": "repeat"} | dict(zip(names, each, strict=True)) for each in readers]
    tables |= {"writers": writers, "readers": pd.DataFrame(rows)}
    card = card_of(tables, "L1.H0")
    (why, read_by), *_ = [(each.why, each.read_by) for each in card.facts if each.fact.name == "induction"]
    assert why == (
        "It finds these keys by what the 9 heads that look at the token before wrote into them: without that part, its "
        "attention there falls from 96% to 8%; without an equal part from 9 other heads, to 95%."
    )
    assert read_by == (
        "Read by feed-forward 1 (+20% of the logit difference when cut), L1.H1’s keys (−12%), L1.H1’s values (−5%)."
    )
    assert [card.why + card.read_by for card in card_of(tables, "L1.H1").facts] == [""] * 3
    words = overview_page(tables).text
    assert why in words
    assert read_by in words


def writers_row(layer, head, measure, *, explains=False):
    row = head_at(layer, head) | {"behaviour": "position", "measure": measure, "writer": "previous-token"}
    row |= {"members": "+".join(f"decoder.0.head.{head}" for head in range(9)), "before": 0.96, "without": 0.08}
    return row | {"kind": "family", "others": 100, "others_size": 9, "others_without": 0.95, "explains": explains}
