"""What cannot be read, or needs too much memory or time, gives one clear line that says where."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from analyses.corpora import read, reader
from analyses.corpora.pronoun_choices import annotated
from interp import InputError
from tests.analyses.corpora.made_corpora import ENTITIES, novel, texts, word

LARGE = {  # inputs that would take long, or much memory
    "conllu": [
        (map(word, range(1, reader.MOST_ROWS + 2)), "a sentence of more than 20,000 lines"),
        ((word(1, "w" * 20_000),), "a word of 20,000 characters, at most 10,000"),
    ],
    "gum": [((ENTITIES, word(1, entity="(1[1/" + "9" * 5_000 + "]-person")), "expected the number of an entity")],
    "winobias": [(("[The clerk] met [she] [ " + " " * 50_000 + "x",), r'expected every "\["')],
}
CASES = [(kind, *case) for kind, cases in LARGE.items() for case in cases]
REFUSALS = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text("utf-8"))
READ = REFUSALS.pop("read")
for KIND, ROWS in REFUSALS.items():
    CASES += [(KIND, row["lines"], row["says"]) for row in ROWS]


@pytest.mark.parametrize(("kind", "lines", "message"), CASES)
def test_a_malformed_line_is_named_in_one_line(kind: str, lines: Iterable[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        texts(kind, *lines)
    assert str(error.value).startswith("a, line ")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *READ["files"],
        ("a.conllu", b"\x1f\x8b\x00\x00", r"expected UTF-8, plain, \.gz or \.zst"),
        ("a.conll", f"#begin document (x)\n{'a' * 2_000_000}\n", "^[^,]*a line of more than 1,000,000 characters"),
    ],
)
def test_a_file_that_holds_no_corpus_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("spec", "message"), [*READ["names"], ("x" * 300, "File name too long")])
def test_a_wrong_name_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(spec)
    assert str(error.value).isprintable()


def test_a_name_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.conllu"
    path.write_text(word(1) + "\n")
    for place in (path, tmp_path):
        with pytest.raises(InputError, match=r"expected a name in UTF-8, got .*rename it"):
            read(place)


def test_a_later_mistake_is_reported_when_it_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(f"{word(1, 'Yes')}\n\nwhat is this\n")
    corpus = iter(read(path))
    assert next(corpus).words == ("Yes",)
    with pytest.raises(InputError, match=r"a\.conllu, line 3: expected 10 columns"):
        next(corpus)


@pytest.mark.parametrize("kind", ["litbank", "gum"])
def test_a_document_has_an_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_WORDS", 3)
    sentences = ["# newdoc id = tale", ENTITIES, *[word(1), ""] * 4]
    with pytest.raises(InputError, match="tale has more than 3 words, the limit for one text"):
        texts(kind, *(sentences if kind == "gum" else novel("a/ b/ c/ d/")))


def test_many_stars_are_read_at_once() -> None:
    assert len(annotated("*" * 20_000, [], "d").words) == 20_000
