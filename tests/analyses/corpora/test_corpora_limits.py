"""Texts that ask for more memory, time or sense than there is: each is one line that names the limit."""

from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from analyses.corpora import limits, read
from analyses.corpora.marked import annotated
from analyses.reading.windows import windows
from interp import AnnotatedText, InputError, Tokenizer


def row(number: str, head: str = "0", misc: str = "_") -> str:
    return f"{number}\tw\tw\tNOUN\tNN\t_\t{head}\troot\t_\t{misc}\n"


def refused(path: Path, content: str, kind: str = "conllu") -> str:
    path.write_text(content)
    with pytest.raises(InputError) as error:
        list(read(f"{kind}:{path}"))
    assert len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"1-999999999\tab{chr(9)}_" + "\t_" * 7 + "\n" + row("1"), "has no word 2, part of ab"),
        (row("1" * 5_000), "expected a word number (1, 1-2 or 1.1) in column 1"),
        (row("1", "9" * 5_000), "expected the number of the head, or _, in column 7"),
        (row("1", "x" * 500_000), "expected the number of the head, or _, in column 7"),
        (row("1") + row("2") + row("2") + row("4"), "line 3: expected word 3, got 2"),
        (row("1").replace("w\tw", "a  b\tw"), "expected no two spaces in a row inside a column"),
        (row("3") + row("1") + row("2"), "line 1: expected word 1, got 3"),
        (row("1") + row("3.1"), "line 2: expected an empty node after word 1, got 3.1"),
        ("".join(row(str(i + 1)) for i in range(limits.MOST_ROWS + 1)), "a sentence of more than 20,000 lines"),
        (row("1").replace("w\tw", "w" * 20_000 + "\tw"), "a word of 20,000 characters, at most 10,000"),
    ],
)
def test_a_sentence_that_cannot_be_is_refused_at_its_line(tmp_path: Path, content: str, expected: str) -> None:
    assert expected in refused(tmp_path / "a.conllu", content + "\n")


@pytest.mark.parametrize("misc", ["", " ", "_"])
def test_an_empty_last_column_says_nothing(tmp_path: Path, misc: str) -> None:
    (tmp_path / "a.conllu").write_text(row("1", misc=misc) + row("2", "1", "SpaceAfter=No") + "\n")
    (text,) = read(tmp_path / "a.conllu")
    assert text.words == ("w", "w")
    assert text.space_after == (True, False)
    assert text.misc is not None
    assert [*map(dict, text.misc)] == [{}, {"SpaceAfter": "No"}]


@pytest.mark.parametrize("entity", ["(aa)" * 40 + "(", "(1[1/" + "9" * 5_000 + "]-person", "("])
def test_brackets_that_fit_nothing_are_refused_at_once(tmp_path: Path, entity: str) -> None:
    content = "# global.Entity = eid-etype\n" + row("1", misc=f"Entity={entity}") + "\n"
    assert "line 2: expected" in refused(tmp_path / "a.conllu", content, "gum")


def test_a_word_of_megabytes_is_refused_where_it_stands(tmp_path: Path) -> None:
    line = "\t".join(["x", "0", "0", "a" * 2_000_000, *["_"] * 9])
    message = refused(tmp_path / "a.conll", f"#begin document (x); part 0\n{line}\n#end document\n", "litbank")
    assert "a line of more than 1,000,000 characters" in message


def test_a_document_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WORDS", 3)
    words = "".join("\t".join(["x", "0", str(i), "a", *["_"] * 9]) + "\n" for i in range(4))
    message = refused(tmp_path / "a.conll", f"#begin document (long)\n{words}#end document\n", "litbank")
    assert "long has more than 3 words, the most of one text" in message
    sentences = "".join(row("1") + "\n" for _ in range(4))
    message = refused(tmp_path / "a.conllu", f"# newdoc id = long\n# global.Entity = eid-etype\n{sentences}", "gum")
    assert "long has more than 3 words" in message


def test_patterns_do_not_go_back_over_long_lines(tmp_path: Path) -> None:
    """Where they do, each of the two takes minutes."""
    (tmp_path / "a.txt").write_text("[The clerk] met [she] [ " + " " * 50_000 + "x\n")
    with pytest.raises(InputError, match=r'expected every "\[" to have its'):
        read(tmp_path / "a.txt")
    assert len(annotated("*" * 20_000, [], "d").words) == 20_000


def test_stars_stand_for_letters_as_before() -> None:
    assert annotated("J**n met **n and ** b*", [], "d").words == ("J**n", "met", "**n", "and", "*", "*", "b*")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("stories:99999999999", "a COUNT of at most 7 digits, got 11"),
        ("tales:1:" + "9" * 30, "a SEED of at most 18 digits, got 30"),
        ("x" * 300, "File name too long"),
        ("conllu:" + "x" * 300, "File name too long"),
    ],
)
def test_a_name_that_asks_too_much_is_refused_at_once(spec: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read(spec)


def test_a_name_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.conllu"
    path.write_text(row("1") + "\n")
    for place in (path, tmp_path):
        with pytest.raises(InputError, match=r"expected a name in UTF-8, got .*rename it"):
            read(place)


def test_a_long_text_is_read_to_its_end_in_windows() -> None:
    backend = Backend(WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = WhitespaceSplit()
    n = 100_000
    text = AnnotatedText(("a",) * n, (True,) * n, "d")
    found = [(window.start, window.stop) for window in windows(text, Tokenizer(backend), 64, Counter())]
    assert found[:3] == [(0, 64), (32, 96), (64, 128)]
    assert found[-1][1] == n


def test_an_offset_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    columns = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"]
    values = ["1", "Ann saw that she saw Eve.", "she", "9" * 5_000, "Ann", "0", "TRUE", "Eve", "21", "FALSE", "u"]
    content = "\n".join(["\t".join(columns), "\t".join(values)])
    assert "expected a number of characters in Pronoun-offset" in refused(tmp_path / "gap-a.tsv", content, "gap")


def test_a_number_of_thousands_of_digits_in_a_column_that_is_not_kept_is_refused(tmp_path: Path) -> None:
    content = "1\tw\tw\tNOUN\tNN\t_\t0\troot\t" + "9" * 5_000 + ":obj\t_\n"
    assert "line 1: Exceeds the limit" in refused(tmp_path / "a.conllu", content)
