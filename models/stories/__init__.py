"""Generated children's stories with gold tags, dependencies and coreference: a textbook and a default corpus.

Portraits are shorter, about one person alone. Tales are longer, in richer English: no fixed offset and no nearest word
of a class finds most of their relations, so a head that does has something to show. In sentences no rule finds most
subjects, nor whom a pronoun means.
"""

import random
from collections.abc import Callable, Iterator
from types import MappingProxyType

from interp.annotation import AnnotatedText
from interp.errors import whole_number
from models.pair_tasks import series
from models.stories import grammar
from models.stories.narration import Narrator
from models.stories.references import Teller
from models.stories.scripts import Script
from models.stories.writer import new_sentences, sentences

__all__ = [
    "GENERATORS",
    "new_sentences",
    "portrait",
    "portraits",
    "sentences",
    "stories",
    "story",
    "tale",
    "tales",
]


def stories(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The first `count` stories of a seed; endless if it is None."""
    return series(story, count, seed)


def story(seed: int, index: int) -> AnnotatedText:
    """One story, always the same for a seed and index, so processes can share a stream by index.

    Predicate nouns ("Tim was a kind boy") are no mentions; every other noun phrase and personal pronoun is one.
    """
    name = f"story-{whole_number('seed', seed)}-{index}"
    teller = Teller(random.Random(name))
    hero = teller.cast.person()
    companion = teller.cast.companion(hero)
    Script("stories", teller, hero=hero, companion=companion).value(["story"])
    return grammar.text(teller.sentences, name)


def portraits(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The first `count` portraits of a seed; endless if it is None."""
    return series(portrait, count, seed)


def portrait(seed: int, index: int) -> AnnotatedText:
    """A few sentences about one person, who is the subject of each; always the same for a seed and index."""
    name = f"portrait-{whole_number('seed', seed)}-{index}"
    teller = Teller(random.Random(name))
    Script("portraits", teller, hero=teller.cast.person()).value(["portrait"])
    return grammar.text(teller.sentences, name)


def tales(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The first `count` tales of a seed; endless if it is None."""
    return series(tale, count, seed)


def tale(seed: int, index: int) -> AnnotatedText:
    """One tale of a "he" and a "she" in which fixed rules find few relations; always the same for a seed and index.

    Mentions are as in the stories; "everyone" is no mention, nor is a relative pronoun.
    """
    name = f"tale-{whole_number('seed', seed)}-{index}"
    teller = Narrator(random.Random(name))
    hero, friend = teller.people()
    Script("tales", teller, hero=hero, friend=friend, helper=teller.helper(hero)).value(["tale"])
    return grammar.text(teller.sentences, name)


GENERATORS: MappingProxyType[str, Callable[[int | None, int], Iterator[AnnotatedText]]] = MappingProxyType(
    {
        "stories": stories,
        "portraits": portraits,
        "tales": tales,
        "sentences": sentences,
        "new-sentences": new_sentences,
    }
)
"""The generators, by their names in recipes and `--corpus`."""
__dir__ = __all__.copy  # `dir()` gives what a user may call
