"""Parquet, JSON Lines and `datasets` are read row by row: same texts in constant memory, or one line of error."""

import gzip
import hashlib
import json
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from analyses.corpora import FORMATS, from_rows, read
from interp.errors import InputError, InputWarning

ROWS = {"id": [1, 2, 3], "text": ["He ran .", "No\u00e9", "a\nb"], "document": ["d", "d", "e"], "tags": [["x"], [], []]}
ANNOTATED = {"words": [["He", "ran"]], "tags": [["PRON", "VERB"]], "heads": [[2, 0]], "relations": [["nsubj", "root"]]}


def parquet(path: Path, columns: dict[str, list]) -> Path:
    pq.write_table(pa.table(columns), path, write_batch_size=8)  # else a page holds 1,024 texts
    return path


def jsonl(path: Path, columns: dict[str, list]) -> Path:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    content = "\n\n".join(map(json.dumps, rows)).encode()
    packed = {".gz": gzip.compress, ".zst": lambda content: pa.compress(content, "zstd", asbytes=True)}
    path.write_bytes(packed.get(path.suffix, bytes)(content))
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a"])
def test_a_text_a_row_by_the_columns_that_take_names(tmp_path: Path, name: str) -> None:
    write = jsonl if "jsonl" in name else parquet
    corpus = read(path := write(tmp_path / name, ROWS))
    assert [(text.text, text.document) for text in corpus] == [("He ran .", "d"), ("Noé", "d"), ("a b", "e")]
    assert (corpus.kind, corpus.annotates) == (write.__name__, frozenset())  # tags of no words are not read
    assert corpus.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    (text,) = read(f"{write.__name__}:{write(tmp_path / name, ANNOTATED)}")
    assert (text.tags, text.heads, text.relations) == (("PRON", "VERB"), (1, -1), ("nsubj", "root"))
    assert text.document == f"{path}:1"
    if name != "a":
        write(tmp_path / f"b{name}", ROWS)
        assert len(list(read(tmp_path))) == 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": ["a"]}, 'expected a column "text" or "words", got body: rename one, or corpora.from_rows'),
        ({"text": [1]}, '1: expected a string in "text", got 1'),
        ({"text": ["a " * 9], "words": [["b"]]}, "1: expected the words to spell the text"),
        ({"words": [7]}, '1: expected a list, one value per word, in "words", got 7'),
        ({"text": ["a", "b" * 10_001]}, r"[23]: the text 'a\.\w+:[23]' has a word of 10,001 characters"),
    ],
)
@pytest.mark.parametrize("write", [parquet, jsonl])
def test_wrong_columns_are_one_line(tmp_path: Path, monkeypatch, write: Callable, columns: dict, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        list(read(write(Path(f"a.{write.__name__}"), columns)))
    assert str(error.value).startswith(f"a.{write.__name__}")


def test_rows_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    corpus = read(path := parquet(tmp_path / "a.parquet", {"text": ["a", None, " ", "b"]}))
    with pytest.warns(InputWarning, match=f"{path}: 2 of 4 rows have no text and are left out"):
        assert [text.document for text in corpus] == [f"{path}:1", f"{path}:4"]
    with pytest.raises(InputError, match="is empty: expected Parquet with"):
        read(parquet(path, {"text": pa.array([], pa.string())}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a\.jsonl, line 2: expected one JSON object a line, got no such"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1: .*surrogates not allowed"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd", r"a\.jsonl\.zst cannot be read \(Truncated"),
        ("a.parquet", b"PAR1" + bytes(90) + b"PAR1", r"a\.parquet cannot be read: "),
        ("a.parquet", None, "unpacks to more than 100 times its size"),
    ],
)
def test_damaged_and_endless_files_are_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = parquet(tmp_path / name, {"text": [" ".join(["a" * 9_000] * 10)] * 300})
    path.write_bytes(path.read_bytes() if content is None else content)
    with pytest.raises(InputError, match=message) as error:
        list(read(path))
    assert str(error.value).isprintable()


@pytest.mark.parametrize(("write", "name"), [(parquet, "a.parquet"), (jsonl, "a.jsonl.zst")])
def test_memory_does_not_grow_with_the_texts(tmp_path: Path, write: Callable, name: str) -> None:
    form, peaks = FORMATS[write.__name__], []
    for n in (100, 1_000):
        path = write(tmp_path / name, {"text": [random.Random(i).randbytes(8_192).hex(" ", 64) for i in range(n)]})
        tracemalloc.start()
        arrow = [pa.total_allocated_bytes() for _ in form.texts(form.records(path), "a")]
        peaks.append(tracemalloc.get_traced_memory()[1] + max(arrow))
        tracemalloc.stop()
        assert len(arrow) == n
    assert path.stat().st_size > 8_000_000
    assert peaks[1] < peaks[0] + 1_000_000


def test_data_sets_are_streamed_from_a_folder_or_the_hub(tmp_path: Path, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    for split in ("train", "test"):
        parquet(tmp_path / f"{split}.parquet", {"text": [f"{split} {text}" for text in ROWS["text"]]})
    whole, part, test = (read(f"datasets:{tmp_path}{more}") for more in ("", "::train[:2]", ":default:test"))
    assert [text.text for text in whole] == ["train He ran .", "train Noé", "train a b"]
    assert (list(whole), whole.kind) == (list(whole), "datasets")
    assert [text.words for text in part] == [text.words for text in whole][:2]
    assert next(iter(test)).text == "test He ran ."
    assert len({whole.digest, part.digest, test.digest, read(whole.name).digest}) == 3  # a name opens the same again
    streamed = datasets.load_dataset(str(tmp_path), split="train", streaming=True)
    assert [text.text for text in from_rows(streamed)] == [text.text for text in whole]
    builder, calls = datasets.load_dataset_builder(str(tmp_path)), []
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *more, **how: calls.append((more, how)) or builder)
    digests = {whole.digest}
    for builder.hash in ("c0ffee", "decaf"):
        hub = read("datasets:org/name@main:plain:test", limit=1)
        assert (hub.name, len(list(hub))) == (f"datasets:org/name@{builder.hash}:default:test", 1)
        digests.add(hub.digest)
    assert (len(digests), calls[0]) == (3, (("org/name", "plain"), {"revision": "main"}))
    for wrong, message in {
        "": "expected NAME:CONFIG:SPLIT",
        "org/name::test[1:]": "SPLIT as train or train",
        "org/name::dev": r"datasets:org/name::dev cannot be read: Bad split: dev\. Available splits: .'train', 'test'",
    }.items():
        with pytest.raises(InputError, match=message):
            read(f"datasets:{wrong}")


def test_what_the_network_or_an_installation_lacks_is_one_line(tmp_path: Path, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InputError, match="datasets:org/name cannot be read: Couldn't reach 'org/name' on the Hub"):
        read("datasets:org/name")

    def rows() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise OSError("no network")

    stream = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets.DatasetBuilder, "as_streaming_dataset", lambda builder, split: stream)
    parquet(tmp_path / "train.parquet", ROWS)
    with pytest.raises(InputError, match=f"datasets:{tmp_path}:default:train cannot be read: no network"):
        list(read(f"datasets:{tmp_path}"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'needs an extra: pip install "interp\[datasets\]"'):
        read("datasets:org/name")
