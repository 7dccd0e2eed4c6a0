"""What a portrait says: one person's deeds, each in a sentence that they are the subject of, in any order.

In the stories what follows "Tim had a dog." is about the dog, so that a model which reads them alone never learns to go
on with "He". No deed here is to have a dog: that is what `analyses.coreference` asks about.
"""

from collections.abc import Callable

from models.stories.cast import Entity
from models.stories.grammar import Phrase
from models.stories.lexicon import ANIMALS, CHARACTERS, MOODS, TOYS
from models.stories.references import Spec, Teller

_KEPT = tuple(noun for noun in ANIMALS if noun.singular != "dog")
_MET = ("see", "find", "hear", "follow", "watch", "draw", "call")
_HANDLED = ("see", "find", "like", "want", "take", "bring", "carry", "hold", "make", "paint", "show", "lose")


def portray(t: Teller) -> None:
    """Three to six deeds of someone new, no two of a kind."""
    hero = t.cast.person()
    if hero.name is None:
        t.say(t.there_is(hero, _near(t)))
    for deed in t.rng.sample(_DEEDS, t.rng.randint(3, 6)):
        t.say(deed(t, hero))


def _animal(t: Teller) -> Spec:
    return "obj", t.cast.animal() if t.maybe(0.7) else t.cast.some(ANIMALS)


def _near(t: Teller) -> Spec:
    return t.rng.choice(("near", "behind")), t.cast.place()


def _where(t: Teller) -> list[Spec]:
    return [_near(t)] if t.maybe() else []


def _has(t: Teller, hero: Entity) -> Phrase:
    return t.does(hero, "have", ("obj", t.cast.animal(_KEPT) if t.maybe() else t.cast.thing()))


def _meets(t: Teller, hero: Entity) -> Phrase:
    return t.does(hero, t.rng.choice(_MET), _animal(t), *_where(t))


def _handles(t: Teller, hero: Entity) -> Phrase:
    return t.does(hero, t.rng.choice(_HANDLED), ("obj", t.cast.thing()), *_where(t))


def _goes(t: Teller, hero: Entity) -> Phrase:
    return t.does(hero, t.rng.choice(("go", "run", "walk")), ("to", t.cast.place()))


def _stays(t: Teller, hero: Entity) -> Phrase:
    verb = t.rng.choice(("play", "sleep", "wait", "sit", "dance", "sing", "dream"))
    return t.does(hero, verb, _near(t))


def _is(t: Teller, hero: Entity) -> Phrase:
    return t.is_(hero, t.rng.choice(MOODS if t.maybe() else CHARACTERS))


def _is_someone(t: Teller, hero: Entity) -> Phrase:
    return t.is_(hero, t.kind(t.rng.choice(CHARACTERS), hero.noun))


def _has_a_reason(t: Teller, hero: Entity) -> Phrase:
    feels = t.is_(hero, t.rng.choice(MOODS))
    return t.because("because", feels, lambda: t.rng.choice((_has, _meets, _handles, _goes, _stays))(t, hero))


def _is_moved(t: Teller, hero: Entity) -> Phrase:
    met = _meets(t, hero)
    return t.when("when", met, lambda: t.does(hero, t.rng.choice(("smile", "laugh", "cry", "jump"))))


def _wants(t: Teller, hero: Entity) -> Phrase:
    wish = t.to("play", ("with", t.cast.thing(TOYS))) if t.maybe() else t.to(t.rng.choice(_MET), _animal(t))
    return t.does(hero, t.rng.choice(("want", "like", "love", "start")), wish)


def _does_two(t: Teller, hero: Entity) -> Phrase:
    first, second = t.rng.sample(("smile", "laugh", "cry", "jump", "dance", "sing"), 2)
    return t.does(hero, first, t.and_(second))


_DEEDS: tuple[Callable[[Teller, Entity], Phrase], ...] = (
    _has,
    _meets,
    _handles,
    _goes,
    _stays,
    _is,
    _is_someone,
    _has_a_reason,
    _is_moved,
    _wants,
    _does_two,
)
