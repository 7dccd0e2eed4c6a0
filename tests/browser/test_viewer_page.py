"""The attention viewer in a browser: what do mouse, keys, addresses and the rest of the page make it show?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import UInt8

from analyses.measures.head_tables import Heads
from analyses.page.sections import Section
from analyses.report.scaffold import render
from analyses.viewer import Attention, Called, Passage, Viewer, write
from analyses.viewer.viewer_page import frame

HOSTILE = ["<script>document.title='taken'</script>", "\"'><img src=x onerror=alert(1)>", "שלום", "👩‍👧", "w" * 10_000]
WORDS = ["<s>", " Amy", " saw", " the", " dog", " and", " it", " ran", "."]
CALLED = {
    ("decoder", "self", 1, 2): Called("previous token", "position"),
    ("decoder", "self", 0, 1): Called("object to verb", "part-of-speech"),
}
BEFORE, HALVES = (1, 2), (0, 1)  # layer and head


def shares(n: int) -> UInt8[np.ndarray, "layer head query key"]:
    """L1.H2 looks one back, L0.H1 half at the first token and half one back, others at themselves."""
    weights = np.zeros((2, 3, n, n), np.uint8)
    rows = np.arange(n)
    weights[:, :, rows, rows] = 255
    weights[BEFORE] = weights[HALVES] = 0
    weights[*BEFORE, rows, np.maximum(rows - 1, 0)] = 255
    weights[*HALVES, rows, 0] += 102
    weights[*HALVES, rows, np.maximum(rows - 1, 0)] += 153
    return weights


def one_stack(words=WORDS) -> Passage:
    return Passage((Attention(Heads("decoder", 2, 3), tuple(words), tuple(words), shares(len(words))),))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    out = tmp_path_factory.mktemp("viewer") / "view.html"
    write(Viewer((one_stack(), one_stack([" Once", " upon", " a", " time"])), CALLED, linked=True), out)
    return out


@pytest.fixture
def view(browse, tmp_path):
    """Open a page with one passage."""

    def show(passage=None, called=CALLED, title=(), scripts=True, **more):
        write(Viewer((passage or one_stack(),), called, **more), tmp_path / "v.html", *title)
        return browse(tmp_path / "v.html", scripts=scripts)

    return show


def says(window, expected: str) -> None:
    """Assert the sentence, once it is painted."""
    window.page.locator(".viewer-says", has_text=expected).wait_for()


def looked_at(window) -> list[str]:
    window.page.locator(".viewer[data-painted*=L]").wait_for()
    return window.page.eval_on_selector_all(".token.looked-at", "all => all.map(each => each.textContent)")


def test_a_token_that_is_pointed_at_shows_where_it_looks(browse, file):
    window = browse(file)
    says(window, "L1.H2 (previous token): “ran” looks at “it” (100%).")
    window.page.hover(".token >> text=dog")
    says(window, "“dog” looks at “the” (100%)")
    assert looked_at(window) == ["the"]
    window.page.click(".viewer-turn")
    says(window, "“dog” is looked at by “and” (100%)")
    assert not window.errors
    assert not window.outside


def test_the_grid_names_its_axes_and_its_colours_are_those_of_the_atlas(view):
    needed = {("decoder", "self", 1, 2): Called("previous token", "position", needed=True)}
    window = view(called=CALLED | needed)
    looked_at(window)
    grid = window.page.inner_text(".viewer-heads").split("\n")
    assert (grid[0], grid[1], grid[-1]) == ("Layer ↑", "L1", "Head →")  # the last layer first
    legend = window.page.inner_text(".viewer-legend")
    assert all(word in legend for word in ("position", "syntax", "Filled: needed", "Grey: no fact is known"))
    assert "coreference" not in legend
    colour = "each => getComputedStyle(each).backgroundColor"
    filled, outlined = (window.page.eval_on_selector(f'[data-place="{place}"]', colour) for place in ("1.2", "0.1"))
    assert (filled, outlined) == ("rgb(217, 235, 246)", "rgba(0, 0, 0, 0)")  # position's wash; only an edge
    for count in (1, 6):  # pressed again, all return
        window.page.click("[data-only=position]")
        assert window.page.locator(".viewer .head:visible").count() == count


PIXELS = """each => { const { width, height } = each, context = each.getContext("2d");
  return [width, height, [...context.getImageData(0, 0, width, height).data]]; }"""


def pixels_of(window, canvas: str) -> np.ndarray:
    """Red, green, blue and opacity of a picture's pixels, once drawn."""
    says(window, "L")
    width, height, values = window.page.eval_on_selector(canvas, PIXELS)
    return np.array(values).reshape(height, width, 4)


def test_every_head_is_a_small_picture_and_the_chosen_one_a_large_one_in_its_colour(browse, view, file):
    window, weights = browse(file), shares(len(WORDS))
    for place, ink in (((1, 2), [0, 103, 163]), ((0, 1), [0, 84, 58]), ((0, 0), [123, 132, 144])):
        pixels = pixels_of(window, f'[data-place="{place[0]}.{place[1]}"] canvas')
        np.testing.assert_array_equal(pixels[..., 3], weights[place])
        assert np.abs(pixels[weights[place] == 255][:, :3] - ink).max(initial=0) <= 1
    np.testing.assert_array_equal(pixels_of(window, ".viewer-square canvas")[..., 3], weights[BEFORE])
    window.page.click('[data-place="0.1"]')
    says(window, "L0.H1")
    np.testing.assert_array_equal(pixels_of(window, ".viewer-square canvas")[..., 3], weights[HALVES])
    window.page.emulate_media(color_scheme="dark")
    window.page.wait_for_timeout(100)
    assert pixels_of(window, ".viewer-square canvas")[1, 0].tolist() == [143, 240, 204, 255]  # the ink of dark pages
    long = view(one_stack([f" word{each}" for each in range(60)]), budget=550)
    for canvas in ('[data-place="1.2"] canvas', '[data-place="0.0"] canvas'):
        assert pixels_of(long, canvas).shape == (24, 24, 4)
    assert long.page.locator(".viewer-columns span").count() == 0  # no room
    long.page.click('[data-place="0.0"]')  # no room for its pattern, but the small one still shows
    says(long, "was left out")
    assert pixels_of(long, ".viewer-square canvas").shape == (24, 24, 4)


def test_lines_lead_to_what_a_token_looks_at_and_two_heads_stand_side_by_side(browse, file):
    window = browse(file)
    says(window, "L1.H2")
    window.page.hover(".token >> text=dog")
    assert window.page.locator(".viewer-texts > svg path").count() == 0
    window.page.click(".viewer-lines")
    window.page.wait_for_selector(".viewer-texts > svg path")
    assert window.page.locator(".viewer-texts > svg path").count() == 1
    window.page.click(".viewer-pin")
    window.page.click('.viewer-pair > :first-child [data-place="0.1"]')
    sentences = window.page.locator(".viewer-says")
    sentences.nth(0).filter(has_text="L0.H1 (object to verb): “dog” looks at “the” (60%)").wait_for()
    sentences.nth(1).filter(has_text="L1.H2 (previous token): “dog” looks at “the” (100%)").wait_for()
    window.page.hover(".viewer-pair > :last-child .token >> text=ran")  # pointing at either works
    sentences.nth(0).filter(has_text="“ran” looks at “it” (60%)").wait_for()
    window.page.click(".viewer-pair > :last-child .viewer-pin")
    assert (sentences.count(), window.page.inner_text(".viewer-pin")) == (1, "Pin beside")
    assert not window.errors


def point(window, query: int, key: int, n_queries: int = len(WORDS), n_keys: int = len(WORDS)) -> None:
    """Move the mouse into a cell of the matrix."""
    area = window.page.locator(".viewer-square").bounding_box()
    x, y = ((key + 0.5) / n_keys, (query + 0.5) / n_queries)
    window.page.mouse.move(area["x"] + x * area["width"], area["y"] + y * area["height"])


def picked(window) -> list[str]:
    return window.page.eval_on_selector_all(".token.picked", "all => all.map(each => each.textContent)")


def outline(window) -> str:
    return window.page.get_attribute(".viewer-square path", "d")


def test_a_cell_of_the_matrix_says_its_share_and_marks_both_tokens_and_a_token_its_row(browse, file):
    window = browse(file, hash="#L0.H1")
    says(window, "L0.H1")
    window.page.hover(".token >> text=dog")
    says(window, "“dog” looks")
    assert outline(window) == "M0 4h9v1H0z"
    point(window, 6, 5)
    says(window, "L0.H1 (object to verb): “it” gives 60% to “and”.")
    assert picked(window) == ["and", "it"]
    assert outline(window) == "M0 6h9v1H0zM5 6h1v1h-1z"
    point(window, 6, 1)
    says(window, "“it” gives less than 1% to “Amy”.")
    point(window, 0, 0)
    says(window, "“<s>” gives 100% to itself.")
    point(window, 2, 7)  # an invisible key
    says(window, "“<s>” looks at itself (100%)")
    point(window, 6, 5)
    says(window, "gives")
    window.page.mouse.move(0, 0)
    says(window, "“it” looks at “and” (60%) and “<s>” (40%)")
    window.page.click(".viewer-turn")
    says(window, "“it” is looked at by “ran” (60%)")
    assert outline(window) == "M6 0v9h1V0z"


def test_on_a_phone_a_tap_on_the_matrix_stays_until_another(browse, file):
    window = browse(file, width=390)
    says(window, "L1.H2")
    texts, matrix = (window.page.locator(each).bounding_box() for each in (".viewer-texts", ".viewer-matrix"))
    assert matrix["y"] >= texts["y"] + texts["height"]
    area = window.page.locator(".viewer-square").bounding_box()
    tap = {"clientX": area["x"] + 2.5 / 9 * area["width"], "clientY": area["y"] + 3.5 / 9 * area["height"]}
    for kind in ("pointerdown", "pointerleave"):
        window.page.dispatch_event(".viewer-square", kind, {**tap, "pointerType": "touch"})
    says(window, "“the” gives 100% to “saw”.")
    window.page.click(".token >> text=Amy")
    says(window, "“Amy” looks at “<s>” (100%)")


def test_the_most_probable_next_tokens_stand_under_each(view):
    following = [[(" Amy", 41), (" Tim", 8), (" the", 0)]] * len(WORDS)
    passage = replace(one_stack(), following=following)
    window = view(passage)
    says(window, "L")
    assert window.page.locator(".next").count() == len(WORDS)
    assert window.page.inner_text(".word >> nth=0").split("\n") == ["<s>", "41% Amy", "8% Tim", "<1% the"]
    bold = window.page.eval_on_selector_all(".comes", "all => all.map(each => each.textContent)")
    assert bold == ["41% Amy", "<1% the"]  # what follows "<s>" and "saw"
    window.page.click(".viewer-next")
    assert window.page.locator(".next").count() == 0
    assert window.page.get_attribute(".viewer-next", "aria-pressed") == "false"
    window.page.hover(".token >> text=dog")
    says(window, "“dog” looks at “the” (100%)")
    long = view(replace(one_stack([" word"] * 60), following=following[:1] * 60))
    says(long, "L")
    assert long.page.locator(".next").count() == 0  # long texts start without it
    silent = view(one_stack())
    says(silent, "L")
    assert not silent.page.is_visible(".viewer-next")
    assert "No next words: the run has no logits." in silent.page.inner_text(".viewer-legend")


def test_what_is_held_stays_and_several_are_summed(browse, file):
    window = browse(file, hash="#L0.H1")
    window.page.click(".token >> text=dog")
    window.page.hover(".token >> text=ran")
    says(window, "“dog” looks at “the” (60%) and “<s>” (40%)")
    window.page.click(".token >> text=it")
    says(window, "“dog” and “it” together look at “<s>” (40%), “the” (30%) and “and” (30%)")
    assert window.page.evaluate("location.hash") == "#L0.H1/4+6"
    window.page.keyboard.press("t")
    says(window, "“dog” and “it” together are looked at by “and” (60%) and “ran” (60%)")
    window.page.keyboard.press("Escape")
    says(window, "“it” is looked at by “ran” (60%)")


def test_all_of_it_is_done_by_keys(browse, file):
    window = browse(file)
    says(window, "ran")
    page = window.page
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('token')"):
            break
    for keys, sentence in (
        (["ArrowLeft"], "“it” looks at “and”"),
        (["Home"], "“<s>” looks at itself"),
        (["End", "Enter"], "“.” looks at “ran”"),
        (["k"], "L1.H1: “.” looks at itself (100%)"),
        (["Tab", "ArrowDown"], "L0.H1 (object to verb): “.” looks at “ran” (60%)"),
    ):
        for key in keys:
            page.keyboard.press(key)
        says(window, sentence)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "L0.H1: object to verb"


def test_an_address_tells_what_is_seen(browse, file):
    window = browse(file, hash="#L0.H1/2/to/p1")
    says(window, "L0.H1 (object to verb): “a” is looked at by “time” (60%)")
    assert window.page.eval_on_selector(".viewer-pick", "each => each.value") == "1"
    window.page.evaluate("location.hash = '#L1.H2/1'")
    says(window, "L1.H2 (previous token): “Amy” looks at “<s>” (100%)")
    for wrong in ("#L9.H9", "#nothing", "#L0.H1/99", "#%"):
        again = browse(file, hash=wrong)
        assert looked_at(again)
        assert not again.errors, wrong


def test_source_and_target_stand_side_by_side(view):
    crossing = np.zeros((1, 2, 3, 2), np.uint8)
    crossing[0, 0, :, 1] = 255
    crossing[0, 1, :, 0] = 128
    target, source = ("<s>", " le", " chien"), (" the", " dog")
    encoder = Attention(Heads("encoder", 2, 3, causal=False), source, source, shares(2))
    cross = Attention(Heads("decoder", 1, 2, "cross", causal=False), target, source, crossing)
    window = view(Passage((encoder, cross)), {}, linked=True, first=("decoder", "cross", 0, 0))
    says(window, "Cross-attention L0.H0: “le” looks at “dog” (100%)")
    left, right = (each.bounding_box() for each in window.page.query_selector_all(".viewer-text"))
    assert left["x"] + left["width"] < right["x"]
    window.page.hover(".token >> text=dog")
    says(window, "“dog” is looked at by “<s>” (100%), “le” (100%) and “chien” (100%)")
    assert pixels_of(window, ".viewer-square canvas")[..., 3].tolist() == [[0, 255]] * 3
    point(window, 2, 1, 3, 2)
    says(window, "“chien” gives 100% to “dog”.")
    assert picked(window) == ["chien", "dog"]
    assert window.page.locator(".viewer-rows span").all_inner_texts() == ["<s>", "le", "chien"]
    window.page.click("text=encoder")
    says(window, "Encoder L0.H0: “the” looks at itself")
    assert window.page.evaluate("location.hash") == "#encoder.L0.H0"
    assert not window.errors


def test_a_head_of_coreference_is_seen_at_a_pronoun_first(view):
    called = {("decoder", "self", 1, 2): Called("he/she", "coreference")}
    passage = one_stack([" Amy", " saw", " Tim", ".", " She", " ran", " to", " the", " dog"])
    says(view(passage, called), "L1.H2 (he/she): “.” before “She” looks at “Tim” (100%).")
    says(view(called=called), "L1.H2 (he/she): “ran” looks at “it” (100%).")  # without he or she, like any head


def test_a_head_of_a_tag_or_a_relation_is_seen_at_a_word_of_that_kind_first(view):
    asking = {"tag:NOUN->VERB": [2], "relation:obj:dependent->head": [5, 2], "tag:VERB->NOUN": [1]}
    passage = replace(one_stack([" Amy", " saw", " Tim", ".", " She", " ran"]), asking=asking)
    for label, asks in (("tag:VERB->NOUN", "saw"), ("tag:NOUN->VERB", "Tim"), ("relation:obj:dependent->head", "ran")):
        window = view(passage, {("decoder", "self", 1, 2): Called("it", "part-of-speech", label)})
        says(window, f"L1.H2 (it): “{asks}” looks at ")


def test_a_head_that_is_chosen_elsewhere_on_the_page_is_shown(browse, tmp_path):
    page = render(
        "?", [], [Section("In short", ["x"]), Section("Text", [Viewer((one_stack(),), CALLED, heads=False)])], {}
    )
    (tmp_path / "report.html").write_text(page, "utf-8")
    window = browse(tmp_path / "report.html")
    says(window, "L1.H2")
    assert window.page.locator("canvas, .viewer-matrix").count() == 0
    detail = "{stack: null, attention: 'self', layer: 0, head: 1}"
    window.page.evaluate(f"document.dispatchEvent(new CustomEvent('interp:head', {{detail: {detail}}}))")
    says(window, "L0.H1 (object to verb)")
    assert window.page.eval_on_selector(".viewer", "each => each.classList.contains('part-of-speech')")
    assert window.page.evaluate("location.hash") == ""
    window.page.evaluate("document.addEventListener('interp:turned', event => { window.turned = event.detail; })")
    window.page.focus(".viewer .token >> nth=2")
    window.page.keyboard.press("j")
    says(window, "L0.H2")
    assert window.page.evaluate("turned") == {"stack": "decoder", "attention": "self", "layer": 0, "head": 2}
    assert not window.errors


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_hostile_words_are_words_and_nothing_overflows_or_bars(browse, tmp_path, width, dark):
    words = [*HOSTILE, *WORDS]
    called = {**CALLED, ("decoder", "self", 0, 0): Called(HOSTILE[0], "position")}
    first = ("decoder", "self", 0, 0)
    passage = replace(one_stack(words), following=[[(word, 50) for word in HOSTILE[:3]]] * len(words))
    write(Viewer((passage,), called, first=first), tmp_path / "v.html", HOSTILE[1], HOSTILE[4])
    window = browse(tmp_path / "v.html", width=width, dark=dark)
    window.page.hover(".token >> nth=4")
    tokens = window.page.eval_on_selector_all(".token", "all => all.map(each => each.textContent)")
    assert tokens == [word.strip() for word in words]
    assert window.page.title() == HOSTILE[1]
    assert window.overflow() == 0
    assert window.small() == []
    assert window.barriers() == []
    assert not window.errors
    assert not window.outside


def test_in_a_frame_of_a_notebook_it_runs_and_without_scripts_a_picture_stands_there(browse, view, tmp_path):
    (tmp_path / "notebook.html").write_text(f"<meta charset=utf-8>{frame(Viewer((one_stack(),), CALLED))}", "utf-8")
    inside = browse(tmp_path / "notebook.html").page.frame_locator("iframe")
    inside.locator(".token", has_text="dog").hover()
    inside.locator(".viewer-says", has_text="“dog” looks at “the” (100%)").wait_for()
    static = view(scripts=False).page
    assert static.is_visible("noscript svg")
    assert not static.is_visible(".viewer-turn")
    assert not static.is_visible(".viewer-matrix")


@pytest.mark.slow
def test_144_heads_over_512_tokens_answer_a_hover_within_a_frame_and_a_page_within_its_budget(browse, tmp_path):
    n, generator = 512, np.random.default_rng(0)
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    weights = np.zeros((12, 12, n, n), np.uint8)
    for layer, head in np.ndindex(12, 12):
        scores = np.where(distance < 0, -np.inf, generator.normal(size=(n, n)) * 3 - 0.05 * distance)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        weights[layer, head] = np.rint(255 * shares / shares.sum(1, keepdims=True))
    weights[weights < 3] = 0
    words, out = tuple(f" word{number}" for number in range(n)), tmp_path / "large.html"
    viewer = Viewer((Passage((Attention(Heads("decoder", 12, 12), words, words, weights),)),), {})
    write(viewer, out)
    assert 0 < viewer.left_out < 144
    assert out.stat().st_size < 500_000
    window = browse(out)
    looked_at(window)
    took = window.page.evaluate(Path(__file__).with_name("hovers.js").read_text())
    assert "word399" in window.page.inner_text(".viewer-says")
    assert np.median(took) < 16  # milliseconds
