"""The atlas of heads in a browser: small pictures with a word, cards beside them, and answers that flip."""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from repository import ROOT

from analyses.behaviours import OURS
from analyses.headlines.head_cards import Atlas, Card, Cell, Overview, overview
from analyses.page.sections import Section, Table
from analyses.report.scaffold import render
from analyses.viewer import read_texts
from analyses.viewer.pictures import SHADES, averaged, picture
from analyses.viewer.training_steps import training_steps
from models import load
from tests.analyses.headlines.hand_made_tables import hand_made

WORDS: list[tuple[str, Literal["needed", "looks", "quiet"], str]] = [
    ("position", "needed", "token before"),
    ("part-of-speech", "looks", "last verb or auxil\u00adiary"),
    ("coreference", "needed", "he/\u200bshe"),
    ("", "quiet", ""),
]
FIRST_SCREEN = Path(__file__).with_name("first_screen.js").read_text()
TEXTBOOK = ROOT / "models/checkpoints/textbook/training/textbook"
SAID = "The fiddler by the wide towers amazed the skater as her turn was rare."
EVERYTHING = Table(["measure", "value"], [["relation:nmod:poss:head→dependent:transposed", "0.039"]], "lr")


def write_page(path: Path, title: str, first: Overview) -> Path:
    path.write_text(render(title, [first], [Section("In short", ["x"])], {}), "utf-8")
    return path


@pytest.fixture
def page_of(tmp_path):
    """Make a page with an atlas of given size, with recurring words, and one head's card."""

    def make(n_layers: int, n_heads: int) -> Path:
        layers, small = [], picture(np.tril(np.ones((20, 20))) / 20)
        for layer in reversed(range(n_layers)):
            names = [f"L{layer}.H{head}" for head in range(n_heads)]
            of_layer = [WORDS[(layer + head) % len(WORDS)] for head in range(n_heads)]
            cells = zip(names, of_layer, strict=True)
            layers.append([Cell(name, name, state, behaviour, word, small) for name, (behaviour, state, word) in cells])
        atlas = Atlas("Heads", layers, max(n_layers, n_heads) > 12)
        card = Card("L0.H0", "L0.H0", [], [], [], [], None, EVERYTHING, "")
        return write_page(tmp_path / f"{n_layers}x{n_heads}.html", "?", Overview("Says.", [], [atlas], [card]))

    return make


@pytest.mark.parametrize(("n_layers", "n_heads"), [(3, 2), (4, 8), (12, 12)])
def test_up_to_twelve_by_twelve_a_picture_has_its_word_and_all_fit_the_first_screen(browse, page_of, n_layers, n_heads):
    window = browse(page_of(n_layers, n_heads))
    cell = window.page.locator('[data-head="L0.H0"]')
    assert (window.overflow(), window.small()) == (0, [])
    assert cell.locator("b").inner_text() == "token before"
    picture, words = (cell.locator(each).bounding_box() for each in ("svg", "b"))
    assert picture["y"] + picture["height"] <= words["y"] + 1
    assert n_layers > 4 or window.page.locator(".atlas tfoot").bounding_box()["y"] < 800


@pytest.mark.parametrize(("width", "is_beside"), [(1280, True), (390, False)])
def test_the_card_stands_beside_a_wide_atlas_and_below_it_on_a_narrow_page(browse, page_of, width, is_beside):
    page = browse(page_of(12, 12), width=width).page
    atlas, card = (page.locator(each).bounding_box() for each in (".atlas", ".card"))
    assert (card["x"] > atlas["x"] + atlas["width"]) == is_beside
    assert (card["y"] > atlas["y"] + atlas["height"]) != is_beside


@pytest.fixture
def first_screen(tmp_path) -> Path:
    tables = hand_made()
    more = tables["answers"].assign(heads="L1.H1", right=0.6, wrong=0.3)
    tables["answers"] = pd.concat([tables["answers"], more], ignore_index=True)
    alone = tables["flips"].iloc[:1].assign(heads="L1.H1", flips=0, flips_low=0.0, flips_high=3.0)
    tables["flips"] = pd.concat([tables["flips"].iloc[:1], alone, tables["flips"].iloc[1:]], ignore_index=True)
    return write_page(tmp_path / "first.html", *overview(tables, OURS))


@pytest.mark.parametrize("head", ["L0.H1", "L1.H0", "L1.H1"])
def test_a_first_screen_has_few_words_and_its_card_all_three_parts(browse, first_screen, head):
    page = browse(first_screen, hash=f"#{head}").page
    prose = [word for kind, word in page.evaluate(FIRST_SCREEN, 800) if kind in {"said", "name"}]
    assert 40 < len(prose) <= 120, prose  # as in real reports (test_real_reports), which are slow
    parts = page.locator(".fact.shown:visible h3").all_inner_texts()
    assert [each.capitalize() for each in parts] == ["Where it looks", "What breaks", "What it had to beat"]


def test_from_a_claim_it_is_no_click_to_its_sentence_its_intervention_and_what_it_had_to_beat(browse, first_screen):
    """With five facts, the atlas leads to a head's first, and one press to each other; each shows all it has."""
    page = browse(first_screen, hash="#L1.H1/tag-noun-verb").page  # an address opens a fact
    assert page.locator(".fact.shown:visible").get_attribute("id") == "L1.H1/tag-noun-verb"
    assert page.locator('[data-head="L1.H1"]').get_attribute("aria-current") == "true"
    for head in ("L0.H1", "L1.H0", "L1.H1"):
        page.locator(f'[data-head="{head}"]').click()
        card = page.locator(f'.card[id="{head}"]')
        facts = [each.get_attribute("data-fact") for each in card.locator("[data-fact]").all()]
        for name in facts or [None]:
            if name:
                card.locator(f'[data-fact="{name}"]').click()
                assert page.evaluate("location.hash") == f"#{name}"
            fact = card.locator(".fact.shown")
            assert fact.count() == 1
            assert name is None or fact.get_attribute("id") == name
            assert fact.locator("h3").count() >= 2
    page.locator('[data-head="L0.H1"]').click()
    fact = page.locator(".fact.shown:visible")
    assert fact.locator(".look mark").inner_text() == "<b>one</b>"
    assert [each.inner_text().split() for each in fact.locator(".bars dd:not([aria-hidden])").all()] == [
        ["was", "80%", "were", "10%"],
        ["was", "20%", "were", "70%"],
    ]
    assert fact.locator("svg.axis").is_visible()


def test_heads_are_pressed_and_answers_flip_as_they_were_measured(browse, first_screen):
    window = browse(first_screen)
    page = window.page
    page.locator(".flip > summary").click()
    assert page.locator(".flip-count").inner_text() == "L0.H1 changed: 6 of 1 answers flip (95%: 2 to 11)."
    assert page.locator(".flip-pairs").inner_text().split("\n")[:2] == ["The <b>dog</b> …", "was 20% · were 70%"]
    assert page.locator(".flip-pairs .flipped").count() == 1
    page.locator('[data-flip="L0.H1"]').click()
    assert page.locator(".flip-count").inner_text() == "Nothing changed: 1 prompts as they are."
    assert page.locator(".flip-pairs").inner_text().split("\n")[1] == "was 80% · were 10%"
    page.locator('.atlas [data-head="L1.H1"]').click()  # on the atlas, too
    assert page.locator('[data-flip="L1.H1"]').get_attribute("aria-pressed") == "true"
    assert "was 60% · were 30%" in page.locator(".flip-pairs").inner_text()
    page.evaluate("""for (let each = 0; each < 40; each++) {
        const list = document.querySelector(".flip-pairs"); list.append(list.firstChild.cloneNode(true)); }
        dispatchEvent(new Event("resize"))""")  # so many cells scroll, and keys must be able to scroll them
    page.click(".legend [data-only=needed]")
    assert {*page.locator(".atlas a:visible").all_inner_texts()} == {*page.locator(".atlas a.needed").all_inner_texts()}
    assert window.errors == []
    assert window.barriers() == []


def test_on_a_phone_a_tap_opens_a_sheet_and_covers_no_neighbour(browse, first_screen):
    window = browse(first_screen, width=390)
    page = window.page
    assert page.locator(".sheet-close").is_hidden()
    page.locator('[data-head="L1.H0"]').click()
    sheet = page.locator(".cards").bounding_box()
    assert sheet["y"] + sheet["height"] == pytest.approx(page.viewport_size["height"], abs=1)
    page.locator(".sheet-close").click()
    assert page.locator(".sheet-close").is_hidden()
    assert window.overflow() <= 0


def test_a_claim_is_passed_on_as_a_link_and_as_a_picture(browse, first_screen):
    page = browse(first_screen, hash="#L1.H0").page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    claim = page.locator(".fact.shown:visible")
    claim.get_by_label("Copy the link to this claim").click()
    claim.locator("button", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").endswith(f"first.html#{claim.get_attribute('id')}")
    with page.expect_download() as saved:
        claim.locator("button", has_text="Picture").click()
    picture = saved.value.path().read_bytes()
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1200, 630)  # of the PNG


def test_a_slider_draws_the_heads_as_they_were_at_a_step_of_training(browse, tmp_path):
    model = load("textbook")
    passages = read_texts(model, [SAID])
    steps = training_steps(TEXTBOOK, passages[0], model)
    assert steps is not None
    assert len(steps.data["steps"]) == 8
    assert len(steps.data["packed"]) + sum(map(len, steps.data["patterns"].values())) < 40_000
    page = browse(write_page(tmp_path / "first.html", *overview(hand_made(), OURS, passages, steps=steps))).page
    page.locator("summary", has_text="through training").click()
    says = page.locator(".viewer-says")
    page.evaluate("location.hash = '#L1.H0'")
    says.filter(has_text="L1.H0").wait_for()
    before = says.inner_text()
    slider, square = page.locator(".steps-of-training input"), page.locator('[data-head="L1.H0"] svg.picture')
    trained = square.inner_html()
    slider.fill("0")
    page.locator("output", has_text="100").wait_for()
    (early,) = read_texts(load(str(TEXTBOOK / "steps/000100")), [SAID])[0].attentions
    says.filter(has_text="at step 100: “").wait_for()
    washes = page.eval_on_selector_all(".token", "all => all.map(each => +each.style.getPropertyValue('--share'))")
    asks = page.eval_on_selector_all(".token", "all => all.findIndex(each => each.classList.contains('picked'))")
    assert washes == pytest.approx((early.weights[1, 0, asks] / 255).tolist(), abs=0.0051)
    shares = np.rint(averaged(early.weights[1, 0])) / 255
    counts = [each.get_attribute("d").count("M") for each in square.locator("path").all()]
    assert counts == np.histogram(shares, [*(least for least, _ in SHADES), 2])[0].tolist()
    assert square.inner_html() != trained
    slider.fill("8")
    page.locator("output", has_text="trained").wait_for()
    assert (square.inner_html(), says.inner_text()) == (trained, before)
