"""Which items of a measure are of one sort? A few declared strata, in which a head may do part of the job.

Whether a rule is right is no stratum: where it errs, any second rule would earn a name. The pairs that a causal model
predicts in the row before their first word are also here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from analyses.corpora.mentions import GENDERED, PRONOUNS, is_pronoun
from analyses.measures.definitions import DECLARED, Measure
from analyses.reading.windows import by_text
from analyses.scoring.antecedents import AntecedentItem
from analyses.wording.plain_words import Label
from interp.annotation import ROOT, AnnotatedText

Pair = tuple[int, int, int, int]  # as in `analyses.scoring.rules`
OF_PAIRS, OF_PRONOUNS = (tuple(DECLARED["strata"][name]) for name in ("pairs", "pronouns"))
STRATIFIED: frozenset[str] = frozenset(DECLARED["strata"]["measures"])  # measures with strata
_NOMINAL = ("NOUN", "PROPN", "PRON")
_GENDERS = {PRONOUNS[form] for form in GENDERED}


def of_pair(text: AnnotatedText, query: int, target: int) -> list[str]:
    """The strata of two words in a tagged text, by what is strictly between them.

    An attractor is a noun or name that differs in number from the pair's noun, name or pronoun (by features).
    """
    tags, feats = text.tags or (), text.feats
    between = range(min(query, target) + 1, max(query, target))
    nominals = [word for word in between if tags[word] in _NOMINAL]
    end = next((word for word in (target, query) if tags[word] in _NOMINAL), None)
    numbers, number = set[str](), feats[end].get("Number") if feats is not None and end is not None else None
    if feats is not None and number:
        numbers = {feats[word].get("Number", number) for word in nominals if tags[word] != "PRON"} - {number}
    holds = not between, len(nominals) == 1, bool(numbers), any(tags[word] == "VERB" for word in between)
    return [name for name, is_so in zip(OF_PAIRS, holds, strict=True) if is_so]


def of_pronoun(item: AntecedentItem) -> list[str]:
    """The strata of a pronoun, by its nearest true antecedent, and whether a mention of the other gender is nearer."""
    last = max(number for number, right in enumerate(item.correct) if right)
    pronoun, name = is_pronoun(item.forms[last]), item.capitals[last]
    others = _GENDERS - {PRONOUNS.get(item.form)}
    nearer = any(gender in others for gender in item.genders[last + 1 :])
    holds = name and not pronoun, not name and not pronoun, pronoun, nearer
    return [name for name, is_so in zip(OF_PRONOUNS, holds, strict=True) if is_so]


def narrowed(measure: Measure, stratum: str, **fields: Any) -> Measure:
    """The measure restricted to one stratum; `fields` has the stratum's claims."""
    label = Label.parse(measure.name)._replace(stratum=stratum)
    alone: dict[str, Any] = {"label": "", "together": "", "reference": "", "recorded": ""}
    alone |= {"name": str(label), "title": f"{measure.title}, {stratum}", "words": measure.words.within(stratum)}
    return replace(measure, **alone, **fields)


def in_strata(
    pairs: Callable[[AnnotatedText], list[Pair]], columns: Mapping[int, Mapping[str, int]]
) -> Callable[[AnnotatedText], list[Pair]]:
    """The pairs, plus copies by stratum for some measures; `columns` maps measures to the strata's numbers."""

    def pairs_and_strata(text: AnnotatedText) -> list[Pair]:
        rows = pairs(text)
        stratified = [row for row in rows if row[2] in columns] if text.tags is not None else []
        for query, target, column, word in stratified:
            rows += [(query, target, columns[column][name], word) for name in of_pair(text, query, target)]
        return sorted(rows)

    return pairs_and_strata


def strata_of(measures: Sequence[Measure]) -> tuple[list[Measure], dict[int, dict[str, int]]]:
    """All strata of the measures, as measures; and for each measure the numbers of its strata."""
    narrow: list[Measure] = []
    columns: dict[int, dict[str, int]] = {}
    for number, measure in enumerate(measures):
        for stratum in OF_PAIRS if measure.name in STRATIFIED else ():
            columns.setdefault(number, {})[stratum] = len(measures) + len(narrow)
            narrow.append(narrowed(measure, stratum, pairs=partial(_in_stratum, measure, stratum)))
    return narrow, columns


def _in_stratum(measure: Measure, stratum: str, text: AnnotatedText) -> list[tuple[int, int]]:
    assert measure.pairs is not None
    return [pair for pair in measure.pairs(text) if stratum in of_pair(text, *pair)]


PREDICTED = (
    *(("nsubj", "head->dependent"), ("obj", "dependent->head")),
    *(("aux-subject", "dependent->head"), ("reflexive", "dependent->head")),
)
"""What a causal model predicts: verbs from their subject, objects from their verb, auxiliaries, copulas and reflexives
from the subject of their head."""
_FINITE = {"aux", "aux:pass", "cop"}


@by_text
def predicted(text: AnnotatedText) -> list[Pair]:
    """The pairs of `PREDICTED`, each read in the row before its first word."""
    heads, relations = text.heads or (), text.relations or ()
    edges_of_text = [*enumerate(zip(heads, relations, strict=False))]
    subjects = {head: word for word, (head, name) in edges_of_text if name in {"nsubj", "nsubj:pass"}}
    pairs: list[Pair] = []
    for word, (head, name) in edges_of_text:
        subject = subjects.get(head)
        if name == "nsubj" and head != ROOT:
            pairs.append((head, word, 0, word))
        elif name == "obj" and head != ROOT:
            pairs.append((word, head, 1, word))
        elif name in _FINITE and subject is not None:
            pairs.append((word, subject, 2, word))
        if subject not in {None, word} and text.words[word].lower().endswith(("self", "selves")):
            pairs.append((word, subjects[head], 3, word))
    return sorted(pairs)
