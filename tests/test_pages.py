"""The code on pages of docs runs as it stands, from top to bottom, and their figures are there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from analyses.behaviours import ACROSS, OURS
from interp import sites
from interp.patching import ablate_in_order, attribution_patching
from models import load

DOCS = Path(__file__).resolve().parents[1] / "docs"
MEASURES = [f"measures/{name}.md" for name in ("position", "part_of_speech", "coreference", "interventions")]
PAGES = ("start.md", "concepts.md", "running.md", "generation.md", "viewing.md", *MEASURES)


def run_page(name: str) -> dict[str, Any]:
    """The names that a page's code leaves behind."""
    text, names = (DOCS / name).read_text(), {}
    for other in re.findall(r"\]\(((?:\.\./)?(?:figures/.+?|\w+\.md))\)", text):
        assert ((DOCS / name).parent / other).is_file(), other
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    return names


def test_the_gallery_leads_to_what_make_builds():
    makefile = (DOCS.parent / "Makefile").read_text()
    made = re.findall(r"--out \$\(GALLERY\)/(\S+)", makefile)
    pages = [name if name.endswith(".html") else f"{name}/report.html" for name in made]
    text = (DOCS / "gallery.md").read_text()
    assert re.findall(r'href="gallery/(.+?)"', text) == pages
    assert len(pages) == text.count("| `interp ")


def test_every_measure_has_an_anchor_and_a_line_in_the_index():
    """What `tables/heads` calls a measure is found in docs/measures; families of measures by what they begin with."""
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
            family = measure.name.split(":")[0]
            assert family in {anchor for _, anchor in anchors}, measure.name
            assert family in lines, measure.name


@pytest.mark.parametrize("name", PAGES)
def test_its_code_runs(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pages write
    torch.manual_seed(0)
    names = run_page(name)
    assert names["model"].config.n_layers == 4
    if name == "start.md":
        assert (names["layer"], names["head"]) == (2, 6)  # as the page says
    if name == "generation.md":
        first, _, last = (line for line in capsys.readouterr().out.splitlines() if re.match(r"-?[01]\.0 ", line))
        assert " he " in first
        assert " she " in last


def test_the_table_of_sites_has_every_site_that_models_have():
    text = (DOCS / "running.md").read_text()
    named = {*re.findall(r"`([\w.]+)`", text[text.index("## Sites") :])}
    for site in sites(load("default")):
        local = re.sub(r"^\w+\.(\d+\.)?", "", site)
        assert local in named, site


@pytest.mark.slow
def test_the_code_on_patching_runs_where_it_brings_its_own_model():
    text, names = (DOCS / "patching.md").read_text(), {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    first = next(at for at, block in enumerate(blocks) if "load(" in block)
    names["ablate_in_order"], names["attribution_patching"] = ablate_in_order, attribution_patching
    quick = [block for block in blocks[first : first + 4] if "neuron" not in block]
    for block in [*quick, blocks[0]]:  # the others ask for texts of yours, or a model of two stacks
        exec(compile(block, "patching.md", "exec"), names)
    losses = names["without"].table()["effect"]
    assert losses.min() < -0.01 < losses.max()
    assert names["mean"].shape == (4, 8, 32)
    assert {*names["found"]} == {"z", "resid_pre"}
