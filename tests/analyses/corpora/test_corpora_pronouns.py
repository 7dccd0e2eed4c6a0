"""GAP, Winogender and WinoBias: one pronoun, two that it may stand for, in text that is spelled as the file has it."""

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from analyses.corpora import gap, read, winobias, winogender
from analyses.corpora.marked import Mark, annotated
from analyses.rivals.antecedents import antecedent_items, unasked
from interp.annotation import AnnotatedText
from interp.errors import InputError

SharedFile = Callable[..., Path]
Parse = Callable[[Iterable[str], str], Iterator[AnnotatedText]]


def parsed(parse: Parse, *rows: str, source: str = "a.tsv") -> list[AnnotatedText]:
    return list(parse([f"{each}\n" for each in rows], source))


def mentions(text: AnnotatedText) -> list[tuple[str, str, str]]:
    """Each mention as the text spells it, its head word and its chain."""
    spans = text.word_spans
    return [
        (text.text[spans[m.start][0] : spans[m.end - 1][1]], text.words[m.head], m.chain) for m in text.mentions or ()
    ]


def refused(parse: Parse, *rows: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(parse, *rows)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["gap", "winogender", "winobias"])
def test_texts_are_read_one_at_a_time(name: str) -> None:
    parse, rows = {
        "gap": (gap.parse, [HEADER, gap_row(), "what is this"]),
        "winogender": (
            winogender.parse,
            [TEMPLATES, "cook\tman\t1\tThe $OCCUPATION saw $PARTICIPANT, $ACC_PRONOUN.", "x"],
        ),
        "winobias": (winobias.parse, ["[The cook] fed the man, [her].", "The cook fed [the man], [him].", "x"]),
    }[name]
    unread = iter(rows)
    assert next(parse(unread, "a")).mentions
    assert list(unread) == rows[-1:]


# Running text.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann's hat, didn't fit.", "Ann|'s|hat|,|did|n't|fit|."),
        ("well-made (1942) J*rg *", "well|-|made|(|1942|)|J*rg|*"),
        ("a  b", "a| |b"),
        (" a\tb\xa0 c ", " |a|\t|b|\xa0 |c"),
        ("the boys' “I'll”", "the|boys|'|“|I|'ll|”"),
        ("", ""),
    ],
)
def test_words_spell_the_text(text: str, words: str) -> None:
    result = annotated(text, [], "test")
    assert "|".join(result.words) == words
    assert result.text == text.rstrip(" ")


def test_words_are_cut_where_a_mention_begins_or_ends() -> None:
    text = annotated("the Smithfields saw", [Mark(4, 9, "a"), Mark(9, 15, "b")], "test")
    assert text.words == ("the", "Smith", "fields", "saw")
    assert mentions(text) == [("Smith", "Smith", "a"), ("fields", "fields", "b")]
    assert text.text == "the Smithfields saw"


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("Ann de la Rue", "Rue"),
        ("Duke of York", "Duke"),
        ("Otto IX of Rye", "Otto"),
        ("Bo Lund, Jr.", "Lund"),
        ("Bo Lund Jr.", "Lund"),
        ("Lund.", "Lund"),
        ("Queen", "Queen"),
        ("**", "*"),
    ],
)
def test_heads_of_names(name: str, head: str) -> None:
    text = annotated(f"so {name} saw", [Mark(3, 3 + len(name), "a")], "test")
    assert mentions(text) == [(name, head, "a")]


# GAP.

HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"


def gap_row(
    text: str = "Ann Lee met Sue before she left.",
    pronoun: tuple[str, object] = ("she", 23),
    a: tuple[str, object, str] = ("Ann Lee", 0, "TRUE"),
    b: tuple[str, object, str] = ("Sue", 12, "FALSE"),
    url: str = "http://en.wikipedia.org/wiki/Ann_Lee",
) -> str:
    return "\t".join(map(str, ("test-1", text, *pronoun, *a, *b, url)))


def test_gap_chains_are_what_the_columns_say(tmp_path: Path) -> None:
    rows = (
        HEADER,
        gap_row(),
        gap_row(a=("Ann Lee", 0, "FALSE"), url=""),
        gap_row("She met Sue and Ann.", ("She", 0), ("Sue", 8, "FALSE"), ("Ann", 16, "TRUE")),
    )
    path = tmp_path / "gap-test.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    right, neither, after = corpus = list(read(tmp_path))
    assert read(path).kind == read(f"gap:{path}").kind == "gap"
    assert mentions(right) == [("Ann Lee", "Lee", "pronoun"), ("Sue", "Sue", "B"), ("she", "she", "pronoun")]
    assert mentions(neither) == [("Ann Lee", "Lee", "A"), ("Sue", "Sue", "B"), ("she", "she", "pronoun")]
    assert mentions(after) == [("She", "She", "pronoun"), ("Sue", "Sue", "A"), ("Ann", "Ann", "pronoun")]
    assert [text.document for text in corpus] == ["Ann_Lee", "test-1", "Ann_Lee"]
    assert [len(antecedent_items(text)) for text in corpus] == [1, 0, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (gap_row(b=("Sue", 13, "FALSE")), 'B-offset 13: expected "Sue" there, got "ue "'),
        (gap_row(b=("Sue", 30, "FALSE")), 'B-offset 30: expected "Sue" there, but the text has 32 characters'),
        (gap_row(b=("", 12, "FALSE")), "expected a word in B, got none"),
        (gap_row(b=("Sue", "x", "FALSE")), 'expected a number of characters in B-offset, got "x"'),
        (gap_row(b=("Sue", -1, "FALSE")), 'expected a number of characters in B-offset, got "-1"'),
        (gap_row(b=("Sue", 12, "yes")), 'expected TRUE or FALSE in B-coref, got "yes"'),
        (gap_row(pronoun=("her", 23)), 'Pronoun-offset 23: expected "her" there, got "she"'),
        ("test-1\tAnn", "expected 11 columns between tabs, got 2"),
    ],
)
def test_a_wrong_gap_row_is_one_clear_line(row: str, message: str) -> None:
    assert refused(gap.parse, HEADER, gap_row(), row) == f"a.tsv, line 3: {message}"


def test_gap_needs_its_header() -> None:
    assert refused(gap.parse, gap_row()).startswith("a.tsv, line 1: expected the columns ID, Text, ")


@pytest.mark.parametrize(("part", "items", "neither", "after", "asked"), [("development", 2_000, 201, 496, 1_378)])
def test_gap_counts(shared_file: SharedFile, part: str, items: int, neither: int, after: int, asked: int) -> None:
    path = shared_file("data", "gap", f"gap-{part}.tsv")
    texts = list(read(path))
    with path.open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    assert [text.text for text in texts] == [row[1] for row in rows]
    assert all(
        sorted(spelled for spelled, _, _ in mentions(text)) == sorted((row[2], row[4], row[7]))
        for text, row in zip(texts, rows, strict=True)
    )
    assert len(texts) == items
    assert len({text.document for text in texts}) == 1_834  # pages
    assert sum(is_neither(text) for text in texts) == neither
    assert sum(is_followed(text) for text in texts) == after
    usable = [not is_neither(text) and not is_followed(text) for text in texts]
    assert [len(antecedent_items(text)) for text in texts] == usable
    assert sum(usable) == asked  # 75 of those left out are both
    reasons = Counter(reason.partition(": ")[2] for text in texts for _, reason in unasked(text))
    assert reasons["they refer to no other mention"] == neither
    assert reasons.total() == items - asked


def is_neither(text: AnnotatedText) -> bool:
    """Whether the pronoun is alone in its chain."""
    return Counter(mention.chain for mention in text.mentions or ())["pronoun"] == 1


def is_followed(text: AnnotatedText) -> bool:
    """Whether a name comes after the pronoun; names are not pronouns."""
    return text.words[(text.mentions or ())[-1].head].lower() not in ("he", "him", "his", "she", "her", "hers")


def test_gap_read_by_hand(shared_file: SharedFile) -> None:
    first, second, third = list(read(shared_file("data", "gap", "gap-development.tsv"), limit=3))
    assert mentions(first) == [
        ("Cheryl Cassidy", "Cassidy", "pronoun"),
        ("Pauline", "Pauline", "B"),
        ("her",) * 2 + ("pronoun",),
    ]
    assert (first.mentions or ())[0].start == first.words.index("Cheryl")
    assert mentions(second) == [
        ("MacKenzie",) * 2 + ("pronoun",),
        ("Bernard Leach", "Leach", "B"),
        ("His", "His", "pronoun"),
    ]
    assert mentions(third) == [("Angeloz",) * 2 + ("A",), ("De la Sota", "Sota", "pronoun"), ("his", "his", "pronoun")]


# Winogender.

SENTENCES = "sentid\tsentence"
TEMPLATES = "occupation(0)\tother-participant(1)\tanswer\tsentence"


def test_winogender_chains_are_the_answer(tmp_path: Path) -> None:
    rows = (
        SENTENCES,
        "florist.buyer.1.female.txt\tThe florist thanked the buyer because she paid in full.",
        "florist.someone.0.neutral.txt\tSomeone called a florist about their roses.",
    )
    path = tmp_path / "all_sentences.tsv"
    path.write_text("\n".join(rows))
    (tmp_path / "templates.tsv").write_text("left alone")
    first, second = read(tmp_path)
    assert mentions(first) == [
        ("The florist", "florist", "occupation"),
        ("the buyer", "buyer", "participant"),
        ("she", "she", "participant"),
    ]
    assert mentions(second) == [
        ("Someone", "Someone", "participant"),
        ("a florist", "florist", "occupation"),
        ("their", "their", "occupation"),
    ]
    assert {first.document, second.document} == {"florist"}
    assert read(path).kind == read(f"winogender:{path}").kind == "winogender"


def test_winogender_templates_make_sentences() -> None:
    template = "florist\tbuyer\t1\tThe $PARTICIPANT left the $OCCUPATION because $NOM_PRONOUN was late."
    texts = parsed(winogender.parse, TEMPLATES, template)
    assert [text.text for text in texts] == [
        "The buyer left the florist because he was late.",
        "The buyer left the florist because she was late.",
        "The buyer left the florist because they were late.",
        "Someone left the florist because he was late.",
        "Someone left the florist because she was late.",
        "Someone left the florist because they were late.",
    ]
    assert [chain for _, _, chain in mentions(texts[3])] == ["participant", "occupation", "participant"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "florist.buyer.1.txt\tWords.",
            'expected occupation.participant.answer.gender.txt in column 1, got "florist.b',
        ),
        (
            "florist.buyer.2.male.txt\tWords.",
            'expected 0 (the occupation) or 1 (the participant) as the answer, got "2"',
        ),
        ("florist.buyer.1.old.txt\tWords.", 'expected male, female or neutral as the gender, got "old"'),
        (
            "florist.buyer.1.male.txt\tThe buyer left.",
            'expected "florist" once in the sentence, got it 0 times: "The b',
        ),
        ("florist.buyer.1.male.txt\tThe florist left.", 'expected "buyer" once in the sentence, got it 0 times'),
        (
            "florist.buyer.1.male.txt\tThe florist saw the buyer.",
            "expected one of he, his, him once in the sentence, got",
        ),
        ("florist.buyer.1.male.txt\tHe saw a florist, a buyer, him.", "got it 2 times"),
        ("florist.buyer.1.male.txt", "expected 2 columns between tabs, got 1"),
    ],
)
def test_a_wrong_winogender_row_is_one_clear_line(row: str, message: str) -> None:
    said = refused(winogender.parse, SENTENCES, row)
    assert said.startswith("a.tsv, line 2: ")
    assert message in said


def test_a_wrong_winogender_template_or_header_is_one_clear_line() -> None:
    said = refused(winogender.parse, TEMPLATES, "florist\tbuyer\t1\tThe $OCCUPATION left.")
    assert said == 'a.tsv, line 2: expected $PARTICIPANT in the template, got "The $OCCUPATION left."'
    assert refused(winogender.parse, "id\ttext").startswith("a.tsv, line 1: expected the columns sentid, sentence or ")


def test_winogender_counts(shared_file: SharedFile) -> None:
    path = shared_file("data", "winogender", "all_sentences.tsv")
    texts = list(read(path.parent))
    with path.open(encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    assert [text.text for text in texts] == [row[1] for row in rows]
    assert (len(texts), len({text.document for text in texts})) == (720, 60)
    assert list(read(path.with_name("templates.tsv"))) == texts  # the templates make the very sentences
    assert sum(len(antecedent_items(text)) for text in texts) == 480  # he and she; "they" is not asked about
    answers = Counter(mentions(text)[-1][2] for text in texts)
    assert answers == {"occupation": 360, "participant": 360}


def test_winogender_read_by_hand(shared_file: SharedFile) -> None:
    texts = list(read(shared_file("data", "winogender", "all_sentences.tsv"), limit=7))
    both = [("The technician", "technician", "occupation"), ("the customer", "customer", "participant")]
    assert mentions(texts[0]) == [*both, ("he", "he", "participant")]  # could pay with cash
    assert mentions(texts[6]) == [*both, ("he", "he", "occupation")]  # had completed the repair
    assert mentions(texts[4])[1:] == [("someone", "someone", "participant"), ("she", "she", "participant")]


# WinoBias.


def test_winobias_takes_the_other_occupation_from_the_pair(tmp_path: Path) -> None:
    pair = (
        "1 [The ice seller] saw the pilot after [she] closed [her] shop.",
        "2 The ice seller saw [ the pilot] after [his] flight.",
    )
    for side in ("pro", "anti"):
        (tmp_path / f"{side}_stereotyped_type1.txt.dev").write_text("\n".join(pair) + "\n\n" + "\n".join(pair))
    first, second, *rest = corpus = list(read(tmp_path))
    assert mentions(first) == [
        ("The ice seller", "seller", "bracketed"),
        ("the pilot", "pilot", "other"),
        ("she", "she", "bracketed"),
        ("her", "her", "bracketed"),
    ]
    assert mentions(second) == [
        ("The ice seller", "seller", "other"),
        ("the pilot", "pilot", "bracketed"),
        ("his", "his", "bracketed"),
    ]
    assert first.text == "The ice seller saw the pilot after she closed her shop."
    assert (len(rest), Counter(text.document for text in corpus)) == (6, {"type1.txt.dev:1": 4, "type1.txt.dev:2": 4})
    assert read(f"winobias:{tmp_path}").kind == "winobias"


def test_winobias_numbers_may_be_missing_and_articles_may_stand_outside() -> None:
    texts = parsed(winobias.parse, "A [baker] met the cook and fed [him].", "The baker met [the cook] and paid [her].")
    assert mentions(texts[0]) == [
        ("baker", "baker", "bracketed"),
        ("the cook", "cook", "other"),
        ("him", "him", "bracketed"),
    ]
    assert mentions(texts[1])[0] == ("The baker", "baker", "other")


PARTNER = "The cook met [the baker] and paid [her]."


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ("[The cook met the baker and [she] left.", PARTNER),
            'line 1: expected every "[" to have its "]", with words',
        ),
        (("[The cook] met the baker.", PARTNER), "line 1: expected one occupation and its pronouns in brackets, got"),
        (("[The cook] met [the baker] and [she] left.", PARTNER), "line 1: expected one occupation and its pronouns"),
        (("[] The cook met [him].", PARTNER), "line 1: expected one occupation and its pronouns"),
        (("[The cook] met a man and [he] left.",), 'line 1: expected sentences two by two, got none beside "The cook'),
        (
            ("[The cook] met a man and [he] left.", PARTNER),
            'of the same two occupations, but "baker" is not beside "cook" in',
        ),
    ],
)
def test_a_wrong_winobias_line_is_one_clear_line(rows: tuple[str, ...], message: str) -> None:
    assert message in refused(winobias.parse, *rows)


def test_winobias_counts(shared_file: SharedFile) -> None:
    """Four files of 396 sentences; 30 sentences have a second pronoun."""
    texts = list(read(shared_file("data", "winobias")))
    assert (len(texts), len({text.document for text in texts})) == (1_584, 396)
    assert Counter(len(text.mentions or ()) for text in texts) == {3: 1_554, 4: 30}
    assert Counter(len(antecedent_items(text)) for text in texts) == {1: 1_554, 2: 30}
    assert {chain for text in texts for _, _, chain in mentions(text)} == {"bracketed", "other"}


def test_winobias_spells_its_lines(shared_file: SharedFile) -> None:
    path = shared_file("data", "winobias", "anti_stereotyped_type1.txt.dev")
    with path.open(encoding="utf-8") as lines:
        said = [line.partition(" ")[2].strip().replace("[ ", "").replace("[", "").replace("]", "") for line in lines]
    assert [text.text for text in read(path)] == said


def test_winobias_read_by_hand(shared_file: SharedFile) -> None:
    texts = list(read(shared_file("data", "winobias", "pro_stereotyped_type1.txt.dev"), limit=4))
    assert mentions(texts[0]) == [
        ("The developer", "developer", "bracketed"),
        ("the designer", "designer", "other"),
        ("he", "he", "bracketed"),  # did not like the design
    ]
    assert [chain for _, _, chain in mentions(texts[1])] == ["other", "bracketed", "bracketed"]
    assert mentions(texts[3]) == [
        ("The mechanic", "mechanic", "other"),
        ("the clerk", "clerk", "bracketed"),
        ("her", "her", "bracketed"),  # birthday
    ]
