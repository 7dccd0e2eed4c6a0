"""docs/glossary.md has the technical terms of the first pages, in order."""

import re

from repository import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ENTRIES = dict(re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=\n- |\Z)", GLOSSARY, re.MULTILINE | re.DOTALL))
NAMES = {name.strip("() ").replace("\\", "") for entry in ENTRIES for name in re.split(r"[,(]", entry)}
ON_FIRST_PAGES = """
agreement antecedent candidate causal clean control coreference corrupted cross-attention decoder document edit effect
encoder evidence false~discovery~rate gain head induction interval key knock-out label layer lift log-odds logit
logit~difference measure mention minimal~pair nat offset p pattern probe q query read-out relation residual~stream rule
softmax sweep tag token value
"""  # of start, concepts and labels


def test_terms_that_the_first_pages_use_have_an_entry():
    assert [term for term in ON_FIRST_PAGES.split() if term.replace("~", " ") not in NAMES] == []


def test_entries_are_in_order():
    names = [re.sub(r"[^a-z ]", "", name.lower().replace("-", " ")) for name in ENTRIES]
    assert names == sorted(names)
