"""The code on pages runs as written, from top to bottom; the links and files that pages name exist."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from page_code import PAGES, ROOT, blocks, furnish, languages

from analyses.behaviours import ACROSS, OURS
from interp import sites
from models import load

DOCS = ROOT / "docs"
SLOW = {"README.md", "docs/own_models.md", *(f"docs/{name}.md" for name in ("training", "patching"))}
SLOW |= {"docs/measures/probes.md", "docs/measures/explanations.md"}
LESS = {  # replacements for what takes long: our only changes to a page's code
    "README.md": {'"stories:100"': '"stories:4"', "probes=False)": "probes=False, experiments=False, pairs=4)"},
    "docs/training.md": {"steps=200, rows=12, row=128": "steps=30, rows=1, row=16"},
    "docs/patching.md": {"stories:20": "stories:2"},
    "docs/suites.md": {"pairs=32": "pairs=16"},
    "docs/measures/part_of_speech.md": {"tales:20": "tales:4"},
    "docs/measures/coreference.md": {"tales:20": "tales:4"},
    "docs/measures/position.md": {"stories:20": "stories:4"},
}
ELSEWHERE = {  # pages whose code runs in another test
    "docs/cluster.md": "analyses/execution/test_cluster.py",
    "docs/coming_from_transformer_lens.md": "test_equivalents.py",
    "docs/headlines.md": "analyses/headlines/test_facts.py",
    "docs/own_corpora.md": "analyses/corpora/test_own_corpora.py",
    "docs/own_measures.md": "analyses/test_own_measures.py",
    "docs/paper_figures.md": "analyses/figures/test_paper_figures.py",
    "docs/recipes.md": "analyses/test_runs.py",
}
HERE = [page for page in PAGES if blocks(page, "python") and page not in ELSEWHERE]
MARKS = {page: [pytest.mark.slow] for page in SLOW}
MARKS["README.md"].append(pytest.mark.smoke)
MARKS["docs/own_models.md"].append(pytest.mark.filterwarnings("ignore"))  # warnings of transformers


def run_page(page: str) -> dict[str, Any]:
    """Run all blocks of a page as one script in the working directory; return the names it defines."""
    code = "\n".join(blocks(page, "python"))
    for whole, less in LESS.get(page, {}).items():
        assert whole in code, f"{page} has no {whole} any more: take it out of LESS"
        code = code.replace(whole, less)
    Path("page.py").write_text(code)
    return runpy.run_path("page.py")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_and_names_is_there_and_its_blocks_are_of_a_kind_that_is_run_or_read(page):
    """Python and recipes run here and in `ELSEWHERE`, commands in test_page_commands.py; `text` is not code."""
    text = (ROOT / page).read_text()
    assert languages(page) <= {"python", "bash", "toml", "text"}
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert target.startswith("live/") or ((ROOT / page).parent / target).exists(), target
    paths = re.findall(r"`((?:analyses|benchmarks|docs|interp|models|notebooks|tests)/[\w/]+\.\w+)`", text)
    assert [name for name in paths if not (ROOT / name).exists()] == []


def test_pages_that_run_elsewhere_have_code_and_a_test_that_takes_all_of_it():
    for page, test in ELSEWHERE.items():
        assert blocks(page, "python"), page
        assert f'blocks("{page}", "python")' in (ROOT / "tests" / test).read_text(), page
    assert {*LESS, *SLOW} <= {*HERE}


def test_the_gallery_leads_to_what_make_builds():
    text, makefile = ((ROOT / name).read_text() for name in ("docs/gallery.md", "Makefile"))
    pages = {f"{name.removesuffix('.html')}.html" for name in re.findall(r"--out \$\(GALLERY\)/(\S+)", makefile)}
    assert {*re.findall(r"\| \[.+?\]\(live/(.+?)\)", text)} == pages
    assert len(pages) == text.count("| `interp ")


def test_every_measure_has_an_anchor_and_a_line_in_the_index():
    """docs/measures has every measure's name in `tables/heads`; families of measures by their common beginning."""
    pages = {page.name: page.read_text() for page in (DOCS / "measures").glob("*.md")}
    anchors = [(name, anchor) for name, text in pages.items() for anchor in re.findall(r'<a id="(.+?)">', text)]
    assert len({*anchors}) == len(anchors)
    for page, anchor in re.findall(r"\]\((\w+\.md)#(.+?)\)", pages["index.md"]):
        assert (page, anchor) in anchors
    lines = [
        name.split(":")[0]
        for names in re.findall(r"^\| (.+?) \|", pages["index.md"], re.M)
        for name in re.findall(r"`(.+?)`", names)
    ]
    for behaviour in (*OURS.values(), *ACROSS.values()):
        for measure in behaviour.measures:
            family = re.split("[:@]", measure.name)[0]
            assert family in {anchor for _, anchor in anchors}, measure.name
            assert family in lines, measure.name


@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS.get(page, [])) for page in HERE])
def test_its_code_runs(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write here
    furnish(tmp_path)
    torch.manual_seed(0)
    names = run_page(page)
    printed = capsys.readouterr().out
    if page == "docs/start.md":
        assert (names["layer"], names["head"]) == (2, 6)  # as the page says
    if page == "docs/generation.md":
        first, _, last = (line for line in printed.splitlines() if re.match(r"-?[01]\.0 ", line))
        assert " he " in first
        assert " she " in last
    if page == "docs/patching.md":
        losses = names["without"].table()["effect"]
        assert losses.min() < -0.01 < losses.max()
        assert names["mean"].shape == (4, 8, 32)
        assert {*names["found"]} == {"z", "resid_pre"}


def test_the_table_of_sites_has_every_site_that_models_have():
    text = (DOCS / "running.md").read_text()
    names = {*re.findall(r"`([\w.]+)`", text[text.index("## Sites") :])}
    for site in sites(load("default")):
        assert re.sub(r"^\w+\.(\d+\.)?", "", site) in names, site
