"""A small page of every kind of value, in a browser: interaction, hostile texts, nothing from outside."""

import pandas as pd
import pytest
from matplotlib.figure import Figure as Drawing

from analyses.page import sections
from analyses.report.scaffold import render, write

HOSTILE = [
    "<script>document.title = 'taken'</script>",
    "\"'><img src=x onerror=\"document.title='taken'\">",
    "</style></script><b>out</b>",
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 emoji",
    "{{ 7 * 7 }} {% raw %}",
    "w" * 10_000,
]
NAMES = ["L0.H2", "L0.H10", "L1.H1", *(f"L2.H{head}" for head in range(9))]
VALUES = ["−0.200", "+0.100 (0.050 to 0.150)", "< 0.001", "1\u202f234", "–", "2", "3", "4", "5", "6", "7", "8"]
CELLS = [[(layer, head) for head in range(3)] for layer in (1, 0)]  # layer 0 at the bottom
ATLAS = "".join(
    f"<tr><th>L{row[0][0]}</th>"
    + "".join(f'<td><a data-head="L{la}.H{he}" href="#L{la}.H{he}">L{la}.H{he}</a></td>' for la, he in row)
    for row in CELLS
)
CARDS = "".join(
    f'<article class="card" id="L{layer}.H{head}"><h3>L{layer}.H{head}</h3></article>'
    for row in CELLS
    for layer, head in row
)
HEADS = f'<table class="atlas">{ATLAS}</table><div class="cards">{CARDS}</div></main>'


def drawing() -> Drawing:
    figure = Drawing(figsize=(9, 2))
    figure.suptitle(HOSTILE[0])
    figure.subplots().plot([0, 1])
    return figure


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A page as a command writes it, with an atlas and cards as `page.js` expects."""
    rows = [
        [sections.bold(name), value, HOSTILE[0] if number == 3 else "calm"]
        for number, (name, value) in enumerate(zip(NAMES, VALUES, strict=True))
    ]
    tables = [
        sections.Table(["head", "value", "said"], rows, "lrw", "Heads and values"),
        sections.Table(
            ["measure", "n"], ["first", ["tag:NOUN→ADJ", "2"], ["other", "10"], "then", ["tag", "1"], ["x", "3"]], "lr"
        ),
    ]
    blocks = [
        *HOSTILE,
        sections.remark(*HOSTILE),
        sections.caveat(sections.code(HOSTILE[-1])),
        sections.Bullets(HOSTILE),
        sections.Definitions([("facts", each) for each in HOSTILE], "facts"),
        sections.Tokens([(each, index % 2 == 0) for index, each in enumerate(HOSTILE)]),
        ["see ", sections.link("the other", "other")],
        *tables,
        sections.Figure("drawn", drawing(), HOSTILE[1], HOSTILE[1]),
        sections.Bars([(each, [(each, 0.25, True), ("she", 0.75, False)]) for each in HOSTILE]),
        sections.Details(HOSTILE[0], [sections.Section("Inside a fold", [HOSTILE[0]], "folded")], printed=True),
        sections.Details("Numbers", [sections.Section("No paper", [HOSTILE[0]], "unprinted")], open=True),
    ]
    page = sections.Page(
        title=f"What of {HOSTILE[0]}?",
        summary=["short"],
        sections=[
            sections.Section(HOSTILE[1], blocks, "one"),
            sections.Section("Other", [sections.Table([HOSTILE[0]], [[each] for each in HOSTILE], "w")], "other"),
            sections.Section("Details", [sections.Details("More", ["of no use on paper"])], "details"),
        ],
        definitions=[("gain, tag", "what it is"), ("n", "how many")],
        tables={"layers": pd.DataFrame({"layer": [0]})},
    )
    out = tmp_path_factory.mktemp("page") / "out"
    write(out, lambda run: page, {}, command=HOSTILE[0])
    html = (out / "report.html").read_text("utf-8").replace("</main>", HEADS)
    (out / "report.html").write_text(html, "utf-8")
    return out / "report.html"


def column(window, caption: str, index: int) -> list[str]:
    rows = window.page.locator(f'.wide[aria-label="{caption}"] tbody tr:visible')
    return [row.locator("td,th").nth(index).inner_text().replace("\u00a0", " ") for row in rows.all()]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_goes_wrong_or_overflows_and_hostile_texts_are_texts(browse, file, width, dark):
    window = browse(file, width=width, dark=dark)
    assert window.errors == []
    assert window.outside == []
    assert window.overflow() <= 0
    assert window.small() == []
    assert window.page.title() == f"What of {HOSTILE[0]}?"
    text = window.page.locator("main").text_content()
    assert [each[:40] for each in HOSTILE if text.count(each) < 6] == []
    assert window.page.locator("main script, main img[src=x], main style").count() == 0
    widths = window.page.eval_on_selector_all(
        ".bars svg rect", "each => each.map(one => one.getBoundingClientRect().width)"
    )
    assert all(wrong == pytest.approx(3 * right) for right, wrong in zip(widths[1::3], widths[2::3], strict=True))
    turned = window.page.eval_on_selector("figure img", "each => getComputedStyle(each).filter")
    assert turned == ("invert(1) hue-rotate(180deg)" if dark else "none")
    window.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert window.overflow() <= 0
    assert window.barriers() == []


def test_only_the_scripts_of_the_page_run(browse, file, tmp_path):
    slipped = tmp_path / "slipped.html"
    slip = "<script>document.title = 'taken'</script><img src=data:x onerror=\"document.title='taken'\"></main>"
    slipped.write_text(file.read_text("utf-8").replace("</main>", slip), "utf-8")
    window = browse(slipped)
    assert window.page.title() != "taken"
    assert any("Content Security Policy" in error for error in window.errors)


def test_a_click_on_a_column_sorts_it_as_numbers_or_names_and_what_is_undefined_stays_last(browse, file):
    window = browse(file)
    value = window.page.get_by_role("button", name="value")
    value.click()
    assert column(window, "Heads and values", 1) == ["1\u202f234", *"8765432", VALUES[1], VALUES[2], VALUES[0], "–"]
    value.press("Enter")
    assert column(window, "Heads and values", 1)[:3] == [VALUES[0], VALUES[2], VALUES[1]]
    assert column(window, "Heads and values", 1)[-1] == "–"
    assert value.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    window.page.get_by_role("button", name="head", exact=True).click()
    assert column(window, "Heads and values", 0)[:3] == ["L0.H2", "L0.H10", "L1.H1"]
    assert value.locator("xpath=..").get_attribute("aria-sort") is None
    table = f"Table: {HOSTILE[1]}".replace("\\", "\\\\").replace('"', '\\"')  # its rows are in groups
    window.page.get_by_role("button", name="n", exact=True).click()
    assert column(window, table, 0) == ["first", "other", "tag:NOUN→ADJ", "then", "x", "tag"]


def test_a_filter_leaves_the_rows_with_all_its_words(browse, file):
    window = browse(file)
    field = window.page.get_by_role("searchbox", name="Filter rows: Heads and values")
    field.fill("L2 calm")
    assert column(window, "Heads and values", 0) == [f"L2.H{head}" for head in range(1, 9)]
    assert window.page.get_by_role("status").filter(has_text="8 of 12 rows").count() == 1
    field.fill("<script>")
    assert column(window, "Heads and values", 0) == ["L2.H0"]
    field.fill("")
    assert len(column(window, "Heads and values", 0)) == 12


def test_measures_lead_to_their_definitions_and_links_open_folds(browse, file):
    window = browse(file, hash="#folded")
    assert window.page.locator("#folded").is_visible()
    window.page.get_by_role("link", name="tag:NOUN→ADJ").click()
    assert window.page.locator("#definition-tag:target").inner_text() == "tag"


def test_heads_are_shown_by_their_address_by_click_and_by_key(browse, file):
    window = browse(file, hash="#L0.H1")
    page = window.page
    page.evaluate("window.told = []; document.addEventListener('interp:head', event => told.push(event.detail))")
    assert visible(page) == ["L0.H1"]
    page.locator('[data-head="L0.H1"]').focus()
    keys = {"ArrowUp": "L1.H1", "End": "L1.H2", "ArrowLeft": "L1.H1", "Home": "L1.H0"}
    for key, head in keys.items():
        page.keyboard.press(key)
        assert visible(page) == [head]
        assert page.locator("[aria-current=true]").get_attribute("data-head") == head
        assert page.locator(".atlas a[tabindex='0']").get_attribute("data-head") == head
        assert page.evaluate("document.activeElement.dataset.head") == head
        assert page.url.endswith(f"#{head}")
    assert page.evaluate("told.at(-1)") == {"stack": None, "attention": "self", "layer": 1, "head": 0}
    page.locator('[data-head="L0.H2"]').click()
    assert visible(page) == ["L0.H2"]
    page.go_back()
    assert visible(page) == ["L1.H0"]
    detail = "{stack: 'decoder', attention: 'self', layer: 0, head: 1}"  # as the viewer sends for its keys j and k
    page.evaluate(f"document.dispatchEvent(new CustomEvent('interp:turned', {{detail: {detail}}}))")
    assert visible(page) == ["L0.H1"]
    assert page.url.endswith("#L0.H1")
    assert window.errors == []


def visible(page) -> list[str]:
    return [card.get_attribute("id") for card in page.locator(".cards > .card").all() if card.is_visible()]


def test_without_scripts_all_stands_there(browse, file):
    window = browse(file, scripts=False)
    assert window.page.locator(".cards > .card:visible").count() == 6
    assert window.page.locator("th button, .filter").count() == 0


def test_print_shows_the_folds_that_are_worth_paper_and_cuts_nothing_off(browse, file):
    window = browse(file, width=720)
    window.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    window.page.emulate_media(media="print")
    assert window.page.locator("#folded").is_visible()
    for left_out in ("nav.contents", "#unprinted", "#details"):
        assert not window.page.locator(left_out).is_visible()
    cut = "[...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth + 1).length"
    assert window.page.evaluate(cut) == 0
    assert window.overflow() <= 0


def test_a_block_that_gives_out_heads_is_led_to_from_where_they_are_named():
    class Bold(tuple):
        ids = ("L1.H3", "cross.L0.H1")

    names = [sections.bold(name) for name in ("cross.L0.H1", "L1.H4")]
    parts = [sections.Section("One", [Bold([sections.bold("L1.H3")]), *names, "as L1.H3 does"])]
    html = render("What?", [], parts, {})
    assert html.count('href="#L1.H3"') == 2
    assert html.count('href="#cross.L0.H1"') == 1
    assert "#L1.H4" not in html
