"""Which earlier mention does a pronoun refer to? The items of antecedent selection, and the baselines to beat.

An item is one pronoun and the head words of the mentions before it. A baseline gives each candidate a score as a head
gives it attention, so that one scorer judges both.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from analyses.corpora.mentions import GENDERED, PRONOUNS, gender, is_pronoun
from interp.annotation import AnnotatedText, Mention


@dataclass(frozen=True)
class AntecedentItem:
    """One pronoun with the words it might refer to. The tuples hold one value a candidate, in the order of the text."""

    pronoun: int  # index of the pronoun among the words of its text
    form: str  # the pronoun in lower case
    candidates: tuple[int, ...]  # indices of the head words of the mentions before it, ascending
    correct: tuple[bool, ...]  # whether the candidate is in the pronoun's chain: at least one is, one is not
    genders: tuple[str | None, ...]  # what the candidate's words say of its gender; None says nothing
    forms: tuple[str, ...]  # the candidates' head words in lower case

    @property
    def named(self) -> bool:
        """Whether the nearest true antecedent is a name or a noun: finding an earlier pronoun does not solve it."""
        return not is_pronoun(self.forms[_last(self.correct)])


def antecedent_items(text: AnnotatedText, pronouns: Collection[str] | None = None) -> list[AntecedentItem]:
    """The pronouns of one text that have both a right and a wrong candidate before them, in order.

    Mentions that share a head word are one candidate, right if any of them is.

    Args:
        text: annotated with coreference chains; one without (`mentions` is None) has no items.
        pronouns: the forms that ask, in lower case; by default he, him, his, himself, she, her, hers, herself.
    """
    asking = frozenset(GENDERED if pronouns is None else pronouns)
    mentions = sorted(text.mentions or (), key=lambda mention: (mention.head, mention.end - mention.start))
    items = (_item(text, mention, mentions) for mention in mentions if _is_asking(text, mention, asking))
    return [item for item in items if any(item.correct) and not all(item.correct)]


def unasked(text: AnnotatedText, pronouns: Collection[str] | None = None) -> list[tuple[int, str]]:
    """The pronouns of one text that are no item, each with the reason, in order. Arguments as in `antecedent_items`."""
    asking = frozenset(GENDERED if pronouns is None else pronouns)
    mentions = sorted(text.mentions or (), key=lambda mention: (mention.head, mention.end - mention.start))
    found = []
    for asked in mentions:
        if not _is_asking(text, asked, asking):
            continue
        correct = _item(text, asked, mentions).correct
        chain = [mention for mention in mentions if mention.chain == asked.chain and mention is not asked]
        if not chain:
            found.append((asked.head, "pronouns left out: they refer to no other mention"))
        elif not any(correct):
            found.append((asked.head, "pronouns left out: what they refer to comes only after them"))
        elif all(correct):
            found.append((asked.head, "pronouns left out: no wrong mention before them"))
    return found


def _is_asking(text: AnnotatedText, mention: Mention, asking: Collection[str]) -> bool:
    return mention.end - mention.start == 1 and text.words[mention.head].lower() in asking


def _item(text: AnnotatedText, asked: Mention, mentions: Sequence[Mention]) -> AntecedentItem:
    before: dict[int, list[Mention]] = {}
    for mention in mentions:
        if mention.end <= asked.start:  # "the man who lost his hat" is not before "his"
            before.setdefault(mention.head, []).append(mention)
    return AntecedentItem(
        pronoun=asked.head,
        form=text.words[asked.head].lower(),
        candidates=tuple(before),
        correct=tuple(any(mention.chain == asked.chain for mention in shared) for shared in before.values()),
        genders=tuple(gender(text, shared[0]) for shared in before.values()),  # the shortest: "Tim" of "Tim and Sue"
        forms=tuple(text.words[head].lower() for head in before),
    )


def nearest(item: AntecedentItem) -> tuple[float, ...]:
    """All on the last mention before the pronoun."""
    return _one_hot(item, len(item.candidates) - 1)


def first(item: AntecedentItem) -> tuple[float, ...]:
    """All on the first mention of the text."""
    return _one_hot(item, 0)


def random(item: AntecedentItem) -> tuple[float, ...]:
    """The same on every mention: scores the expectation of a random choice."""
    n = len(item.candidates)
    return (1 / n,) * n


def same_gender(item: AntecedentItem) -> tuple[float, ...]:
    """All on the last mention known to have the pronoun's gender; else of unknown gender; else on the nearest.

    Taking known and unknown alike would fall to the last thing or place: 63% on LitBank, not 83%.
    """
    wanted = PRONOUNS.get(item.form)
    known = wanted in item.genders
    return _one_hot(item, _last([found == (wanted if known else None) for found in item.genders]))


def same_form(item: AntecedentItem) -> tuple[float, ...]:
    """All on the last pronoun of exactly the same form, else on the nearest mention."""
    return _one_hot(item, _last([form == item.form for form in item.forms]))


BASELINES: dict[str, Callable[[AntecedentItem], tuple[float, ...]]] = {
    "nearest": nearest,
    "first": first,
    "random": random,
    "same gender": same_gender,
    "same form": same_form,
}
"""What solves an item without reading the sentence; each gives one score a candidate."""


def _last(flags: Sequence[bool]) -> int:
    """The index of the last that is true, else of the last."""
    return next((i for i in reversed(range(len(flags))) if flags[i]), len(flags) - 1)


def _one_hot(item: AntecedentItem, chosen: int) -> tuple[float, ...]:
    return tuple(float(i == chosen) for i in range(len(item.candidates)))
