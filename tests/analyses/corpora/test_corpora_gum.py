"""GUM's brackets become mentions with the right words, heads and chains, in texts that are whole documents."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from analyses.corpora import Corpus, gum, read
from analyses.rivals.antecedents import antecedent_items
from interp.annotation import ROOT, AnnotatedText, Mention
from interp.errors import InputError

ORDER = "# global.Entity = GRP-etype-infstat-minspan-link-identity"
SharedFile = Callable[..., Path]


def row(number: str, form: str, head: str = "_", entity: str = "", *, tag: str = "X", misc: str = "") -> str:
    misc = "|".join(part for part in (entity and f"Entity={entity}", misc) if part) or "_"
    relation = {"_": "_", "0": "root"}.get(head, "dep")
    return "\t".join((number, form, "_", tag, "_", "_", head, relation, "_", misc))


def lines(*blocks: tuple[str, ...]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks) + "\n\n"


def texts(*blocks: tuple[str, ...]) -> list[AnnotatedText]:
    return list(gum.parse(lines(*blocks).splitlines(keepends=True), "a.conllu"))


BAKER = (
    "# newdoc id = tale",
    ORDER,
    "# meta::summary1 = [He] and [him], to be told from another format",
    row("1", "The", "3", "(1-person-new-3-coref"),
    row("2", "old", "3"),
    row("3", "baker", "6"),
    row("4", "of", "5"),
    row("5", "Ys", "3", "(2-place-new-1-sgl-Ys_%28town%29)1)"),
    row("5.1", "who"),
    row("6", "slept", "0"),
)
DOG = (
    "# sent_id = tale-2",
    row("1-2", "He'd"),
    row("1", "He", "3", "(1-person-giv:act-1-ana)"),
    row("2", "'d", "3"),
    row("3", "fed", "0"),
    row("4", "his", "5", "(3-animal-new-2-coref(1-person-giv:act-1-ana)", misc="Bridge=1<3"),
    row("5", "dog", "3", "3)", misc="SplitAnte=1<3,2<3|SpaceAfter=No"),
    row("6", ".", "3"),
)
CAT = ("# newdoc id = other", row("1", "Cats", "2", "(1-animal-new-1-sgl)"), row("2", "sleep", "0"))


def test_a_document_is_one_text_with_tags_relations_and_chains(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress(lines(BAKER, DOG, CAT).encode()))
    corpus = read(path)
    tale, other = corpus
    assert (corpus.kind, corpus.annotates) == ("gum", {"tags", "relations", "chains"})
    assert tale.text == "The old baker of Ys slept He'd fed his dog."
    assert tale.heads == (2, 2, 5, 4, 2, ROOT, 8, 8, ROOT, 10, 8, 8)  # the second sentence begins at 6
    assert tale.relations is not None
    assert (tale.relations[8], len(tale.tags or ())) == ("root", 12)
    assert tale.sentence_starts == (0, 6)
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
    path.write_text(lines(BAKER, DOG, CAT))
    assert [text.mentions for text in read(f"conllu:{path}")] == [None] * 3
    assert read(f"gum:{tmp_path}").annotates == {"tags", "relations", "chains"}
    assert read(tmp_path).kind == "gum"
    (tmp_path / "b.conllu").write_text(lines(CAT))
    with pytest.raises(InputError, match=r"several formats: choose with gum:\S+ or conllu:"):
        read(tmp_path)


def one(*rows: str, order: str = ORDER) -> AnnotatedText:
    (text,) = texts((order, *rows))
    return text


def test_heads_come_from_the_annotation_else_from_the_tree() -> None:
    def head(minspan: str) -> int:
        text = one(
            row("1", "Ann", "0", f"(1-person-new-{minspan}-sgl"), row("2", "Marie", "1"), row("3", "Bo", "2", "1)")
        )
        return (text.mentions or ())[0].head

    assert head("2") == 1  # as it says, though the first is higher
    assert head("2,3") == 1  # the higher of the two
    assert head("_") == head("1,2,3") == 0


def test_without_a_tree_the_last_head_word_counts() -> None:
    text = one(row("1", "Ann", "_", "(1-person-new-1,2-sgl"), row("2", "Bo"), row("3", "'s", "_", "1)"))
    assert (text.heads, text.mentions) == (None, (Mention(0, 3, 1, "1"),))


def test_corefud_names_its_values_otherwise() -> None:
    order = "# global.Entity = eid-etype-head-other"
    text = one(row("1", "red", "2", "(e1-thing-2-"), row("2", "hats", "0", "e1)"), order=order)
    assert text.mentions == (Mention(0, 2, 1, "e1"),)


def test_closing_brackets_may_repeat_the_values() -> None:
    order = "# global.Entity = entity-GRP-identity"
    text = one(row("1", "red", "2", "(thing-7"), row("2", "hats", "0", "thing-7)"), order=order)
    assert text.mentions == (Mention(0, 2, 1, "7"),)


def test_mentions_of_one_entity_nest() -> None:
    text = one(
        row("1", "He", "0", "(1-person-new-1-coref(1-person-new-1-coref"),
        row("2", "is", "1", "1)"),
        row("3", "he", "1", "1)"),
    )
    assert text.mentions == (Mention(0, 3, 0, "1"), Mention(0, 2, 0, "1"))


def test_a_mention_in_parts_is_the_stretch_from_first_to_last() -> None:
    text = one(
        row("1", "old", "5", "(12[1/2]-person-new-2-sgl"),  # "old ... men": word 2 of the mention is men
        row("2", "clever", "5", "12[1/2])(3-person-new-1-sgl)"),
        row("3", "and", "5"),
        row("4", "young", "5"),
        row("5", "men", "0", "(12[2/2]-person-new-2-sgl)"),
    )
    assert text.mentions == (Mention(0, 5, 1, "12"), Mention(1, 2, 1, "3"))
    by_tree = one(
        row("1", "old", "3", "(2[1/2]-person-new-_-sgl)"), row("2", "er", "3"), row("3", "men", "0", "(2[2/2]-person)")
    )
    assert by_tree.mentions == (Mention(0, 3, 2, "2"),)


def test_a_mention_of_an_empty_node_alone_is_dropped() -> None:
    text = one(
        row("1", "Sleep", "0", "(1-event-new-1-sgl"),
        row("1.1", "you", "_", "(2-person-new-1-sgl)"),
        row("2", "well", "1", "1)"),
    )
    assert text.mentions == (Mention(0, 2, 0, "1"),)


def test_mentions_within_a_word_that_stands_for_several() -> None:
    text = one(
        row("1-2", "du", misc="SpaceAfter=No"),
        row("1", "de", "3"),
        row("2", "le", "3", "(1-person-new-2-sgl"),
        row("3", "roi", "0", "1)"),
    )
    assert (text.words, text.mentions) == (("du", "roi"), (Mention(0, 2, 1, "1"),))


def test_a_file_without_newdoc_is_one_document() -> None:
    (text,) = texts((ORDER, row("1", "Yes", "0")), (row("1", "No", "0"),))
    assert (text.document, text.words, text.mentions) == ("a.conllu:1", ("Yes", "No"), ())


def test_documents_are_read_one_at_a_time() -> None:
    unread = iter(lines(BAKER, CAT, DOG).splitlines(keepends=True))
    assert next(gum.parse(unread, "a.conllu")).document == "tale"
    assert list(unread)[-3:-1] == [DOG[-2] + "\n", DOG[-1] + "\n"]


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        ("1)", r'line 2: "1\)" closes a mention of entity 1 that no "\(1" opened'),
        ("(1-person-new-1-sgl", "line 2: the mention of entity 1 that opens here is not closed before a.conllu:1 ends"),
        ("person", 'line 2: expected Entity like .* got "person"'),
        ("(1-person-new-1-sgl)(", "line 2: expected Entity like"),
        ("(1-person-new-2-sgl)", 'line 2: expected head words from 1 to 1 in the mention of entity 1 .* got "2"'),
        ("(1-person-new-x-sgl)", 'got "x"'),
        ("(-person-new)", "expected the number of an entity, alone or as 3"),
        ("(1[2/2]-person)", "line 2: part 2 of a mention of entity 1 has no part 1 before it"),
        ("(1[1/2]-person)", "line 2: the mention of entity 1 that opens here is not closed"),
        ("(1[3/2]-person)", 'expected a part like 1/2 or 2/2 of entity 1, got "3/2"'),
    ],
)
def test_a_wrong_bracket_is_one_clear_line(entity: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^a\.conllu, line \d+: ") as caught:
        one(row("1", "Ann", "0", entity))
    assert caught.match(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            (row("1", "Ann", "0"),),
            'line 1: expected a comment "# global.Entity = ..." above the first sentence, got none',
        ),
        (("# global.Entity = etype-link", row("1", "Ann", "0")), "line 2: expected GRP or eid in"),
        ((ORDER, row("1", "Ann", "7")), "line 2: .*head 7 but no such word"),
        ((ORDER, row("1-2", "can't", entity="(1-x)"), row("1", "ca", "0"), row("2", "n't", "1")), "line 2: .*can't"),
        ((ORDER, "what is this"), "line 2: expected 10 columns"),
    ],
)
def test_a_wrong_sentence_is_one_clear_line(block: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        texts(block)


# The real files.


@pytest.fixture(scope="module")
def whole(shared_file: SharedFile) -> Corpus:
    return read(shared_file("data", "gum"))


@pytest.fixture(scope="module")
def documents(whole: Corpus) -> list[AnnotatedText]:
    return list(whole)


@pytest.mark.slow
def test_gum_counts(whole: Corpus, documents: list[AnnotatedText]) -> None:
    assert (whole.kind, whole.annotates) == ("gum", {"tags", "relations", "chains"})
    assert len(documents) == len({text.document for text in documents}) == 56
    assert sum(len(text.sentence_starts) for text in documents) == 2_504
    assert sum(len(text.words) for text in documents) == 51_950
    mentions = [(text.document, mention) for text in documents for mention in text.mentions or ()]
    assert len(mentions) == 14_873
    assert len({(document, mention.chain) for document, mention in mentions}) == 8_079


@pytest.mark.slow
def test_gum_sentences_are_spelled_exactly(shared_file: SharedFile, documents: list[AnnotatedText]) -> None:
    paths = sorted(shared_file("data", "gum").glob("*.conllu"))
    for path, text in zip(paths, documents, strict=True):
        with path.open(encoding="utf-8") as rows:
            said = [line.removeprefix("# text = ").rstrip("\n") for line in rows if line.startswith("# text = ")]
        ends = [*text.sentence_starts[1:], len(text.words)]
        spans = [
            (text.word_spans[a][0], text.word_spans[b - 1][1]) for a, b in zip(text.sentence_starts, ends, strict=True)
        ]
        assert [text.text[start:end] for start, end in spans] == said


def test_gum_read_by_hand(shared_file: SharedFile) -> None:
    """The first mentions of a court hearing, and a heading of nested ones."""
    (court,) = read(shared_file("data", "gum", "GUM_court_loan.conllu"))
    seen = [(court.words[m.start : m.end], court.words[m.head], m.chain) for m in court.mentions or ()]
    assert seen[3:7] == [
        (("Case", "22-506"), "Case", "4"),
        (("Biden",), "Biden", "5"),
        (("Nebraska",), "Nebraska", "6"),
        (("General", "Prelogar"), "Prelogar", "7"),
    ]
    assert seen[8][1:] == ("ELIZABETH", "7")  # the same person: minspan 2-4 of "GEN. ELIZABETH B. PRELOGAR"
    (art,) = read(shared_file("data", "gum", "GUM_academic_art.conllu"))
    assert (art.mentions or ())[2:5] == (
        Mention(6, 11, 6, "3"),  # Insights from Eye-Tracking
        Mention(8, 11, 10, "4"),  # Eye-Tracking
        Mention(8, 9, 8, "5"),  # Eye
    )
    assert art.heads is not None
    assert art.tags is not None
    assert (art.words[10], art.tags[10], art.heads[10], art.heads[6]) == ("Tracking", "NOUN", 6, ROOT)
