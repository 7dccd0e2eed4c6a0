"""Which earlier mention does a pronoun refer to? Items of antecedent selection, and baselines to beat.

An item is one pronoun and the head words of the mentions before it. A baseline scores each candidate, as a head
attends to it, so one scorer judges both.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property

from analyses.corpora.mentions import GENDERED, PRONOUNS, gender, is_pronoun
from analyses.measures.definitions import Rival
from interp.annotation import AnnotatedText, Mention

_ARGUMENTS = {"nsubj", "nsubj:pass", "obj", "iobj"}


@dataclass(frozen=True)
class AntecedentItem:
    """One pronoun with the words it may refer to. Tuples have one value per candidate, in text order."""

    pronoun: int  # word index of the pronoun in its text
    form: str  # the pronoun in lower case
    candidates: tuple[int, ...]  # word indices of the heads of earlier mentions, ascending
    correct: tuple[bool, ...]  # whether a candidate is in the pronoun's chain; at least one is, and one is not
    genders: tuple[str | None, ...]  # a candidate's gender by its words; None if unknown
    forms: tuple[str, ...]  # a candidate's head word in lower case
    capitals: tuple[bool, ...]  # whether the head word has a capital, like names (and first words of sentences)
    sentences: tuple[int, ...]  # the number of a candidate's sentence
    roles: tuple[str | None, ...]  # a candidate's dependency relation, if the text is parsed
    role: str | None  # the pronoun's relation

    def keeping(self, numbers: Sequence[int]) -> "AntecedentItem":
        """The item reduced to some of its candidates."""
        names = [each.name for each in fields(self) if isinstance(getattr(self, each.name), tuple)]
        return replace(self, **{name: tuple(getattr(self, name)[number] for number in numbers) for name in names})

    @cached_property
    def compatible(self) -> tuple[bool, ...]:
        """Whether a candidate fits the pronoun, by known gender or because it looks like a name."""
        return self._fitting({PRONOUNS.get(self.form)})

    @cached_property
    def person(self) -> tuple[bool, ...]:
        """Whether a candidate may be a person, by known gender or because it looks like a name."""
        return self._fitting({PRONOUNS[form] for form in GENDERED})

    def _fitting(self, genders: Collection[str | None]) -> tuple[bool, ...]:
        named = (capital and not is_pronoun(form) for capital, form in zip(self.capitals, self.forms, strict=True))
        return tuple(
            gender in genders or (gender is None and name) for gender, name in zip(self.genders, named, strict=True)
        )

    @property
    def named(self) -> bool:
        """Whether the nearest true antecedent is a name or a noun, not merely an earlier pronoun."""
        return not is_pronoun(self.forms[_last(self.correct)])


def antecedent_items(text: AnnotatedText, pronouns: Collection[str] | None = None) -> list[AntecedentItem]:
    """The pronouns of one text that have both a right and a wrong candidate before them, in order.

    Mentions that share a head word are one candidate, which is right if any of them is. `pronouns` are forms in lower
    case, by default he, him, his, himself, she, her, hers, herself. A text without chains has no items.
    """
    return items_and_left_out(text, pronouns)[0]


def items_and_left_out(
    text: AnnotatedText, pronouns: Collection[str] | None = None
) -> tuple[list[AntecedentItem], list[tuple[int, str]]]:
    """The `antecedent_items`, and each pronoun that makes no item with the reason, in order."""
    forms = frozenset(GENDERED if pronouns is None else pronouns)
    mentions = sorted(text.mentions or (), key=lambda mention: (mention.head, mention.end - mention.start))
    gender_of = cache(lambda number: gender(text, mentions[number]))  # a mention is a candidate of every later pronoun
    in_chain = Counter(mention.chain for mention in mentions)
    items, left_out = [], []
    for pronoun in mentions:
        if pronoun.end - pronoun.start > 1 or text.words[pronoun.head].lower() not in forms:
            continue
        item = _item(text, pronoun, mentions, gender_of)
        if in_chain[pronoun.chain] == 1:
            left_out.append((pronoun.head, "pronouns left out: they refer to no other mention"))
        elif not any(item.correct):
            left_out.append((pronoun.head, "pronouns left out: what they refer to comes only after them"))
        elif all(item.correct):
            left_out.append((pronoun.head, "pronouns left out: no wrong mention before them"))
        else:
            items.append(item)
    return items, left_out


def _item(
    text: AnnotatedText, pronoun: Mention, mentions: Sequence[Mention], gender_of: Callable[[int], str | None]
) -> AntecedentItem:
    """The item of a pronoun; `mentions` are sorted by head, with the shortest mention of a head first."""
    candidates, correct, genders = [], [], []
    for number, mention in enumerate(mentions):
        if mention.head >= pronoun.start:
            break
        if mention.end > pronoun.start:  # "the man who lost his hat" does not end before "his"
            continue
        right = mention.chain == pronoun.chain
        if candidates and candidates[-1] == mention.head:
            correct[-1] |= right
        else:
            candidates.append(mention.head)
            correct.append(right)
            genders.append(gender_of(number))  # of the shortest mention: "Tim", not "Tim and Sue"
    relations = text.relations
    return AntecedentItem(
        pronoun=pronoun.head,
        form=text.words[pronoun.head].lower(),
        candidates=tuple(candidates),
        correct=tuple(correct),
        genders=tuple(genders),
        forms=tuple(text.words[head].lower() for head in candidates),
        capitals=tuple(text.words[head][:1].isupper() for head in candidates),
        sentences=tuple(bisect_right(text.sentence_starts, head) for head in candidates),
        roles=tuple(relations[head] if relations else None for head in candidates),
        role=relations[pronoun.head] if relations else None,
    )


def _last(flags: Sequence[bool]) -> int:
    """The index of the last true flag, else the last index."""
    last = len(flags) - 1
    return last - flags[::-1].index(True) if True in flags else last


def _one_hot(item: AntecedentItem, choice: int) -> tuple[float, ...]:
    return (0.0,) * choice + (1.0,) + (0.0,) * (len(item.candidates) - choice - 1)


@dataclass(frozen=True)
class Chooser(Rival):
    """A rival that puts all attention on one candidate."""

    choice: Callable[[AntecedentItem], int]


def _chooser(name: str, choice: Callable[[AntecedentItem], int]) -> Chooser:
    return Chooser(name, lambda item: _one_hot(item, choice(item)), choice)


def _last_that(name: str, fits: Callable[[AntecedentItem], Sequence[bool]]) -> Chooser:
    """A rival that chooses the last mention that fits, else the nearest."""
    return _chooser(name, lambda item: _last(fits(item)))


def _same_gender(item: AntecedentItem) -> list[bool]:
    """Mentions known to have the pronoun's gender, else those of unknown gender.

    Accepting both at once, the last thing or place wins: 63% on LitBank, not 83%.
    """
    gender = PRONOUNS.get(item.form)
    return [each == (gender if gender in item.genders else None) for each in item.genders]


def _same_role(item: AntecedentItem) -> Sequence[bool]:
    """Compatible mentions with the pronoun's relation (parallel function), else all compatible mentions."""
    fits = [ok and role == item.role for ok, role in zip(item.compatible, item.roles, strict=True)]
    return fits if item.role and any(fits) else item.compatible


def _leftmost(item: AntecedentItem, fitting: Sequence[bool]) -> int:
    """The first fitting mention of the nearest sentence that has one (after Hobbs 1978), else the nearest mention."""
    pairs = [*zip(item.sentences, fitting, strict=True)]
    last = max((sentence for sentence, fits in pairs if fits), default=None)
    first = (number for number, (sentence, fits) in enumerate(pairs) if fits and sentence == last)
    return next(first, len(item.forms) - 1)


RANDOM = Rival("random", lambda item: (1 / len(item.candidates),) * len(item.candidates))
"""Gives every mention the same score: the expected score of a random choice."""
_POSITIONAL = (_chooser("nearest", lambda item: len(item.candidates) - 1), _chooser("first", lambda item: 0), RANDOM)
_LAST_ARGUMENT = _last_that("last argument", lambda item: [role in _ARGUMENTS for role in item.roles])
RIVALS = (
    *_POSITIONAL,
    _last_that("same gender", _same_gender),
    _last_that("same form", lambda item: [form == item.form for form in item.forms]),
    _last_that("name or gender", lambda item: item.compatible),  # of the pronoun's gender, or like a name
    _chooser("leftmost person", lambda item: _leftmost(item, item.compatible)),
    _last_that("same role", _same_role),
    _LAST_ARGUMENT,
)
"""Rules that solve an item without reading the sentence. Each gives every candidate a score."""
PREDICTING_RIVALS = (
    *_POSITIONAL,
    _last_that("name or person", lambda item: item.person),  # a man, a woman, or like a name
    _last_that("last pronoun", lambda item: [form in GENDERED for form in item.forms]),
    _chooser("leftmost person", lambda item: _leftmost(item, item.person)),
    _LAST_ARGUMENT,
)
"""Rules for the moment before the pronoun is read. None knows its form, gender or role."""
