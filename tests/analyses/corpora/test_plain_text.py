"""Plain text: what is one text, what is one document, and what is said of measures that need more."""

import gzip
import warnings
from pathlib import Path

import pytest

from analyses.corpora import read
from analyses.corpora.serving import serving, unserved
from interp.errors import InputError, InputWarning

TEXT = "\ufeffThe old lady\n  shook her head.\n\n \nShe was sad.\r\n"
NEEDS = {"position": frozenset(), "coreference": frozenset({"chains"})}


def write(path: Path, text: str = TEXT) -> Path:
    path.write_bytes(text.encode())
    return path


def test_a_text_a_paragraph_or_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt")
    corpus = read(f"text:{path}")
    assert [text.text for text in corpus] == ["The old lady shook her head.", "She was sad."]
    assert [text.document for text in corpus] == [f"{path}:1", f"{path}:2"]
    lines = read(f"lines:{path}")
    assert [text.text for text in lines] == ["The old lady", "shook her head.", "She was sad."]
    assert [text.document for text in lines] == [f"{path}:{number}" for number in (1, 2, 5)]
    assert (corpus.kind, corpus.annotates, lines.kind) == ("text", frozenset(), "lines")
    assert [text.text for text in read(f"lines:{path}", limit=1)] == ["The old lady"]
    zipped = tmp_path / "a.txt.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert [text.text for text in read(f"text:{zipped}")] == [text.text for text in corpus]


def test_of_several_files_each_is_a_document(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.txt"), write(tmp_path / "b.txt")
    assert [text.document for text in read(f"text:{tmp_path}")] == [str(one)] * 2 + [str(two)] * 2


def test_plain_text_is_read_only_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r'begins "The old lady": .*; text:PATH reads plain text') as found:
        read(path)
    assert "lines:PATH or" not in str(found.value)
    with pytest.raises(InputError, match="is empty: expected plain text in paragraphs with at least one text"):
        read(f"text:{write(tmp_path / 'b.txt', ' ')}")


def test_one_document_is_said_to_have_no_intervals(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    with pytest.warns(InputWarning, match=r"is one text, so one document, .* no intervals; lines:\S+ makes"):
        read(f"text:{path}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(read(f"lines:{path}"))) == 2


def test_what_needs_annotation_is_left_out_where_all_text_is_plain(tmp_path: Path) -> None:
    plain, tales = read(f"text:{write(tmp_path / 'a.txt')}"), read("tales:2")
    reason = unserved(NEEDS, [plain])
    assert list(reason) == ["coreference"]
    assert (
        f"it needs coreference chains, and {plain.name} has no annotation; add --corpus tales" in reason["coreference"]
    )
    assert [(each.corpus, each.asked) for each in serving(NEEDS, [plain])] == [(plain, ["position"])]
    both = serving(NEEDS, [plain, tales])
    assert [(each.corpus, each.asked, each.stands_in) for each in both] == [
        (plain, ["position"], False),
        (tales, ["coreference"], False),
    ]
    assert unserved(NEEDS, []) == unserved(NEEDS, [tales]) == {}
