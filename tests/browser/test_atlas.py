"""The atlas of heads in a browser: words where there is room, and everything at the focus and under a finger."""

from pathlib import Path
from typing import Literal

import pytest

from analyses.headlines.head_cards import Atlas, Bar, Card, Cell, Overview
from analyses.page.sections import Section, Table
from analyses.report.scaffold import render

FACTS: list[tuple[str, Literal["needed", "looks", "quiet"], str, str]] = [
    ("position", "needed", "token before", "was/\u200bwere"),
    ("part-of-speech", "looks", "last verb or auxil\u00adiary", "noun to adjec\u00adtive"),
    ("coreference", "needed", "he/\u200bshe", "his/\u200bher"),
    ("position", "looks", "nearby", ""),
    ("", "quiet", "", ""),
]
EVERYTHING = Table(["measure", "value"], [["relation:nmod:poss:head→dependent:transposed", "0.039"]], "lr")


def plain(text: str) -> str:
    return text.replace("\u00ad", "").replace("\u200b", "")


@pytest.fixture
def page_of(tmp_path):
    """A page with an atlas of so many layers and heads, in which the facts come round, and the card of one head."""

    def make(n_layers: int, n_heads: int):
        layers = []
        for layer in reversed(range(n_layers)):
            row = []
            for head in range(n_heads):
                name = f"L{layer}.H{head}"
                behaviour, stands, first, second = FACTS[(layer + head) % len(FACTS)]
                row.append(Cell(name, name, stands, behaviour, first, second))
            layers.append(row)
        atlas = Atlas("Heads", layers, max(n_layers, n_heads) > 12)
        out = tmp_path / f"{n_layers}x{n_heads}.html"
        bar = Bar("60% removed (56% to 63%)", "60% removed", 0.6, 0.56, 0.63, [("0", 0.0)])
        known = {"words": "carries the choice of he or she", "short": "he/she", "behaviour": "coreference"}
        known |= {"note": "", "bars": [bar]}
        card = Card("L0.H0", "L0.H0", [("Needed", [known])], [], [], None, [], None, EVERYTHING, "")
        out.write_text(render("?", [Overview([], [atlas], [card])], [Section("In short", ["x"])], {}), "utf-8")
        return out

    return make


def facts(shown, name: str) -> tuple[str, str]:
    """What stands in a cell, whole, as far as it is seen."""
    found = shown.page.evaluate(Path(__file__).with_name("facts_seen.js").read_text(), name)
    first, second = map(plain, found)
    return first, second


@pytest.mark.parametrize(("n_layers", "n_heads"), [(4, 8), (12, 12)])
def test_up_to_twelve_by_twelve_a_cell_says_its_first_fact(browse, page_of, n_layers, n_heads):
    shown = browse(page_of(n_layers, n_heads))
    assert (shown.overflow(), shown.small()) == (0, [])
    assert facts(shown, "L0.H0")[0] == "token before"
    assert n_heads > 8 or facts(shown, "L0.H0")[1] == "was/were"  # the second where it fits whole
    assert facts(shown, "L0.H2") == ("he/she", "his/her")  # one line each
    assert facts(shown, "L0.H3") == ("nearby", "")
    bottom = shown.page.locator(".atlas tfoot").bounding_box()
    assert bottom["y"] + bottom["height"] < 800


@pytest.mark.parametrize(("n_layers", "n_heads"), [(1, 3), (13, 16)])
@pytest.mark.parametrize("width", [1280, 390])
def test_both_facts_are_seen_whole_at_the_focus(browse, page_of, n_layers, n_heads, width):
    shown = browse(page_of(n_layers, n_heads), width=width)
    page = shown.page
    names = [f"L{layer}.H{head}" for layer in {0, n_layers - 1} for head in {0, 1, n_heads // 2, n_heads - 1}]
    for name in names:
        layer, head = map(int, name[1:].split(".H"))
        _, _, first, second = FACTS[(layer + head) % len(FACTS)]
        page.locator(f'[data-head="{name}"]').focus()
        assert facts(shown, name) == (plain(first), plain(second))
        if first:
            box = page.locator(f'[data-head="{name}"] .words').bounding_box()
            region = page.locator(".wide").first.bounding_box()
            assert region["x"] - 1 <= box["x"]
            assert box["x"] + box["width"] <= region["x"] + region["width"] + 1
            assert region["y"] - 1 <= box["y"]
            assert box["y"] + box["height"] <= region["y"] + region["height"] + 1
    assert shown.overflow() <= 0


@pytest.mark.parametrize(("n_layers", "n_heads", "width"), [(4, 8, 390), (12, 12, 390), (13, 16, 1280)])
def test_without_room_a_cell_has_a_glyph_and_a_touch_shows_its_words(browse, page_of, n_layers, n_heads, width):
    shown = browse(page_of(n_layers, n_heads), width=width)
    cell = shown.page.locator('[data-head="L0.H1"]')
    assert facts(shown, "L0.H1") == ("", "")
    assert cell.locator(".glyph").is_visible()
    cell.evaluate("each => each.click()")  # a touch: not every browser gives a link the focus
    assert facts(shown, "L0.H1") == ("last verb or auxiliary", "noun to adjective")
    assert shown.small() == []


@pytest.mark.parametrize(("width", "beside"), [(1280, True), (390, False)])
def test_the_card_stands_beside_a_wide_atlas_and_below_it_on_a_narrow_page(browse, page_of, width, beside):
    page = browse(page_of(12, 12), width=width).page
    atlas, card = (page.locator(each).bounding_box() for each in (".atlas", ".card"))
    assert (card["x"] > atlas["x"] + atlas["width"]) == beside
    assert (card["y"] > atlas["y"] + atlas["height"]) != beside
