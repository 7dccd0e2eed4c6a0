"""Data in memory becomes a corpus with the same texts, named and hashed by content, or one line says why not."""

import gzip
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analyses import corpora
from analyses.corpora import read
from analyses.corpora.corpus import serving, unserved
from interp import AnnotatedText, Mention
from interp.errors import InputError, InputWarning

FRAME = pd.DataFrame({"review": ["a b", None, " ", "c d."], "book": [*"xxyx"], "n": range(1, 5), "gold": [*"ABCD"]})
UD = {
    "tokens": [["He", "ran", "."], ["No"]],
    "text": ["He  ran.\n", "No"],
    "upos": [["PRON", "VERB", "PUNCT"], ["INTJ"]],
    "head": [["2", "0", "2"], ["0"]],
    "deprel": [["nsubj", "root", "punct"], ["root"]],
}


def annotated(data: object, **more) -> corpora.Corpus:
    columns = {"words": "tokens", "tags": "upos", "heads": "head", "relations": "deprel", "lemmas": "tokens"}
    return corpora.from_rows(data, **columns, **more)


def test_a_frame_is_a_text_a_row_and_empty_rows_are_counted():
    corpus = corpora.from_rows(FRAME, text="review", target="gold", name="reviews")
    assert [(text.text, text.target) for text in corpus] == [("a b", "A"), ("c d.", "D")]
    assert list(corpus) == list(corpus)
    assert (corpus.name, corpus.kind, corpus.annotates) == ("reviews, without 2 empty rows", "rows", {"targets"})
    assert [text.document for text in corpus] == [f"{corpus.name}:0", f"{corpus.name}:3"]
    assert [text.document for text in corpora.from_rows(FRAME, text="review", document="book")] == ["x", "x"]
    assert [text.text for text in corpora.from_rows(FRAME["review"])] == ["a b", "c d."]
    unnamed = corpora.from_rows(FRAME, text="review")
    assert unnamed.name == f"a frame, 2 texts, {unnamed.digest[:8]}, without 2 empty rows"


@pytest.mark.parametrize("build", [pd.DataFrame, lambda columns: pd.DataFrame(columns).to_dict("records")])
def test_annotation_is_taken_with_the_spaces_of_the_text(build):
    data = build({**UD, "upos": [np.array(tags) for tags in UD["upos"]]})  # as parquet returns them
    corpus = annotated(data, text="text")
    first, second = corpus
    words, tags, relations = ("He", "ran", "."), ("PRON", "VERB", "PUNCT"), ("nsubj", "root", "punct")
    spaces, document = (True, False, True), f"{corpus.name}:0"
    assert first == AnnotatedText(words, spaces, document, tags, (1, -1, 1), relations, lemmas=words)
    assert second.heads == (-1,)
    assert corpus.annotates == {"tags", "relations"}
    assert [text.text for text in annotated(data)] == ["He ran .", "No"]


def test_datasets_are_taken_with_their_labels():
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["PUNCT", "PRON", "VERB", "INTJ"])
    string = datasets.Value("string")
    lists = {name: datasets.List(labels if name == "upos" else string) for name in UD}
    features = datasets.Features(lists | {"text": string})
    split = datasets.Dataset.from_dict(UD, features=features, split="train")
    corpus = annotated(split, text="text", name="ud")
    assert [text.tags for text in corpus] == [("PRON", "VERB", "PUNCT"), ("INTJ",)]
    assert corpus.digest == annotated(pd.DataFrame(UD), text="text").digest
    streamed = corpora.from_rows(split.to_iterable_dataset())
    assert [text.text for text in streamed] == [text.text for text in streamed] == ["He ran.", "No"]
    assert streamed.digest == corpora.from_rows(split["text"]).digest == corpora.from_rows(UD["text"]).digest
    assert corpora.from_rows(split).name.startswith("Dataset train, 2 texts, ")
    with pytest.raises(InputError, match=re.escape('a mapping of train: take one of these, as in data["train"]')):
        corpora.from_rows(datasets.DatasetDict({"train": split}))
    unlabelled = split.add_column("none", [[1, 2, 9], [-1]])
    with pytest.raises(InputError, match='Dataset train, row 0: expected a list of strings in "none", got one with 1'):
        corpora.from_rows(unlabelled, words="tokens", tags="none")


def test_annotated_texts_are_taken_as_they_are():
    text = AnnotatedText(("He", "saw", "Tim"), (True,) * 3, "d", mentions=(Mention(2, 3, 2, "t"),))
    corpus = corpora.from_rows([text, AnnotatedText.plain("b", "e")])
    assert next(iter(corpus)) is text
    assert corpus.annotates == frozenset()  # what all texts have
    assert corpora.from_rows([text]).annotates == {"chains"}
    with pytest.raises(InputError, match="annotated already, and no columns: name none"):
        corpora.from_rows([text], tags="upos")


def test_the_digest_tells_what_was_taken_and_not_what_it_is_called():
    annotation = annotated(UD_ROWS := pd.DataFrame(UD))
    sets = [corpora.from_rows(lines) for lines in (["a b", "c"], ["c", "a b"], ["a b", "d"])]
    sets += [corpora.from_rows(FRAME, text="review", **more) for more in ({}, {"document": "book"}, {"target": "gold"})]
    sets += [annotation, corpora.from_rows(UD_ROWS, words="tokens"), annotation.head(1)]
    assert len({each.digest for each in sets}) == len(sets)
    assert all(len(each.digest) == 64 for each in sets)
    assert corpora.from_rows(("a b", "c"), name="mine").digest == sets[0].digest


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (lambda: corpora.from_rows("a.txt"), "expected rows, got one string or path: corpora.read opens files"),
        (lambda: corpora.from_rows(iter(["a"])), "read again, got a list_iterator: from_rows(list(...))"),
        (lambda: corpora.from_rows({"train": ["a"]}), 'got a mapping of train: take one of these, as in data["train"]'),
        (lambda: corpora.from_rows(["", None], name="mine"), "mine holds no text: expected at least one row"),
        (lambda: corpora.from_rows([1]), "a list, row 0: expected a string, a mapping by column or an AnnotatedText"),
        (lambda: corpora.from_rows(FRAME), "a frame has columns review, book, n, gold: say which is the text"),
        (
            lambda: corpora.from_rows(FRAME, text="body"),
            'expected one column "body" in a frame, which has review, book',
        ),
        (lambda: corpora.from_rows(FRAME, text="n"), 'a frame, row 0: expected a string in "n", got 1'),
        (lambda: corpora.from_rows([{"text": "a"}, {"b": 1}]), 'a list, row 1: expected a value of "text", got b'),
        (lambda: corpora.from_rows(FRAME.assign(book=None), text="review", document="book"), 'a document in "book"'),
        (lambda: corpora.from_rows(FRAME, text="review", target="n"), 'row 0: expected a string in "n", got 1'),
        (
            lambda: corpora.from_rows(FRAME, text="review", tags="book"),
            "a list, one value per word, in \"book\", got 'x'",
        ),
        (lambda: annotated(pd.DataFrame({**UD, "head": [[1, -1, 1], [-1]]})), "numbered as in CoNLL-U, .* got -1"),
        (lambda: annotated(pd.DataFrame({**UD, "text": ["He goes.", "No"]}), text="text"), "got 'ran' where it goes"),
        (lambda: annotated(pd.DataFrame({**UD, "text": ["He ran. Oh", "No"]}), text="text"), "got none for 'Oh'"),
    ],
)
def test_what_cannot_be_taken_is_one_line(take: Callable[[], object], message: str):
    expected = message if ".*" in message else re.escape(message)
    with pytest.raises(InputError, match=expected) as result:
        take()
    assert "\n" not in str(result.value)


def test_joined_corpora_are_read_one_after_another():
    first, second = corpora.read("tales:2:1"), corpora.read("tales:2:7")
    joined = corpora.join([first, second])
    assert list(joined) == list(joined) == [*first, *second]
    assert (joined.name, joined.kind, joined.annotates) == ("tales:2:1 + tales:2:7", "tales", first.annotates)
    assert joined.title == "generated tales (tales:2:1 + tales:2:7)"
    reverse = corpora.join([second, first], name="both")
    assert reverse.name == "both"
    assert len({first.digest, second.digest, joined.digest, reverse.digest, joined.head(1).digest}) == 5
    assert joined.digest == corpora.join([corpora.read("tales:2:1"), second]).digest


def test_what_only_some_annotate_is_warned_of():
    tagged, plain = annotated(pd.DataFrame(UD), name="ud"), corpora.from_rows(["a b"], name="plain")
    with pytest.warns(InputWarning, match="ud [+] plain: plain has no relations and no tags, so what needs them"):
        joined = corpora.join([tagged, plain])
    assert (joined.kind, joined.annotates, len(list(joined))) == ("rows", frozenset(), 3)
    with pytest.raises(InputError, match="expected at least one corpus, got none"):
        corpora.join([])
    with pytest.raises(InputError, match="join: ud comes twice"):
        corpora.join([tagged, plain, tagged])


def test_two_corpora_of_one_name_are_refused():
    first, second = corpora.from_rows(["a"], name="mine"), corpora.from_rows(["b"], name="mine")
    with pytest.raises(InputError, match="two corpora are called mine"):
        serving({"position": frozenset()}, [first, second])


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
    first, second = write(tmp_path / "a.txt"), write(tmp_path / "b.txt")
    assert [text.document for text in read(f"text:{tmp_path}")] == [str(first)] * 2 + [str(second)] * 2


def test_plain_text_is_read_only_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r'begins "The old lady": text:PATH reads plain text') as result:
        read(path)
    assert "lines:PATH or" not in str(result.value)
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
    why = f"it needs coreference chains, and {plain.name} has no annotation; add --corpus tales"
    assert why in reason["coreference"]
    assert [(each.corpus, each.questions) for each in serving(NEEDS, [plain])] == [(plain, ["position"])]
    plan = serving(NEEDS, [plain, tales])
    assert [(each.corpus, each.questions) for each in plan] == [(plain, ["position"]), (tales, ["coreference"])]
    assert not any(each.stands_in for each in plan)
    assert unserved(NEEDS, []) == unserved(NEEDS, [tales]) == {}
