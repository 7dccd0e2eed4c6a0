"""What docs/own_corpora.md promises: its code runs as written, and its comments are true."""

import re
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_code import blocks

from analyses.corpora import Corpus, read
from models.planted import Planted, offset, uniform

*CORPORA, RUNS = blocks("docs/own_corpora.md", "python")
SAID = re.compile(r"^(\w[^#\n]*?)  # ('[^']*'|\[.*\])", re.MULTILINE)


def ran(folder: Path, patch: pytest.MonkeyPatch, *blocks: str) -> dict[str, Any]:
    """Run the blocks as one script in `folder`, with a plain text and a planted model; return its names."""
    text = "\n\n".join(each.text for each in read("stories:4"))
    (folder / "novel.txt").write_text(text)
    model = Planted(sorted({*text.split()}), [[offset(-1), uniform]], n_ctx=200, start="<s>").build()
    patch.chdir(folder)
    patch.setattr("models.load", lambda name: model)
    (folder / "page.py").write_text("\n".join(blocks))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return runpy.run_path(str(folder / "page.py"))


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        yield ran(tmp_path_factory.mktemp("page"), patch, *CORPORA)


def test_what_comments_say_is_so(names):
    claims = [each for block in CORPORA for each in SAID.findall(block)]
    assert len(claims) == 4
    assert {code: str(eval(code, names)) for code, _ in claims} == {code: value.strip("'") for code, value in claims}


def test_every_corpus_of_the_page_is_read(names):
    assert len([each for each in names.values() if isinstance(each, Corpus)]) == 8
    assert [len(list(names[name])) for name in ("novel", "reviews", "both")] == [4, 2, 6]
    assert [text.text for text in names["treebank"]] == ["He saw Tim."]
    assert names["chained"].annotates == {"chains"}


@pytest.mark.slow
def test_runs_of_the_page_are_joined(tmp_path, monkeypatch):
    names = ran(tmp_path, monkeypatch, CORPORA[0], RUNS)
    rows = names["rows"]
    assert list(rows.columns) == ["run", "model", "seed", *names["heads"].columns]
    assert rows.drop_duplicates(["run", "model", "seed"])[["run", "model", "seed"]].to_numpy().tolist() == [
        ["novel-0", "default", 0],
        ["novel-1", "default", 1],
    ]
    previous = names["wide"].loc[("previous-token", "kept", 0, 0)]
    assert previous["novel-0"] == previous["novel-1"] > 0.5
