"""What a notebook shows of a run, of a text and of a sweep lies inside a frame or is a picture."""

import re
from html import unescape
from xml.etree import ElementTree

import pytest
import tiny
from pages import Page
from worded import worded

from analyses import view
from interp import InputError, logit_difference, run, sweep

MODEL = worded("</iframe><script>x</script>")
TEXT = "Tim saw the </iframe><script>x</script>"


@pytest.fixture(scope="module")
def found():
    return run(MODEL, [TEXT, "Sue saw"], capture="*.pattern")


def test_a_run_is_shown_in_a_frame_that_reaches_nothing_around_it(found):
    shown = view(found, head="L1.H2")
    (frame,) = Page(shown._repr_html_()).tags
    assert frame[0] == "iframe"
    assert frame[1]["sandbox"] == "allow-scripts"
    inside = unescape(re.search(r'srcdoc="(.*?)"', shown.html, re.DOTALL)[1])
    assert '"layer":1,"head":2' in inside
    assert inside.count("<script") == 2  # data and ours
    assert repr(shown).startswith("View of 6 heads, 2 texts, 6 tokens")


def test_where_no_script_runs_there_is_a_picture(found):
    bundle = view(found)._repr_mimebundle_()
    assert {*bundle} == {"text/html", "image/svg+xml", "text/plain"}
    picture = ElementTree.fromstring(bundle["image/svg+xml"])  # well-formed, whatever a token holds
    assert any("</iframe>" in (each.text or "") for each in picture.iter())


def test_a_model_reads_texts_to_be_viewed_and_keeps_them_as_a_page(tmp_path):
    view(MODEL, "Tim saw", "Sue saw").save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.filterwarnings("ignore:no shares")
@pytest.mark.parametrize("by", [("layer", "head"), ("layer", "head", "position")])
def test_a_sweep_is_shown_as_its_figure_with_its_text(by):
    shown = view(sweep(tiny.model("gpt2"), tiny.ragged_pairs(), logit_difference(), by=by))
    texts = [each.text for each in ElementTree.fromstring(shown.svg).iter("{http://www.w3.org/2000/svg}text")]
    assert any("logit difference" in (text or "") for text in texts)
    assert shown._repr_html_() == shown.svg


def test_what_cannot_be_viewed_says_what_to_do(found):
    for wrong, expected in [
        (lambda: view(run(MODEL, "Tim saw")), r'capture="\*.pattern"'),
        (lambda: view(MODEL), r"view\(model, "),
        (lambda: view(found, "more"), "no texts beside it"),
        (lambda: view(found, head="L7.H0"), "no head 'L7.H0'"),
    ]:
        with pytest.raises(InputError, match=expected):
            wrong()
