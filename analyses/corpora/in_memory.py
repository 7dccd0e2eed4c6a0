"""Corpora from memory: a pandas frame, a `datasets` dataset, or a list, one text per row."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any

import pandas as pd

from analyses.corpora.corpus import Corpus, annotations
from analyses.corpora.text_rows import TEXT, class_labels, text_of
from analyses.reading.inputs import TokenIds
from interp import Model
from interp.annotation import AnnotatedText
from interp.errors import InputError, inside

_TEXTS, _LONGEST = 100, 64  # random texts, and most tokens per text


def from_rows(
    data: Any,
    *,
    text: str | None = None,
    words: str | None = None,
    tags: str | None = None,
    heads: str | None = None,
    relations: str | None = None,
    lemmas: str | None = None,
    document: str | None = None,
    target: str | None = None,
    name: str | None = None,
) -> Corpus:
    """Make a corpus from the rows of `data`, one text per row (`docs/own_corpora.md`).

    `data` is a pandas frame or series, one split of `datasets`, a list of strings, of mappings by column, or of
    `AnnotatedText`, or anything else that can be iterated repeatedly over such rows. The other arguments name columns,
    and `name` the corpus. All rows are read once, for the digest. Rows without text are left out, and the name says how
    many. Later changes to a frame or list do not change the corpus.

    Raises:
        InputError: `data` has no rows, no such column or no text, or can only be read once; or a row does not fit its
            column (the error counts rows from 0).
    """
    uses = {"words": words, "tags": tags, "heads": heads, "relations": relations, "lemmas": lemmas}
    uses |= {"document": document, "target": target}
    by_use = {use: column for use, column in uses.items() if column is not None}
    title, columns, rows = _opened(data)
    if columns is None and (by_use or text):
        raise InputError(f"{title} has texts that are annotated already, and no columns: name none")
    if columns is not None and (text is not None or words is None):
        if text is None and TEXT not in columns and len(columns) != 1:
            named = ", ".join(map(str, columns))
            raise InputError(f"{title} has columns {named}: say which is the text, as in text={columns[0]!r}")
        by_use[TEXT] = text or (TEXT if TEXT in columns else columns[0])
    for column in by_use.values():
        if (columns or []).count(column) != 1:
            listed = ", ".join(map(str, columns or ()))
            raise InputError(f'expected one column "{column}" in {title}, which has {listed}')
    labels = class_labels(data, by_use)
    if isinstance(data, pd.DataFrame):
        rows = data.filter([*dict.fromkeys(by_use.values())]).to_dict("records")

    def texts(name: str) -> Iterator[AnnotatedText | None]:
        """The text of each row, None if it has none; without a document column, documents are numbered."""
        for number, row in enumerate(rows):
            with inside(f"{title}, row {number}"):
                yield text_of(row, f"{name}:{number}", by_use, labels)

    sha, n_texts, n_empty, annotates = hashlib.sha256(), 0, 0, None
    for entry in texts("row"):  # any name: the digest does not depend on it
        if entry is None:
            n_empty += 1
            continue
        n_texts += 1
        facts = [(field.name, value) for field in fields(entry) if (value := getattr(entry, field.name)) is not None]
        sha.update(repr(facts).encode())
        annotates = annotations(entry) if annotates is None else annotates & annotations(entry)
    if annotates is None:
        raise InputError(f"{name or title} holds no text: expected at least one row with something in it")
    digest = sha.hexdigest()
    full_name = name or f"{title}, {n_texts:,} text{'s' * (n_texts > 1)}, {digest[:8]}"
    if n_empty:
        full_name += f", without {n_empty:,} empty row{'s' * (n_empty > 1)}"
    return Corpus(full_name, "rows", annotates, digest, lambda: filter(None, texts(full_name)))


def _opened(data: Any) -> tuple[str, list[Any] | None, Iterable[Any]]:
    """A title for unnamed data, its columns (None if rows are annotated texts), and its current rows."""
    match data:
        case str() | bytes() | PurePath():
            advice = "corpora.read opens files, from_rows([text]) takes one text"
            raise InputError(f"expected rows, got one string or path: {advice}")
        case pd.DataFrame():
            return "a frame", list(data.columns), ()
        case pd.Series():
            return "a series" if data.name is None else f"series {data.name}", [TEXT], list(data)
        case list() | tuple():
            title, rows = "a list", list(data)
        case Mapping():
            names, first = ", ".join(map(str, data)), next(iter(data), "")
            raise InputError(f'expected rows, got a mapping of {names}: take one of these, as in data["{first}"]')
        case Iterator():
            raise InputError(f"expected rows that can be read again, got a {type(data).__name__}: from_rows(list(...))")
        case Iterable():
            name, split = getattr(getattr(data, "info", None), "dataset_name", None), getattr(data, "split", None)
            title, rows = " ".join(map(str, filter(None, [name or type(data).__name__, split]))), data
        case _:
            raise InputError(f"expected rows (a frame, a dataset, a list), got {type(data).__name__}")
    if (names := getattr(data, "column_names", None)) is not None:
        return title, list(names), rows
    first = next(iter(rows), None)
    columns = None if isinstance(first, AnnotatedText) else list(first) if isinstance(first, Mapping) else [TEXT]
    return title, columns, rows


def random_ids(model: Model, seed: int = 0) -> Corpus:
    """100 texts of 64 random ids, or as many as fit; each text draws them from half as many random ids."""
    stacks = model.config.stacks.values()
    length = max(2, min(_LONGEST, min(stack.n_ctx for stack in stacks) - (len(stacks) > 1)))  # after a start id
    d_vocab = min(stack.d_vocab for stack in stacks)
    name = f"random token ids ({_TEXTS} texts of {length}, seed {seed})"

    def texts() -> Iterator[AnnotatedText]:
        rng = random.Random(f"token ids {seed}")
        for number in range(_TEXTS):
            vocabulary = [str(rng.randrange(d_vocab)) for _ in range(length // 2)]
            yield AnnotatedText.plain(" ".join(rng.choices(vocabulary, k=length)), f"random-{number}")

    digest = hashlib.sha256("\n".join([name, *(text.text for text in texts())]).encode()).hexdigest()
    return Corpus(name, "token ids", frozenset(), digest, texts)


def of_ids(model: Model, corpus: Corpus) -> bool:
    """Whether a corpus consists of ids that `model` knows, by its first text."""
    tokenizer, first = TokenIds(min(stack.d_vocab for stack in model.config.stacks.values())), next(iter(corpus), None)
    return first is not None and all(map(tokenizer.knows, first.words))
