"""All CoNLL-U columns of a word are kept and cut along with words; they are None in other formats."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from analyses.corpora import read
from analyses.reading.inputs import Sample
from interp import AnnotatedText, Attributes, InputError
from interp.patterns import group_of
from tests.analyses.corpora.made_corpora import FILES

SharedFile = Callable[..., Path]
COLUMNS = ("lemmas", "xpos", "feats", "misc")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tale.conllu"
    path.write_text("\n".join(FILES["columns"]), encoding="utf-8")
    return path


def test_attributes_are_a_mapping_that_keeps_what_is_written():
    feats = Attributes("Case=Nom|Number=Sing")
    assert dict(feats) == {"Case": "Nom", "Number": "Sing"} == feats
    assert (feats["Case"], feats.get("Polarity"), "Case" in feats, len(feats)) == ("Nom", None, True, 2)
    assert feats == Attributes("Number=Sing|Case=Nom")
    assert hash(feats) == hash(Attributes("Number=Sing|Case=Nom"))
    assert feats.written == pickle.loads(pickle.dumps(feats)).written == "Case=Nom|Number=Sing"
    assert dict(Attributes("Old|Gloss=a=b|_=x")) == {"Old": "", "Gloss": "a=b"}
    assert (dict(Attributes("_")), Attributes("_").written) == ({}, "")


def test_every_column_of_a_sentence_is_kept(file: Path):
    first, second = read(f"conllu:{file}")
    assert first.lemmas == ("he", "do", "not", "run")
    assert first.xpos == ("PRP", "VBD", "RB", "VB")
    assert [each.get("Polarity") for each in first.feats or ()] == [None, None, "Neg", None]
    assert [each.written for each in first.misc or ()] == ["Entity=(1-person-new-1-ana)", "", "Old|Gloss=a=b", ""]
    assert (first.sentence_ids, second.sentence_ids) == (("tale-1",), ("tale-2",))
    assert second.words == ("du", "roi")  # annotated like the first of two equally high words
    assert (second.lemmas, second.xpos, second.misc) == (("de", "roi"), ("P", "N"), (Attributes("Lang=fr"), {}))


def test_a_document_joins_them_and_an_excerpt_cuts_them_along_with_the_words(file: Path):
    sentences, (document,) = list(read(f"conllu:{file}")), read(file)
    for column in COLUMNS:
        assert getattr(document, column) == sum((getattr(each, column) for each in sentences), ())
    assert (document.sentence_starts, document.sentence_ids) == ((0, 4), ("tale-1", "tale-2"))
    part, inside = document.excerpt(2, 5), document.excerpt(1, 3)
    assert (part.words, part.lemmas, part.xpos) == (("n't", "run", "du"), ("not", "run", "de"), ("RB", "VB", "P"))
    assert ((part.feats or ())[0]["Polarity"], (part.misc or ())[2]["Lang"]) == ("Neg", "fr")
    assert (part.sentence_starts, part.sentence_ids) == ((2,), ("tale-2",))
    assert (inside.lemmas, inside.sentence_starts, inside.sentence_ids) == (("do", "not"), (0,), ("tale-1",))
    (cut,) = Sample(read(file), group_of("tale") % 2, documents=1, words=5)  # like a label's sample
    assert (cut.words, cut.lemmas) == (("He", "did", "n't", "run"), ("he", "do", "not", "run"))
    assert cut.sentence_ids == ("tale-1",)


# Changed corpora.


def longer(text: AnnotatedText) -> bool:
    """Whether a text has more than two words."""
    return len(text.words) > 2


def upper(text: AnnotatedText) -> AnnotatedText:
    return AnnotatedText(tuple(word.upper() for word in text.words), text.space_after, text.document)


def test_head_filter_and_map_read_again_and_keep_documents(file: Path):
    corpus = read(f"conllu:{file}")
    first, long, loud = corpus.head(1), corpus.filter(longer, name="longer"), corpus.map(upper, name="upper")
    assert list(first) == list(first) == list(corpus)[:1] == list(long) == list(long)
    assert [text.words for text in loud] == [("HE", "DID", "N'T", "RUN"), ("DU", "ROI")]
    assert {text.document for each in (first, long, loud) for text in each} == {"tale"}
    names = [each.name.removeprefix(corpus.name) for each in (first, long, loud)]
    assert names == [", first 1", ", filter longer", ", map upper"]
    assert (first.kind, first.annotates, long.annotates) == ("conllu", corpus.annotates, corpus.annotates)
    assert loud.annotates == frozenset()  # `upper` drops the tags
    assert list(loud.filter(longer, name="longer").head(3)) == list(loud)[:1]
    assert read("stories:3:1").head(2).title == "generated stories (stories:3:1, first 2)"


def test_the_digest_tells_what_was_done_to_what(file: Path, tmp_path: Path):
    corpus = read(file)
    copy = tmp_path / "other.conllu"
    copy.write_text(file.read_text().replace("He", "Ho"))
    corpora = [corpus, corpus.head(1), corpus.head(2), corpus.head(2).head(1), corpus.filter(longer, name="a")]
    corpora += [corpus.filter(lambda text, n=n: len(text.words) > n, name=f"over {n}") for n in (1, 3)]
    corpora += [corpus.map(upper, name="a"), read(copy).filter(longer, name="a"), read(copy).head(1)]
    digests = [each.digest for each in corpora]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)
    assert read(file).filter(longer, name="a").digest == corpus.filter(longer, name="a").digest


@pytest.mark.parametrize("name", [None, "", " ", 3])
def test_a_function_has_no_hash_and_needs_a_name(file: Path, name):
    corpus = read(file)
    for n in (1, 2):  # both have the same source, so their hashes were equal
        with pytest.raises(InputError, match=r'filter: expected a name="..." that changes with what'):
            corpus.filter(lambda text, n=n: len(text.words) > n, name=name)
    with pytest.raises(InputError, match=r'map: expected a name="..." that changes with what'):
        corpus.map(upper, name=name)
