"""Winogender: an occupation, a participant and a pronoun: which of the two does the pronoun stand for?

The mentions are in the chains "occupation" and "participant", the pronoun in that of the answer. A document is an
occupation, since its twelve sentences are made from two templates and differ in a word or two. How many women work in
an occupation stands in a file beside them.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from analyses.corpora.marked import Mark, annotated, find, find_words, rows
from analyses.corpora.reader import Lines
from interp.annotation import AnnotatedText
from interp.bounded_files import lines
from interp.errors import InputError, inside, one_of

COLUMNS = ("sentid", "sentence")
STATISTICS = "occupations-stats.tsv"
_STATISTICS = ("occupation", "bergsma_pct_female", "bls_pct_female", "bls_year")
_ID = re.compile(r"([^.]+)\.([^.]+)\.([^.]+)\.([^.]+)\.txt")
_ANSWERS = {"0": "occupation", "1": "participant"}
_PRONOUNS = {"male": ("he", "his", "him"), "female": ("she", "her", "her"), "neutral": ("they", "their", "them")}


def parse(sentences: Lines) -> Iterator[AnnotatedText]:
    """One text for each sentence."""
    for row in rows(sentences, COLUMNS):
        parts = _ID.fullmatch(row["sentid"])
        if not parts:
            raise InputError(f'expected occupation.participant.answer.gender.txt in column 1, got "{row["sentid"]}"')
        yield _text(parts[1], parts[2], parts[3], parts[4], row["sentence"])


def share_of_women(file: Path) -> dict[str, float]:
    """Percent of those in each occupation who are women, by the US Bureau of Labor Statistics (`bls_pct_female`).

    Raises:
        InputError: the file has other columns, or a share that is no number.
    """
    with inside(str(file)):
        shares = {row["occupation"]: row["bls_pct_female"] for row in rows(Lines(lines(file), str(file)), _STATISTICS)}
        try:
            return {occupation: float(share) for occupation, share in shares.items()}
        except ValueError as error:
            raise InputError(f"expected a number in bls_pct_female for every occupation ({error})") from error


def _text(occupation: str, participant: str, answer: str, gender: str, sentence: str) -> AnnotatedText:
    if answer not in _ANSWERS:
        raise InputError(f'expected 0 (the occupation) or 1 (the participant) as the answer, got "{answer}"')
    forms = dict.fromkeys(_PRONOUNS[one_of("gender", gender, _PRONOUNS)])
    marks = [
        Mark(*_only(find(occupation, sentence), f'"{occupation}"', sentence), "occupation"),
        Mark(*_only(find(participant, sentence), f'"{participant}"', sentence), "participant"),
        Mark(*_only(find_words(forms, sentence), f"one of {', '.join(forms)}", sentence), _ANSWERS[answer]),
    ]
    return annotated(sentence, marks, occupation)


def _only(matches: Iterable[tuple[int, int]], what: str, sentence: str) -> tuple[int, int]:
    spans = list(matches)
    if len(spans) != 1:
        raise InputError(f'expected {what} once in the sentence, got it {len(spans)} times: "{sentence}"')
    return spans[0]
