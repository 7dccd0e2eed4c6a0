"""GUM's brackets become mentions with the right words, heads and chains, in texts that are whole documents."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from analyses.corpora import FORMATS, Corpus, read
from analyses.scoring.antecedents import antecedent_items
from interp.annotation import ROOT, AnnotatedText, Mention
from tests.analyses.corpora.made_corpora import ENTITIES, texts, word

SharedFile = Callable[..., Path]
BAKER = [
    "# newdoc id = tale",
    ENTITIES,
    "# meta::summary1 = [He] and [him], to be told from another format",
    word(1, "The", head=3, entity="(1-person-new-3-coref"),
    word(2, "old", head=3),
    word(3, "baker", head=6),
    word(4, "of", head=5),
    word(5, "Ys", head=3, entity="(2-place-new-1-sgl-Ys_%28town%29)1)"),
    word("5.1", "who"),
    word(6, "slept", head=0),
    "",
]
DOG = [
    "# sent_id = tale-2",
    word("1-2", "He'd"),
    word(1, "He", head=3, entity="(1-person-giv:act-1-ana)"),
    word(2, "'d", head=3),
    word(3, "fed", head=0),
    word(4, "his", head=5, entity="(3-animal-new-2-coref(1-person-giv:act-1-ana)", misc="Bridge=1<3"),
    word(5, "dog", head=3, entity="3)", misc="SplitAnte=1<3,2<3|SpaceAfter=No"),
    word(6, ".", head=3),
    "",
]
CAT = ["# newdoc id = other", word(1, "Cats", head=2, entity="(1-animal-new-1-sgl)"), word(2, "sleep", head=0), ""]


def test_a_document_is_one_text_with_tags_relations_and_chains(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress("\n".join(BAKER + DOG + CAT).encode()))
    corpus = read(path)
    tale, other = corpus
    assert (corpus.kind, corpus.annotates) == ("gum", {"tags", "relations", "chains"})
    assert tale.text == "The old baker of Ys slept He'd fed his dog."
    assert tale.heads == (2, 2, 5, 4, 2, ROOT, 8, 8, ROOT, 10, 8, 8)  # the second sentence begins at 6
    assert tale.relations is not None
    assert (tale.relations[8], len(tale.tags or ()), tale.sentence_starts) == ("root", 12, (0, 6))
    assert tale.mentions == (
        Mention(0, 5, 2, "1"),
        Mention(4, 5, 4, "2"),
        Mention(6, 7, 6, "1"),
        Mention(9, 11, 10, "3"),  # "his" opened after it and closed before it
        Mention(9, 10, 9, "1"),
    )
    assert (tale.document, other.document) == ("tale", "other")
    assert other.mentions == (Mention(0, 1, 0, "1"),)  # another document's entity 1
    assert [item.form for item in antecedent_items(tale)] == ["he", "his"]


def test_the_same_file_is_sentences_when_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("\n".join(BAKER + DOG + CAT))
    assert [text.mentions for text in read(f"conllu:{path}")] == [None] * 3
    assert read(f"gum:{tmp_path}").kind == read(tmp_path).kind == "gum"


@pytest.mark.parametrize(
    ("order", "words", "expected"),
    [
        # the head is as the annotation says, the highest of several, or of all; without a tree the last of them
        *(
            (ENTITIES, [(0, f"(1-person-new-{said}-sgl"), (1, ""), (2, "1)")], [(0, 3, head, "1")])
            for said, head in (("2", 1), ("2,3", 1), ("_", 0), ("1,2,3", 0))
        ),
        (ENTITIES, [("_", "(1-person-new-1,2-sgl"), ("_", ""), ("_", "1)")], [(0, 3, 1, "1")]),
        # CorefUD's names; brackets that repeat the values where they close
        ("# global.Entity = eid-etype-head-other", [(2, "(e1-thing-2-"), (0, "e1)")], [(0, 2, 1, "e1")]),
        ("# global.Entity = entity-GRP-identity", [(2, "(thing-7"), (0, "thing-7)")], [(0, 2, 1, "7")]),
        # two of one entity, one in the other
        (ENTITIES, [(0, "(1-a-b-1-c(1-a-b-1-c"), (1, "1)"), (1, "1)")], [(0, 3, 0, "1"), (0, 2, 0, "1")]),
        # a mention in parts is the stretch from first to last: "old ... men", whose word 2 is men
        (
            ENTITIES,
            [(5, "(12[1/2]-a-b-2-c"), (5, "12[1/2])(3-a-b-1-c)"), (5, ""), (5, ""), (0, "(12[2/2]-a-b-2-c)")],
            [(0, 5, 1, "12"), (1, 2, 1, "3")],
        ),
        (ENTITIES, [(3, "(2[1/2]-a-b-_-c)"), (3, ""), (0, "(2[2/2]-a)")], [(0, 3, 2, "2")]),
    ],
)
def test_brackets_become_mentions(order: str, words: list[tuple[object, str]], expected: list[tuple]) -> None:
    rows = [word(number, head=head, entity=entity) for number, (head, entity) in enumerate(words, 1)]
    (text,) = texts("gum", order, *rows)
    assert text.mentions == tuple(Mention(*mention) for mention in expected)
    assert (text.heads is None) == (words[0][0] == "_")


def test_a_mention_of_an_empty_node_alone_is_dropped() -> None:
    rows = word(1, head=0, entity="(1-a-b-1-c"), word("1.1", entity="(2-a-b-1-c)"), word(2, head=1, entity="1)")
    (text,) = texts("gum", ENTITIES, *rows)
    assert text.mentions == (Mention(0, 2, 0, "1"),)


def test_documents_are_read_one_at_a_time_and_are_files_where_nothing_says_so() -> None:
    unread = iter([f"{line}\n" for line in BAKER + CAT + DOG])
    assert next(FORMATS["gum"].texts(unread, "a")).document == "tale"
    assert "".join(unread).splitlines()[-3:] == DOG[-3:]
    (text,) = texts("gum", ENTITIES, word(1, "Yes", head=0), "", word(1, "No", head=0))
    assert (text.document, text.words, text.mentions) == ("a:1", ("Yes", "No"), ())


# The real files.


@pytest.fixture(scope="module")
def whole(shared_file: SharedFile) -> Corpus:
    return read(shared_file("data", "gum"))


@pytest.mark.slow
def test_gum_counts_and_spelling(whole: Corpus) -> None:
    documents = list(whole)
    assert (whole.kind, whole.annotates) == ("gum", {"tags", "relations", "chains"})
    assert len(documents) == len({text.document for text in documents}) == 56
    assert sum(len(text.sentence_starts) for text in documents) == 2_504
    assert sum(len(text.words) for text in documents) == 51_950
    mentions = [(text.document, mention) for text in documents for mention in text.mentions or ()]
    assert len(mentions) == 14_873
    assert len({(document, mention.chain) for document, mention in mentions}) == 8_079
    for path, text in zip(whole.files, documents, strict=True):
        with path.open(encoding="utf-8") as rows:
            surface = [line.removeprefix("# text = ").rstrip("\n") for line in rows if line.startswith("# text = ")]
        ends = [*text.sentence_starts[1:], len(text.words)]
        assert [sentence_text(text, a, b) for a, b in zip(text.sentence_starts, ends, strict=True)] == surface


def sentence_text(text: AnnotatedText, start: int, end: int) -> str:
    return text.text[text.word_spans[start][0] : text.word_spans[end - 1][1]]
