"""The documentation, opened from a folder: search and notebooks' views work, and nothing is fetched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    if not mkdocs.exists():
        pytest.skip("the documentation's tools are not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("docs") / "site"
    build = [mkdocs, "build", "--strict", "--quiet", "--site-dir", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=300)
    return out


def test_search_answers_without_a_server(browse, site):
    window = browse(site / "index.html")
    window.page.frame_locator("iframe.live").get_by_text("Make your own").wait_for(timeout=30_000)
    window.page.keyboard.press("/")
    window.page.keyboard.type("induction")
    window.page.locator(".md-search-result__item").first.wait_for(timeout=30_000)
    assert "Glossary" in window.page.inner_text(".md-search-result__list")
    assert window.errors == []
    assert not [url for url in window.requests if url.startswith("http")]
    assert window.barriers() == []


def test_a_notebook_stands_there_as_it_was_run_and_its_view_answers(browse, site):
    window = browse(site / "notebooks/first_look.html", width=390)
    view = window.page.frame_locator("iframe").first
    word = view.locator(".token").nth(3)
    word.hover()
    view.locator(f".viewer-says:has-text('{word.text_content().strip()}')").wait_for(timeout=30_000)
    assert window.overflow() <= 0
    assert not [url for url in window.requests if url.startswith("http")]
    assert window.barriers() == browse(site / "notebooks/first_look.html", dark=True).barriers() == []
