"""Who and what is in a story. Nouns and names are not used twice, so "the dog" is always one dog."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from models.stories import lexicon
from models.stories.lexicon import FEMININE, MASCULINE, NEUTER, PLURAL, THINGS, Noun, Pronouns

T = TypeVar("T")
_LONG_AGO = -9
_UNNAMED = 0.2  # share of people without a name
_DESCRIBED = 0.6  # share of things with an adjective


@dataclass(eq=False)
class Entity:
    """Someone or something in a story."""

    chain: str
    kind: str  # "person", "animal", "thing", "event" or "place"; pronouns are clear between kinds
    pronouns: Pronouns
    noun: Noun
    name: str | None = None
    adjective: str | None = None
    owner: "Entity | None" = None
    members: "tuple[Entity, ...]" = ()
    is_known: bool = False  # whether it is called by "the"
    names: tuple[str, ...] = ()  # the words of a longer name: "Uncle Ben", "Anna Brown"
    traits: tuple[str, ...] = ()  # adjectives that a tale may use
    state: str | None = None  # a participle before the noun: "broken"
    compound: str | None = None  # a noun before the noun: "garden" of "the garden gate"
    bare: bool = False  # whether it has no determiner: "plums"
    feature: "Entity | None" = None  # what distinguishes it: "with the hat"
    last: int = _LONG_AGO  # the sentence that last mentioned it

    @property
    def plural(self) -> bool:
        """Whether it is several."""
        return self.pronouns is PLURAL


class Cast:
    """Everyone and everything in one story, created when needed."""

    def __init__(self, rng: random.Random) -> None:
        self.everyone: list[Entity] = []
        self._rng = rng

    def person(self, pronouns: Pronouns | None = None, *, named: bool = False) -> Entity:
        """Someone; most have a name, some are "a little girl"."""
        pronouns = pronouns or self._rng.choice((MASCULINE, FEMININE))
        masculine = pronouns is MASCULINE
        nouns = lexicon.MASCULINE_NOUNS if masculine else lexicon.FEMININE_NOUNS
        if not named and self._rng.random() < _UNNAMED:
            adjective = self._rng.choice(("little", "kind", "young"))
            return self._add("person", pronouns, self._rng.choice(self._unused(nouns)), adjective=adjective)
        names = lexicon.MASCULINE_NAMES if masculine else lexicon.FEMININE_NAMES
        free = [name for name in names if all(name != each.name for each in self.everyone)]
        return self._add("person", pronouns, nouns[0], self._rng.choice(free))

    def grown_up(self, pronouns: Pronouns) -> Entity:
        """Someone without a name, called by their work."""
        nouns = lexicon.MASCULINE_HELPERS if pronouns is MASCULINE else lexicon.FEMININE_HELPERS
        return self._add("person", pronouns, self._rng.choice(self._unused(nouns)))

    def companion(self, person: Entity) -> Entity:
        """A second person, in two of three stories of the other gender."""
        opposite = FEMININE if person.pronouns is MASCULINE else MASCULINE
        return self.person(opposite if self._rng.random() < 0.67 else person.pronouns)

    def relative(self, owner: Entity) -> Entity:
        """A mother, brother or the like of `owner`."""
        pronouns, nouns = self._rng.choice(((MASCULINE, lexicon.MASCULINE_KIN), (FEMININE, lexicon.FEMININE_KIN)))
        return self._add("person", pronouns, self._rng.choice(self._unused(nouns)), owner=owner)

    def group(self, *members: Entity) -> Entity:
        """Several persons as one; the same ones are one group throughout."""
        for entity in self.everyone:
            if entity.members and set(entity.members) == set(members):
                return entity
        young = all(entity.name or entity.noun.singular in ("boy", "girl") for entity in members)
        noun = Noun("child", "children") if young else Noun("friend", "friends")
        return self._add("person", PLURAL, noun, members=members)

    def some(self, nouns: Sequence[Noun]) -> Entity:
        """Several animals or things of one kind."""
        kind = "thing" if nouns is THINGS else "animal"
        return self._add(kind, PLURAL, self._rng.choice(self._unused(nouns)), adjective=self._maybe(lexicon.COLOURS))

    def animal(self, nouns: Sequence[Noun] = lexicon.ANIMALS) -> Entity:
        """An animal."""
        adjective = self._maybe((*lexicon.SIZES, *lexicon.COLOURS))
        return self._add("animal", NEUTER, self._rng.choice(self._unused(nouns)), adjective=adjective)

    def thing(self, nouns: Sequence[Noun] = THINGS, owner: Entity | None = None) -> Entity:
        """A thing, which may belong to someone."""
        adjective = self._maybe((*lexicon.COLOURS, *lexicon.LOOKS))
        return self._add("thing", NEUTER, self._rng.choice(self._unused(nouns)), adjective=adjective, owner=owner)

    def spot(self, *names: str, nouns: Sequence[Noun] = lexicon.AT_PLACES) -> Entity:
        """A place nearby, one of the `names` if there are any: a gate, a wall."""
        fitting = [noun for noun in nouns if not names or noun.singular in names]
        return self._add("place", NEUTER, self._rng.choice(self._unused(fitting)), is_known=True)

    def part(self, owner: Entity) -> Entity:
        """A part of the body."""
        return self._add("thing", NEUTER, self._rng.choice(self._unused(lexicon.BODY)), owner=owner)

    def place(self, *names: str) -> Entity:
        """A place that everyone knows, one of the `names` if there are any."""
        return self.spot(*names, nouns=lexicon.PLACES)

    def event(self, name: str, *adjectives: str, owner: Entity | None = None, is_known: bool = False) -> Entity:
        """An event as a noun: "a long walk", "her help", and if it `is_known` "the work"."""
        adjective = self._maybe(adjectives) if adjectives else None
        return self._add("event", NEUTER, Noun(name, name + "s"), adjective=adjective, owner=owner, is_known=is_known)

    def _add(self, kind: str, pronouns: Pronouns, noun: Noun, name: str | None = None, **fields: Any) -> Entity:
        chain = f"{name or noun.singular}-{len(self.everyone)}"
        self.everyone.append(Entity(chain, kind, pronouns, noun, name, **fields))
        return self.everyone[-1]

    def _unused(self, nouns: Sequence[Noun]) -> list[Noun]:
        old_nouns = {each.noun for each in self.everyone}
        return [noun for noun in nouns if noun not in old_nouns] or list(nouns)

    def _maybe(self, options: Sequence[T]) -> T | None:
        return self._rng.choice(options) if self._rng.random() < _DESCRIBED else None
