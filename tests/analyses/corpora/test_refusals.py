"""What cannot be read, or asks for more memory, time or sense than there is, is one clear line that says where."""

from pathlib import Path

import pytest

from analyses.corpora import read, reader
from analyses.corpora.marked import annotated
from interp import InputError
from tests.analyses.corpora.made_corpora import ENTITIES, GAP, SENTENCES, gap_row, novel, texts, word

TALE = novel("The/(1 King/(2) 's/ child/1) of/ Ys/(3")[:-1]
SHE = "[The cook] met a man and [she] left."
FLORIST = "florist.buyer.1.male.txt\t"
NO_ONE_WORD = "line 1: expected one occupation and its pronouns in brackets"
CASES = {
    "conllu": [
        ((word(1), "what is this"), "line 2: expected 10 columns between tabs, got 1"),
        ((word(1, head=0), word(2, head="x")), 'line 2: expected the number of the head, or _, in column 7, got "x"'),
        (("# a", word(1, head=0), word(2, head=9), "", word(1)), "line 3: .*head 9 but no such word"),
        ((f"1-999999999\tab{chr(9)}_" + "\t_" * 7, word(1)), "has no word 2, part of ab"),
        ((word(1), word(2), word(2), word(4), ""), "line 3: expected word 3, got 2"),
        ((word(1), word("3.1")), "line 2: expected an empty node after word 1, got 3.1"),
        (map(word, range(1, reader.MOST_ROWS + 2)), "a sentence of more than 20,000 lines"),
        ((word(1, "w" * 20_000),), "a word of 20,000 characters, at most 10,000"),
    ],
    "gum": [
        *(
            ((ENTITIES, word(1, "Ann", head=0, entity=entity)), f"line 2: {message}")
            for entity, message in (
                ("1)", r'"1\)" closes a mention of entity 1 that no "\(1" opened'),
                ("(1-person-new-1-sgl", "the mention of entity 1 that opens here is not closed before a:1 ends"),
                ("person", 'expected Entity like .* got "person"'),
                ("(1-person-new-1-sgl)(", "expected Entity like"),
                ("(aa)" * 40 + "(", "expected Entity like"),
                ("(1-person-new-2-sgl)", 'expected head words from 1 to 1 in the mention of entity 1 .* got "2"'),
                ("(-person-new)", "expected the number of an entity, alone or as 3"),
                ("(1[1/" + "9" * 5_000 + "]-person", "expected the number of an entity"),
                ("(1[2/2]-person)", "part 2 of a mention of entity 1 has no part 1 before it"),
                ("(1[3/2]-person)", 'expected a part like 1/2 or 2/2 of entity 1, got "3/2"'),
            )
        ),
        ((word(1),), 'line 1: expected a comment "# global.Entity = ..." above the first sentence, got none'),
        (("# global.Entity = etype-link", word(1)), "line 2: expected GRP or eid in"),
        ((ENTITIES, word("1-2", "can't", entity="(1-x)"), word(1, "ca"), word(2, "n't")), "line 2: .*can't"),
    ],
    "litbank": [
        (TALE, "line 7: the mention of entity 3 that opens here is not closed before tale ends"),
        ([line.replace("(2)", "2)") for line in TALE], r'line 3: "2\)" closes a mention of entity 2 that no'),
        ([line.replace("(2)", "two") for line in TALE], 'line 3: expected chains like .* got "two"'),
        ([line.replace("King\t_\t_", "King") for line in TALE], "line 3: expected 12 columns or more"),
        (TALE[1:], 'line 1: expected "#begin document .* before the words'),
    ],
    "gap": [
        ((gap_row(),), "line 1: expected the columns ID, Text, "),
        *(
            ((GAP, gap_row(), row), f"line 3: {message}")
            for row, message in (
                (gap_row(b=("Sue", 13, "FALSE")), 'B-offset 13: expected "Sue" there, but it has "ue "'),
                (gap_row(b=("Sue", 30, "FALSE")), 'B-offset 30: expected "Sue" there, but the text has 32 char'),
                (gap_row(b=("", 12, "FALSE")), "expected a word in B, got none"),
                (gap_row(b=("Sue", -1, "FALSE")), 'expected a number of characters in B-offset, got "-1"'),
                (gap_row(b=("Sue", 12, "yes")), 'expected TRUE or FALSE in B-coref, got "yes"'),
                ("test-1\tAnn", "expected 11 columns between tabs, got 2"),
            )
        ),
    ],
    "winogender": [
        (("id\ttext",), "line 1: expected the columns sentid, sentence between"),
        *(
            ((SENTENCES, row), f"line 2: {message}")
            for row, message in (
                ("florist.buyer.1.txt\tWords.", "expected occupation.participant.answer.gender.txt in column 1, got"),
                ("florist.buyer.2.male.txt\tWords.", r'expected 0 \(the occupation\) or 1 .* got "2"'),
                ("florist.buyer.1.old.txt\tWords.", "no gender 'old': expected male or female or neutral"),
                (f"{FLORIST}The buyer left.", 'expected "florist" once in the sentence, got it 0 times: "The b'),
                (f"{FLORIST}The florist saw the buyer.", "expected one of he, his, him once in the sentence, got"),
                (f"{FLORIST}He saw a florist, a buyer, him.", ".*got it 2 times"),
                (FLORIST.strip(), "expected 2 columns between tabs, got 1"),
            )
        ),
    ],
    "winobias": [
        (("[The cook met the baker and [she] left.", SHE), r'line 1: expected every "\[" to have its "\]", with words'),
        (("[The clerk] met [she] [ " + " " * 50_000 + "x",), r'expected every "\["'),  # and not after minutes
        (("[The cook] met the baker.", SHE), NO_ONE_WORD),
        (("[] The cook met [him].", SHE), NO_ONE_WORD),
        ((SHE,), 'line 1: expected sentences two by two, got none beside "The cook'),
        ((SHE, "A man met [the baker] and [he] left."), 'same two occupations, but "baker" is not beside "cook" in'),
    ],
    "paired": [
        (("source\ttarget", "a\tb", line), "line 3: expected source, tab, target; got")
        for line in ("alone", "a\tb\tc", "a\t", "\tb")
    ],
}


@pytest.mark.parametrize(("kind", "case"), [(kind, at) for kind, cases in CASES.items() for at in range(len(cases))])
def test_a_malformed_line_is_named_in_one_line(kind: str, case: int) -> None:
    lines, message = CASES[kind][case]
    with pytest.raises(InputError, match=message) as error:
        texts(kind, *lines)
    assert str(error.value).startswith("a, line ")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "is empty"),
        ("a.txt", "#begin document (a); part 0\n#end document\n", "is empty: expected LitBank"),
        ("a.txt", "A story.\n", 'begins "A story.": CoNLL-U, .* two columns .* are read, and conllu:PATH or gum:PATH'),
        ("bad.conllu", "1\tA\n", r"bad\.conllu, line 1: expected 10 columns between tabs, got 2"),
        ("a.conllu", b"\x1f\x8b\x00\x00", "expected UTF-8 text, plain or gzipped"),
        ("a.conll", f"#begin document (x)\n{'a' * 2_000_000}\n", "^[^,]*a line of more than 1,000,000 characters"),
    ],
)
def test_a_file_that_holds_no_corpus_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.conllu", 'no file or directory "nowhere.conllu"'),
        ("gap:nowhere", 'no file or directory "nowhere": name an existing one after gap:'),
        ("lines:", 'no file or directory "": name an existing one after lines:'),  # and not the working directory
        ("brown:nowhere", 'no kind of corpus "brown"; kinds are conllu:PATH, gum:PATH, litbank:PATH, gap:PATH'),
        ("stories:many", "expected stories, stories:COUNT or stories:COUNT:SEED"),
        ("stories:99999999999", "a COUNT of at most 7 digits, got 11"),
        ("tales:1:" + "9" * 30, "a SEED of at most 18 digits, got 30"),
        ("x" * 300, "File name too long"),
    ],
)
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
    with pytest.raises(InputError, match="tale has more than 3 words, the most of one text"):
        texts(kind, *(sentences if kind == "gum" else novel("a/ b/ c/ d/")))


def test_stars_stand_for_letters_and_many_of_them_are_read_at_once() -> None:
    assert len(annotated("*" * 20_000, [], "d").words) == 20_000
    assert annotated("J**n met **n and ** b*", [], "d").words == ("J**n", "met", "**n", "and", "*", "*", "b*")
