"""Which text is in a row of a table in memory, of Parquet, JSON Lines or `datasets`? One text per row."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import pandas as pd

from analyses.corpora.reader import Format, Lines
from interp.annotation import ROOT, AnnotatedText
from interp.bounded_files import EXPANDS, UNCHECKED, opened
from interp.errors import InputError, InputWarning
from models.huggingface.model_files import files_digest

TEXT = "text"  # the default column, also of rows that are strings
MAGIC, _BATCH = "PAR1", 64  # the first bytes of Parquet; rows in memory


def parse(rows: Lines, labels: Mapping[str, Sequence[str]] | None = None) -> Iterator[AnnotatedText]:
    """One text per row (a mapping or a JSON line), by the first row's columns; a warning counts rows without text."""
    by_use, n_empty = None, 0
    for row in rows:
        if isinstance(row, str) and not row.strip():
            continue
        values = json_object(row, "expected one JSON object a line") if isinstance(row, str) else row
        by_use = by_use or columns_of([*values])
        if text := text_of(values, f"{rows.source}:{rows.number}", by_use, labels or {}):
            yield text
        n_empty += text is None
    if n_empty:
        warn(f"{rows.source}: {n_empty:,} of {rows.number:,} rows have no text and are left out", InputWarning, 2)


def columns_of(names: Sequence[Any]) -> dict[str, str]:
    """The columns named like arguments of `from_rows`; annotation only counts with `words`."""
    uses = (TEXT, "document", *(("words", "tags", "heads", "relations", "lemmas") if "words" in names else ()))
    if by_use := {use: use for use in uses if use in names and {TEXT, "words"} & {*names}}:
        return by_use
    got = ", ".join(map(str, names)) or "none"
    raise InputError(
        f'expected a column "text" or "words", got {got}: rename one, or corpora.from_rows(rows, text=...)'
    )


def json_object(line: str, expected: str) -> dict[str, Any]:
    """The object in a line of JSON; errors say what was `expected`."""
    try:
        row = dict(json.loads(line))
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no character
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{expected}, got no such object ({error})") from None
    return row


def parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file, a few in memory at a time; raises like `stream`."""
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 (slow to import, and few files are Parquet)

    with opened(path) as file, _reading(str(path)):
        table = ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)  # else it keeps all it has read
        columns, left = [*columns_of(table.schema_arrow.names)], max(UNCHECKED, EXPANDS * path.stat().st_size)
        for batch in table.iter_batches(_BATCH, columns=columns, use_threads=False):
            if (left := left - batch.nbytes) < 0:
                raise InputError(f"it unpacks to more than {EXPANDS} times its size: expected no such texts")
            yield from batch.to_pylist()


def stream(address: str) -> tuple[str, str, Callable[[], Iterator[AnnotatedText]]]:
    """The name, the digest and a stream of the texts of `NAME:CONFIG:SPLIT`, by `datasets`.

    NAME is `ORG/NAME` or `ORG/NAME@REVISION` on the hub, or a folder; SPLIT is `train` by default, or `test[:1000]`.
    The digest covers configuration, split, and commit or files. No code of the data set is run.

    Raises:
        InputError: `datasets` is not installed or cannot open the data set, or columns are missing.
    """
    place, config, split = [*address.split(":", 2), "", ""][:3]
    part = re.fullmatch(r"([\w.-]+)(?:\[:([1-9]\d{0,17})\])?", split or "train", re.ASCII)
    if not place or not part:
        raise InputError(f'"datasets:{address}": expected NAME:CONFIG:SPLIT, SPLIT as train or train[:1000]')
    is_local, (path, _, revision) = Path(place).is_dir(), place.partition("@")
    where = (str(Path(place).absolute()), None) if is_local else (path, revision or None)
    with _reading(f"datasets:{address}"):
        if find_spec("datasets") is None:
            raise InputError('it needs an extra: pip install "interp[datasets]"')
        from datasets import load_dataset_builder  # noqa: PLC0415 (needs the extra)

        builder = load_dataset_builder(where[0], config or None, revision=where[1])
        data: Any = builder.as_streaming_dataset(part[1])
        by_use = columns_of(data.column_names or [*next(iter(data), (TEXT,))])
        data = data.select_columns([*by_use]).take(int(part[2] or 1 << 62))
    origin, rest = place if is_local else f"{path}@{builder.hash}", f"{builder.config.name}:{part[0]}"
    name, files = f"datasets:{origin}:{rest}", builder.config.data_files or {}
    if is_local:
        origin = files_digest(map(Path, files[part[1]] if part[1] in files else chain(*files.values())))

    def rows() -> Iterator[Any]:
        with _reading(name):
            yield from data

    form = Format("datasets", "", "", None, partial(parse, labels=class_labels(data, by_use)), unit="row")
    return name, hashlib.sha256(f"{origin}\n{rest}".encode()).hexdigest(), lambda: form.texts(rows(), name)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # from Arrow, `datasets`, its network library or the system
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{name} cannot be read: {reason}") from error


def text_of(
    row: Any, document: str, columns: Mapping[str, Any], labels: Mapping[str, Sequence[str]]
) -> AnnotatedText | None:
    """A row's text, None if it has none; `columns` and class `labels` are keyed by use ("text", "words", "tags")."""
    if isinstance(row, AnnotatedText):
        return row if row.words else None
    if isinstance(row, str) or _is_missing(row):
        row = {TEXT: row}
    if not isinstance(row, Mapping):
        raise InputError(f"expected a string, a mapping by column or an AnnotatedText, got {type(row).__name__}")
    if lacking := [column for column in columns.values() if column not in row]:
        raise InputError(f'expected a value of "{lacking[0]}", got {", ".join(map(str, row)) or "nothing"}')
    values = {use: row[column] for use, column in columns.items()}
    use = "words" if "words" in values else TEXT
    if _is_missing(values[use]):
        return None
    for name in ("target", TEXT) if use == TEXT else ("target",):
        if not isinstance(values.get(name, ""), str):
            raise InputError(f'expected a string in "{columns[name]}", got {values[name]!r}')
    names = ("words", "tags", "relations", "lemmas")
    lists: dict[str, Any] = {
        name: _strings(values[name], columns[name], labels.get(name, ())) for name in names if name in values
    }
    words = lists.pop("words") if use == "words" else tuple(values[TEXT].split())
    if not words:
        return None
    if _is_missing(values.get("document", document)):
        raise InputError(f'expected the name of a document in "{columns["document"]}", got none')
    return AnnotatedText(
        words=words,
        space_after=_spaces(values[TEXT], words) if use == "words" and TEXT in values else (True,) * len(words),
        document=str(values.get("document", document)),
        heads=_heads(values["heads"], columns["heads"]) if "heads" in values else None,
        target=values.get("target"),
        **lists,
    )


def _strings(value: Any, column: Any, labels: Sequence[str]) -> tuple[str, ...]:
    """Strings from a list of strings, or of class labels' numbers."""
    entries = _list(value, column)
    is_label = [isinstance(entry, (int, np.integer)) and 0 <= entry < len(labels) for entry in entries]
    strings = [labels[int(entry)] if has_label else entry for entry, has_label in zip(entries, is_label, strict=True)]
    if wrong := [string for string in strings if not isinstance(string, str) or not string.strip()]:
        raise InputError(f'expected a list of strings in "{column}", got one with {wrong[0]!r}')
    return tuple(strings)


def _heads(value: Any, column: Any) -> tuple[int, ...]:
    """Heads counted from 0, with ROOT, from CoNLL-U's heads."""
    heads = [str(head) for head in _list(value, column)]
    if wrong := [head for head in heads if not head.isdecimal()]:
        raise InputError(f"expected heads numbered as in CoNLL-U, 1 the first word and 0 for the root, got {wrong[0]}")
    return tuple(int(head) - 1 if head != "0" else ROOT for head in heads)


def _spaces(text: Any, words: Sequence[str]) -> tuple[bool, ...]:
    """Whether a space follows each word in the text."""
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
        raise InputError(f'expected a list, one value per word, in "{column}", got {value!r}')
    return list(value)


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def class_labels(data: Any, by_use: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """By use, the names of class labels, which `datasets` stores as numbers."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return {}
    inner = {use: getattr(features.get(column), "feature", None) for use, column in by_use.items()}
    return {use: names for use, feature in inner.items() if (names := getattr(feature, "names", None))}
