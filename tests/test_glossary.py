"""docs/glossary.md has the terms of art of the first pages, in order, and invents no source."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ENTRIES = dict(re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=\n- |\Z)", GLOSSARY, re.MULTILINE | re.DOTALL))
NAMES = {name.strip("() ").replace("\\", "") for entry in ENTRIES for name in re.split(r"[,(]", entry)}
ON_FIRST_PAGES = """
agreement antecedent candidate causal clean control coreference corrupted cross-attention decoder document edit effect
encoder evidence false~discovery~rate gain head induction interval key knock-out label layer lift log-odds logit
logit~difference measure mention minimal~pair nat offset p pattern probe q query read-out relation residual~stream rule
softmax sweep tag token value
"""  # of start, concepts and labels


def docstrings() -> str:
    files = sorted(path for package in ("interp", "models", "analyses") for path in (ROOT / package).rglob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    documented = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    public = [node for node in documented if not getattr(node, "name", "").startswith("_")]
    return "\n".join(ast.get_docstring(node) or "" for node in public)


SAID = re.sub(r"\s+", " ", docstrings())


def test_terms_that_the_first_pages_use_have_an_entry():
    assert [term for term in ON_FIRST_PAGES.split() if term.replace("~", " ") not in NAMES] == []


def test_entries_are_in_order():
    names = [re.sub(r"[^a-z ]", "", name.lower().replace("-", " ")) for name in ENTRIES]
    assert names == sorted(names)


def test_every_source_is_one_that_docstrings_or_measures_name():
    known = SAID + "".join(page.read_text() for page in (ROOT / "docs" / "measures").glob("*.md"))
    plain = re.sub(r"\s+", " ", GLOSSARY)
    cited = {*re.findall(r"([\w']+) ((?:19|20)\d\d)", plain)}
    assert len(cited) > 15
    for name, year in cited:
        assert re.search(rf"{name}\b[^.;]{{0,60}} {year}", known), f"{name} {year}"
