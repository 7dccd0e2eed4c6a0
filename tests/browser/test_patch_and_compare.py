"""Pages of `interp patch`, `compare` and `suite` in a browser: cells link to attention, heads mark matches."""

import random

import pytest
from worded import table, worded

from analyses import report, suites
from analyses.corpora import Corpus
from analyses.report import builders
from interp import AnnotatedText
from models import load
from models.planted import Planted, offset, uniform

WORDS = [f"w{number}" for number in range(40)]


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    out = tmp_path_factory.mktemp("patch") / "out"
    builders.patch(worded(), table(), out, by_position=True)
    return out / "report.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """L0.H0 of one model looks at the previous token, and so do L0.H1 and L2.H0 of the other."""
    texts = [" ".join(random.Random(number).choices(WORDS, k=30)) for number in range(40)]
    corpus = Corpus(
        "texts", "fake", frozenset(), "0" * 64, lambda: (AnnotatedText.plain(t, str(i)) for i, t in enumerate(texts))
    )
    plans = {
        "one": [[offset(-1), uniform]],
        "other": [[uniform, offset(-1)], [uniform, uniform], [offset(-1), uniform]],
    }
    models = {name: Planted(WORDS, plan, n_ctx=64, start="<s>").build() for name, plan in plans.items()}
    return report.compare(models, [corpus], tmp_path_factory.mktemp("compare"), behaviours=["position"]) / "report.html"


@pytest.fixture(scope="module")
def suited(tmp_path_factory):
    suite, out = suites.builtin("agreement", pairs=6), tmp_path_factory.mktemp("suite") / "out"
    return report.suite(load("textbook"), suite, out, name="textbook") / "report.html"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
@pytest.mark.parametrize("name", ["patched", "compared", "suited"])
def test_nothing_goes_wrong(browse, request, name, width, dark):
    window = browse(request.getfixturevalue(name), width=width, dark=dark)
    assert (window.errors, window.outside, window.small()) == ([], [], [])
    assert window.overflow() <= 0
    assert window.barriers() == []


def test_a_cell_leads_to_what_its_head_looks_at_from_its_token(browse, patched):
    page = browse(patched).page
    start = page.locator(".grid [aria-current]").get_attribute("href")
    says, viewer = page.locator(".grids-says"), page.locator(".viewer-says")
    assert viewer.inner_text().startswith(start[1:].split("/")[0])
    cells = page.locator(".grid").first.locator("a")
    cell = next(each for each in cells.all() if each.get_attribute("href") != start)
    name = cell.get_attribute("href")[1:]
    cell.hover()
    assert says.inner_text().startswith(name.split("/")[0])
    cell.click()
    page.wait_for_function(
        "name => document.querySelector('.viewer').dataset.painted === name", arg=name.replace("/", " queries ")
    )
    assert viewer.is_visible()
    assert page.locator(".grid [aria-current]").get_attribute("href") == f"#{name}"
    cell.focus()
    page.keyboard.press("ArrowRight")
    column = page.evaluate("document.activeElement.closest('td').cellIndex")
    assert column == cell.evaluate("each => each.closest('td').cellIndex") + 1
    page.keyboard.press("Enter")
    page.wait_for_function("name => !document.querySelector('.viewer').dataset.painted.startsWith(name)", arg=name)


def test_a_head_marks_those_of_the_other_model_that_do_the_same(browse, compared):
    page = browse(compared).page
    cell = page.locator("[id='model-1/L0.H0']")
    cell.hover()
    marked = {each.get_attribute("id") for each in page.locator(".marked").all()}
    assert marked == {"model-2/L0.H1", "model-2/L2.H0"}
    best = page.locator(".marked.best")
    assert best.count() == 1
    assert "other: " + best.get_attribute("id").split("/")[1] in page.locator(".grids-says").inner_text()
    page.mouse.move(0, 0)
    assert page.locator(".marked").count() == 0
    cell.press("Enter")
    assert page.evaluate("document.activeElement.id") == cell.get_attribute("href")[1:]
    assert {each.get_attribute("id") for each in page.locator(".marked").all()} == {"model-1/L0.H0"}
