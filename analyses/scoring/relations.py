"""Which words ask for which, such as the ends of a dependency, and which simple rules might find them as well?"""

from collections.abc import Callable, Sequence

from analyses.measures.definitions import DECLARED, Measure, Rival
from analyses.scoring.choices import Pair
from interp.annotation import ROOT, AnnotatedText
from interp.errors import InputError


def _at(offset: int) -> Rival:
    return Rival(f"offset {offset:+d}", lambda items: items.query + offset)


OFFSETS = tuple(map(_at, (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)))
"""Rules that look at a fixed offset in words."""
UNIFORM = Rival("uniform", None)
"""All other visible words alike: right as often as chance."""
CLASSES = tuple(tuple(each.split("/")) for each in DECLARED["tags"]["classes"].split())
"""Sets of tags: a head that goes to the nearest word of one need not know which word is related to which."""


def nearest(tags: Sequence[str], *, before: bool, last_of_run: bool = False) -> Rival:
    """The rule that looks at the nearest word of some tags before the word that asks, or behind it.

    Of several such words in a row it takes the nearest, or the last one: the head of "the last dinosaur bone". It reads
    tags, and nothing else of the annotation; a text without tags has no such word.
    """
    name = f"{'last' if before else 'next'} {'/'.join(tags)}" + " (end of its run)" * last_of_run
    return Rival(name, lambda items: items.nearest(tags, before=before, last_of_run=last_of_run))


NEAREST = (
    *(nearest(tags, before=before) for tags in CLASSES for before in (True, False)),
    *(nearest(tags, before=False, last_of_run=True) for tags in (("NOUN",), ("NOUN", "PROPN"), ("VERB", "AUX"))),
)
"""Rules that look at the nearest word of a class on one side."""
RELATIONS = tuple(DECLARED["tags"]["relations"].split())
"""The relations of Universal Dependencies that are asked of every text."""
WAYS = ("dependent->head", "head->dependent")


def edges(relations: Sequence[str], ways: Sequence[str] = WAYS) -> Callable[[AnnotatedText], list[Pair]]:
    """What gives the pairs of a text: of each relation some `WAYS`, all of one relation together."""
    numbers = {name: number for number, name in enumerate(relations)}

    def pairs(text: AnnotatedText) -> list[Pair]:
        rows: list[Pair] = []
        for dependent, (head, name) in enumerate(zip(text.heads or (), text.relations or (), strict=False)):
            number = numbers.get(name)
            if head != ROOT and number is not None:
                ends = {WAYS[0]: (dependent, head), WAYS[1]: (head, dependent)}
                rows += [(*ends[way], len(ways) * number + at, dependent) for at, way in enumerate(ways)]
        return sorted(rows)

    return pairs


def pairs_of(measure: Measure) -> Callable[[AnnotatedText], list[Pair]]:
    """What gives the pairs of a measure of word pairs.

    Raises:
        InputError: a text has no such word.
    """

    def pairs(text: AnnotatedText) -> list[Pair]:
        assert measure.pairs is not None
        rows, n = sorted({*measure.pairs(text)}), len(text.words)
        if outside := [pair for pair in rows if not all(0 <= word < n for word in pair)]:
            words = f"pairs of words 0-{n - 1} of {text.document}, got {outside[0]}"
            raise InputError(f"measure {measure.name}: expected {words}")
        return [(query, target, 0, query) for query, target in rows]

    return pairs
