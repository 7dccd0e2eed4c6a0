"""Which of two sentences is grammatical? Minimal pairs in BLiMP's JSON Lines (Warstadt et al. 2020)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from analyses.corpora.text_rows import json_object
from interp.bounded_files import lines
from interp.errors import InputError, inside

_KEYS = {  # for the good, then the bad sentence: the text before the deciding word, and that word
    "one_prefix_method": ("one_prefix_prefix", "one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad"),
    "two_prefix_method": ("two_prefix_prefix_good", "two_prefix_prefix_bad", "two_prefix_word", "two_prefix_word"),
}
_EXPECTED = "expected pairs of sentences as BLiMP has them, one JSON object a line"


class Sentence(NamedTuple):
    """A sentence, the text before the word that decides whether it is good, and that word (empty if none does)."""

    text: str
    before: str = ""
    word: str = ""


def read_sentences(file: str | Path) -> list[tuple[Sentence, Sentence]]:
    """Each line's good and bad sentence, from a plain or compressed file; seven lines of BLiMP have equal ones."""
    return [(good, bad) for _, good, bad in read_rows(file)]


def read_rows(file: str | Path) -> Iterator[tuple[dict[str, Any], Sentence, Sentence]]:
    """The same pairs, each after all fields of its line, such as `UID`."""
    is_empty = True
    for number, line in enumerate(lines(Path(file)), 1):
        if line.strip():
            with inside(f"{file}, line {number}"):
                row = json_object(line, _EXPECTED)
                pair = _pair(row)
            yield row, *pair
            is_empty = False
    if is_empty:
        raise InputError(f"{file} is empty: {_EXPECTED}")


def _pair(row: Mapping[str, Any]) -> tuple[Sentence, Sentence]:
    keys = "sentence_good", "sentence_bad", *next((keys for method, keys in _KEYS.items() if row.get(method)), ())
    if wrong := [key for key in keys if not isinstance(row.get(key), str) or not row[key].strip()]:
        raise InputError(f'expected a text as "{wrong[0]}", got {row.get(wrong[0])!r:.80}')
    return Sentence(*(row[key].strip() for key in keys[::2])), Sentence(*(row[key].strip() for key in keys[1::2]))
