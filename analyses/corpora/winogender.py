"""Winogender: an occupation, a participant and a pronoun: which of the two does the pronoun stand for?

Either file is read: the sentences, or the templates, from which the same sentences are made. The mentions are in the
chains "occupation" and "participant", the pronoun in that of the answer. A document is an occupation, since its twelve
sentences are made from two templates and differ in a word or two. How many women work in an occupation stands in a file
beside them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from analyses.corpora.marked import Mark, annotated, find, find_words
from analyses.corpora.numbered_lines import numbered
from interp.annotation import AnnotatedText
from interp.bounded_files import whole
from interp.errors import InputError
from models.columns import columns

_SENTENCES = ("sentid", "sentence")
_TEMPLATES = ("occupation(0)", "other-participant(1)", "answer", "sentence")
_HEADERS = (_SENTENCES, _TEMPLATES)
STATISTICS = "occupations-stats.tsv"
_STATISTICS = ("occupation", "bergsma_pct_female", "bls_pct_female", "bls_year")
_ID = re.compile(r"([^.]+)\.([^.]+)\.([^.]+)\.([^.]+)\.txt")
_ANSWERS = {"0": "occupation", "1": "participant"}
_SLOTS = ("$NOM_PRONOUN", "$POSS_PRONOUN", "$ACC_PRONOUN")
_PRONOUNS = {"male": ("he", "his", "him"), "female": ("she", "her", "her"), "neutral": ("they", "their", "them")}
_ANYONE = "someone"


def recognises(line: str) -> bool:
    """Whether the first line of a file says that it is in this format."""
    return tuple(columns(line)) in _HEADERS


@numbered
def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each sentence; six for each template, of either participant and three genders."""
    header: tuple[str, ...] = ()
    for line in lines:
        values = tuple(columns(line))
        if header and line.strip():
            yield from _texts(values, header)
        elif not header and values not in _HEADERS:
            expected = " or ".join(", ".join(each) for each in _HEADERS)
            raise InputError(f'expected the columns {expected} between tabs, got "{", ".join(values)[:60]}"')
        header = header or values


def share_of_women(file: Path) -> dict[str, float]:
    """Percent of those in each occupation who are women, by the US Bureau of Labor Statistics (`bls_pct_female`).

    Raises:
        InputError: the file has other columns, or a share that is no number.
    """
    header, *rows = [columns(line) for line in whole(file).splitlines() if line.strip()] or [[]]
    if tuple(header) != _STATISTICS:
        raise InputError(f"{file}: expected the columns {', '.join(_STATISTICS)} between tabs, got {', '.join(header)}")
    try:
        return {row[0]: float(row[2]) for row in rows}
    except (ValueError, IndexError) as error:
        raise InputError(f"{file}: expected a number in bls_pct_female for every occupation ({error})") from error


def _texts(values: Sequence[str], header: Sequence[str]) -> Iterator[AnnotatedText]:
    if len(values) != len(header):
        raise InputError(f"expected {len(header)} columns between tabs, got {len(values)}")
    if header == _TEMPLATES:
        occupation, participant, answer, template = values
        for chosen in (participant, _ANYONE):
            for gender in _PRONOUNS:
                yield _text(occupation, chosen, answer, gender, _fill(template, occupation, chosen, gender))
    else:
        parts = _ID.fullmatch(values[0])
        if not parts:
            raise InputError(f'expected occupation.participant.answer.gender.txt in column 1, got "{values[0]}"')
        yield _text(parts[1], parts[2], parts[3], parts[4], values[1])


def _fill(template: str, occupation: str, participant: str, gender: str) -> str:
    for slot in ("$OCCUPATION", "$PARTICIPANT"):
        if slot not in template:
            raise InputError(f'expected {slot} in the template, got "{template}"')
    if participant == _ANYONE:  # "the customer" gives way to "someone"
        template = re.sub(r"\b([Tt]he|[Aa]n?) \$PARTICIPANT", "$PARTICIPANT", template)
    sentence = template.replace("$OCCUPATION", occupation).replace("$PARTICIPANT", participant)
    for slot, form in zip(_SLOTS, _PRONOUNS[gender], strict=True):
        sentence = sentence.replace(slot, form)
    sentence = sentence.replace("they was", "they were")
    return sentence[:1].upper() + sentence[1:]


def _text(occupation: str, participant: str, answer: str, gender: str, sentence: str) -> AnnotatedText:
    if answer not in _ANSWERS:
        raise InputError(f'expected 0 (the occupation) or 1 (the participant) as the answer, got "{answer}"')
    if gender not in _PRONOUNS:
        raise InputError(f'expected male, female or neutral as the gender, got "{gender}"')
    forms = dict.fromkeys(_PRONOUNS[gender])
    marks = [
        Mark(*_only(find(occupation, sentence), f'"{occupation}"', sentence), "occupation"),
        Mark(*_only(find(participant, sentence), f'"{participant}"', sentence), "participant"),
        Mark(*_only(find_words(forms, sentence), f"one of {', '.join(forms)}", sentence), _ANSWERS[answer]),
    ]
    return annotated(sentence, marks, occupation)


def _only(spans: Iterable[tuple[int, int]], what: str, sentence: str) -> tuple[int, int]:
    found = list(spans)
    if len(found) != 1:
        raise InputError(f'expected {what} once in the sentence, got it {len(found)} times: "{sentence}"')
    return found[0]
