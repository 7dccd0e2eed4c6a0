"""How are minimal pairs written down? In columns of texts, from a CSV file or typed, with one rule for answers."""

import csv
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxtyping import Int
from torch import Tensor

from interp.bounded_files import whole
from interp.errors import InputError, InputWarning
from interp.indices import is_number
from interp.tokens import Span, Tokenizer

COLUMNS = ("clean", "corrupt", "answer", "wrong")
FIXED = ("target", "source")  # what the decoder (or the encoder) reads for both prompts of a pair
TEMPLATE = "template"  # the column with each pair's template
POSITION = "position:"  # prefix of columns with named positions
_MARK = re.compile(r"\{([A-Za-z][\w+-]*):([^{}]*)\}")
_LARGEST = 1 << 26  # largest file of pairs, in bytes
Place = int | str | Span | Callable[[str], int | str | Span]
"""A token of a prompt: its position (negative from the end), words that occur once, a span (first character, one after
the last), or a function that finds one of these in the prompt. A span of several tokens means its last token."""
NamedPlaces = Mapping[str, Place | list[Place] | Sequence[Place] | Int[Tensor, " prompt"]]
"""By name: one place for all prompts, or a list or tensor with one per prompt."""
Columns = Mapping[str, Sequence[Any]]  # texts, and positions as numbers


def read_columns(
    file: str | Path, required: Sequence[str] = COLUMNS, also: Sequence[str] = (*FIXED, TEMPLATE)
) -> dict[str, list[str]]:
    """The columns of a CSV file of pairs: the `required` ones, any of `also`, and `position:NAME`."""
    if not Path(file).is_file():
        raise InputError(f"no file {file}: expected a CSV file of prompts")
    try:
        content = whole(Path(file), _LARGEST).removeprefix("\ufeff")
        rows = [row for row in csv.reader(io.StringIO(content, newline=""), strict=True) if row]
    except (InputError, csv.Error) as error:
        raise InputError(f"cannot read {file} as CSV: {error}") from error
    if not rows:
        raise InputError(f"{file} is empty: expected columns {', '.join(required)}")
    header, *rows = rows
    if missing := [name for name in required if name not in header]:
        columns = "the column" if len(missing) == 1 else "the columns"
        has = ", ".join(header) + "; put commas between columns" * (len(header) == 1)
        raise InputError(f"{file} lacks {columns} {', '.join(missing)}: it has {has}")
    if long := [number for number, row in enumerate(rows, 1) if len(row) > len(header)]:
        raise InputError(f"row {long[0]} of {file} has more fields than the header: put quotes round texts with commas")
    if not rows:
        raise InputError(f"{file} has a header and no rows: expected one pair per row")
    names = [name for name in header if name in (*required, *also) or name.removeprefix(POSITION) not in ("", name)]
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise InputError(f"{file} has the column {twice[0]} twice: expected one, so leave the other out or rename it")
    full = [row + [""] * (len(header) - len(row)) for row in rows]
    return {name: [row[header.index(name)] for row in full] for name in names}


def with_space(prompt: str, answer: str) -> str:
    """The answer as it continues the prompt: a bare word gets the space that a shell or a table cell strips."""
    return f" {answer}" if answer[:1].isalpha() and not prompt[-1:].isspace() else answer


def warn_of_glued(tokenizer: Tokenizer, prompts: Sequence[str], *answers: Sequence[str]) -> None:
    """Warn if an answer follows a word without a space and would be another token with one."""
    pairs = [pair for column in answers for pair in zip(prompts, column, strict=True)]
    pairs = [(prompt, answer) for prompt, answer in pairs if answer[:1].isalnum() and prompt[-1:].isalnum()]
    glued = [pair for pair in pairs if tokenizer.continuation(pair[1]) != tokenizer.continuation(f" {pair[1]}")]
    if glued:
        prompt, answer = glued[0]
        word, rest = prompt.split()[-1], f" (and {len(glued) - 1} more)" if len(glued) > 1 else ""
        follows = f"the answer {answer!r} follows {word!r} without a space, as {word + answer!r}{rest}"
        warnings.warn(f"{follows}: if it is a word of its own, write {' ' + answer!r}", InputWarning, stacklevel=4)


def warn_of_pieces(tokenizer: Tokenizer, answers: Sequence[tuple[str, str]]) -> None:
    """Warn if an answer has more pieces than the one that is scored, as a misspelt word has."""
    parts = []
    for pair in answers:
        right, wrong = map(tokenizer.continuation, pair)
        scored = first_difference(right, wrong) or 0
        parts += [(each, ids, scored) for each, ids in zip(pair, (right, wrong), strict=True) if len(ids) > scored + 1]
    if parts:
        answer, ids, scored = parts[0]
        rest = f" (and {len(parts) - 1} more)" if len(parts) > 1 else ""
        pieces, spaced = [*map(repr, tokenizer.labels(ids))], f" {answer}"
        advice = f"write {spaced!r}" if len(tokenizer.continuation(spaced)) < len(ids) else "take another word"
        text = f"the answer {answer!r} has {len(ids)} pieces, {' + '.join(pieces)}, and only {pieces[scored]} is scored"
        warnings.warn(f"{text}{rest}: check the spelling, or {advice}", InputWarning, stacklevel=3)


def first_difference(right: Sequence[int], wrong: Sequence[int]) -> int | None:
    """The first piece in which two answers differ; None if one begins with the other."""
    return next((index for index, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), None)


def unmarked(text: str) -> tuple[str, dict[str, Span]]:
    """A text without its braces, and the characters that each `{NAME:words}` marked."""
    spans: dict[str, Span] = {}
    plain, end = "", 0
    for mark in _MARK.finditer(text):
        name, words = mark.groups()
        if name in spans:
            raise InputError(f"{text!r} marks {name} twice: expected one place per name")
        plain += text[end : mark.start()]
        spans[name] = (len(plain), len(plain) + len(words))
        plain, end = plain + words, mark.end()
    return plain + text[end:], spans


def place(cell: Any) -> int | str:
    """The content of a position cell: a number, or a word of the clean prompt."""
    text = str(cell)
    try:
        return int(text) if len(text) < 20 else text
    except ValueError:
        return text


def each_place(named: NamedPlaces, n_prompts: int) -> dict[str, list[Place | None]]:
    """Each name's places, one per prompt."""
    columns: dict[str, list[Place | None]] = {}
    for name, place in named.items():
        if isinstance(place, int | str | tuple) or is_number(place) or callable(place):
            columns[name] = [cast(Place, place)] * n_prompts
        else:
            columns[name] = [*(place.tolist() if isinstance(place, Tensor) else place)]
        if len(columns[name]) != n_prompts:
            raise InputError(f"expected one position {name} for each of {n_prompts} prompts, got {len(columns[name])}")
    return columns


def position_of(name: str, place: Place | None, text: str, spans: Sequence[Span], n_special: int, length: int) -> int:
    """The position of a place in a prompt of `length` tokens: `n_special` special ones, then those with `spans`."""
    if place is None:
        raise InputError(f"no {name} is marked in {text!r}: expected {{{name}:words}}")
    if callable(place):
        place = place(text)
    if isinstance(place, str):
        place = _words(name, place.strip(), text)
    if isinstance(place, tuple):
        start, end = place
        pieces = [index for index, (first, last) in enumerate(spans) if first < end and last > start]
        if not pieces:
            raise InputError(f"no token of {text!r} lies in characters {start} to {end}, the place of {name}")
        return n_special + pieces[-1]
    if not is_number(place) or not -length <= place < length:
        raise InputError(f"no position {place} for {name} in {text!r}, which has {length} tokens")
    return place % length


def _words(name: str, words: str, text: str) -> Span:
    alone = rf"(?<![^\W_])(?={re.escape(words)}(?![^\W_]))"
    starts = [match.start() for match in re.finditer(alone, text)] if words else []
    if len(starts) != 1:
        fault = f"occurs {len(starts)} times in" if starts else "is no word of"
        advice = f"give its (first character, end), or in a table of pairs mark it as {{{name}:{words}}}"
        raise InputError(f"{words!r}, the place of {name}, {fault} {text!r}: {advice}")
    return starts[0], starts[0] + len(words)
