"""Corpora of what is in memory: a pandas frame, a `datasets` dataset, or a list, one text a row."""

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from analyses.corpora.corpus import Corpus, annotations
from analyses.reading.inputs import TokenIds
from interp import Model
from interp.annotation import ROOT, AnnotatedText
from interp.errors import InputError, inside

_TEXT = "text"  # the column where none is named, and that of rows that are strings
_TEXTS, _LONGEST = 100, 64  # random texts, and tokens of each at most


def take(
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
    """The rows of `data` as a corpus, a text a row (`docs/own_corpora.md`).

    `data` is a pandas frame or series, one split of `datasets`, a list of strings, of mappings by column, or of
    `AnnotatedText`; or anything else that gives such rows again and again. The other arguments name columns, and `name`
    the corpus. All rows are read once, for the digest; those without text are left out, and the name says how many.
    What is changed in a frame or list later does not change the corpus.

    Raises:
        InputError: `data` is no rows or can be read only once, has no such column, or holds no text; or a row, named
            by its number from 0, is not as its column should be.
    """
    uses = {"words": words, "tags": tags, "heads": heads, "relations": relations, "lemmas": lemmas}
    uses |= {"document": document, "target": target}
    by_use = {use: column for use, column in uses.items() if column is not None}
    title, columns, rows = _opened(data)
    if columns is None and (by_use or text):
        raise InputError(f"{title} has texts that are annotated already, and no columns: name none")
    if columns is not None and (text is not None or words is None):
        if text is None and _TEXT not in columns and len(columns) != 1:
            named = ", ".join(map(str, columns))
            raise InputError(f"{title} has columns {named}: say which is the text, as in text={columns[0]!r}")
        by_use[_TEXT] = text or (_TEXT if _TEXT in columns else columns[0])
    for column in by_use.values():
        if (columns or []).count(column) != 1:
            listed = ", ".join(map(str, columns or ()))
            raise InputError(f'expected one column "{column}" in {title}, which has {listed}')
    labels = _class_labels(data, by_use)
    if isinstance(data, pd.DataFrame):
        rows = data.filter([*dict.fromkeys(by_use.values())]).to_dict("records")

    def texts(name: str) -> Iterator[AnnotatedText | None]:
        """The text of each row, None where it has none; what no column names is a document of its number."""
        for number, row in enumerate(rows):
            with inside(f"{title}, row {number}"):
                yield _text(row, f"{name}:{number}", by_use, labels)

    sha, n_texts, n_empty, annotates = hashlib.sha256(), 0, 0, None
    for entry in texts("row"):  # whatever the corpus is called
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


def _text(
    row: Any, document: str, columns: Mapping[str, Any], labels: Mapping[str, Sequence[str]]
) -> AnnotatedText | None:
    """The text of a row; `columns` are by use ("text", "words", "tags"), and so is what numbers stand for."""
    if isinstance(row, AnnotatedText):
        return row if row.words else None
    if isinstance(row, str) or _is_missing(row):
        row = {_TEXT: row}
    if not isinstance(row, Mapping):
        raise InputError(f"expected a string, a mapping by column or an AnnotatedText, got {type(row).__name__}")
    if lacking := [column for column in columns.values() if column not in row]:
        raise InputError(f'expected a value of "{lacking[0]}", got {", ".join(map(str, row)) or "nothing"}')
    values = {use: row[column] for use, column in columns.items()}
    use = "words" if "words" in values else _TEXT
    if _is_missing(values[use]):
        return None
    for name in ("target", _TEXT) if use == _TEXT else ("target",):
        if not isinstance(values.get(name, ""), str):
            raise InputError(f'expected a string in "{columns[name]}", got {values[name]!r}')
    names = ("words", "tags", "relations", "lemmas")
    lists: dict[str, Any] = {
        name: _strings(values[name], columns[name], labels.get(name, ())) for name in names if name in values
    }
    words = lists.pop("words") if use == "words" else tuple(values[_TEXT].split())
    if not words:
        return None
    if _is_missing(values.get("document", document)):
        raise InputError(f'expected the name of a document in "{columns["document"]}", got none')
    return AnnotatedText(
        words=words,
        space_after=_spaces(values[_TEXT], words) if use == "words" and _TEXT in values else (True,) * len(words),
        document=str(values.get("document", document)),
        heads=_heads(values["heads"], columns["heads"]) if "heads" in values else None,
        target=values.get("target"),
        **lists,
    )


def _strings(value: Any, column: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """A list of strings, or of numbers that stand for some."""
    entries = _list(value, column)
    is_label = [isinstance(entry, (int, np.integer)) and 0 <= entry < len(labels) for entry in entries]
    strings = [labels[int(entry)] if known else entry for entry, known in zip(entries, is_label, strict=True)]
    if wrong := [string for string in strings if not isinstance(string, str) or not string.strip()]:
        raise InputError(f'expected a list of strings in "{column}", got one with {wrong[0]!r}')
    return tuple(strings)


def _heads(value: Any, column: Any) -> tuple[int, ...]:
    """Heads as we count them, from 0 and with ROOT, of what CoNLL-U counts."""
    heads = [str(head) for head in _list(value, column)]
    if wrong := [head for head in heads if not head.isdecimal()]:
        raise InputError(f"expected heads numbered as in CoNLL-U, 1 the first word and 0 for the root, got {wrong[0]}")
    return tuple(int(head) - 1 if head != "0" else ROOT for head in heads)


def _spaces(text: Any, words: Sequence[str]) -> tuple[bool, ...]:
    """Whether a space follows each word in the text that they spell."""
    spaces, rest = [], text.lstrip() if isinstance(text, str) else ""
    for word in words:
        if not rest.startswith(word):
            raise InputError(f"expected the words to spell the text, got {word!r} where it goes on {rest[:30]!r}")
        rest = rest[len(word) :]
        spaces.append(rest[:1].isspace() or not rest)
        rest = rest.lstrip()
    if rest:
        raise InputError(f"expected the words to spell the text, got none for {rest[:30]!r}")
    return tuple(spaces)


def _list(value: Any, column: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        raise InputError(f'expected a list, one value a word, in "{column}", got {value!r}')
    return list(value)


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _opened(data: Any) -> tuple[str, list[Any] | None, Iterable[Any]]:
    """What the data is, where it has no name; its columns, None where rows are texts; and its rows as of now."""
    match data:
        case str() | bytes() | PurePath():
            advice = "corpora.read opens files, take([text]) takes one text"
            raise InputError(f"expected rows, got one string or path: {advice}")
        case pd.DataFrame():
            return "a frame", list(data.columns), ()
        case pd.Series():
            return "a series" if data.name is None else f"series {data.name}", [_TEXT], list(data)
        case list() | tuple():
            title, rows = "a list", list(data)
        case Mapping():
            names, first = ", ".join(map(str, data)), next(iter(data), "")
            raise InputError(f'expected rows, got a mapping of {names}: take one of these, as in data["{first}"]')
        case Iterator():
            raise InputError(f"expected rows that can be read again, got a {type(data).__name__}: take(list(...))")
        case Iterable():
            name, split = getattr(getattr(data, "info", None), "dataset_name", None), getattr(data, "split", None)
            title, rows = " ".join(map(str, filter(None, [name or type(data).__name__, split]))), data
        case _:
            raise InputError(f"expected rows (a frame, a dataset, a list), got {type(data).__name__}")
    if (names := getattr(data, "column_names", None)) is not None:
        return title, list(names), rows
    first = next(iter(rows), None)
    columns = None if isinstance(first, AnnotatedText) else list(first) if isinstance(first, Mapping) else [_TEXT]
    return title, columns, rows


def _class_labels(data: Any, by_use: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """By use, the names of class labels, where `datasets` keeps numbers in their place."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return {}
    inner = {use: getattr(features.get(column), "feature", None) for use, column in by_use.items()}
    return {use: names for use, feature in inner.items() if (names := getattr(feature, "names", None))}


def random_ids(model: Model, seed: int = 0) -> Corpus:
    """100 texts of 64 random ids, or of as many as the context holds; in each half as many ids come again and again."""
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
    """Whether a corpus, told from its first text, is of ids that `model` knows."""
    tokenizer, first = TokenIds(min(stack.d_vocab for stack in model.config.stacks.values())), next(iter(corpus), None)
    return first is not None and all(map(tokenizer.knows, first.words))
