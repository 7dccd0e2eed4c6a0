"""What happens: each plot tells a few sentences about a hero and a companion, in an order that makes a story."""

from collections.abc import Callable

from models.stories.cast import Entity
from models.stories.grammar import Phrase
from models.stories.lexicon import ANIMALS, CHARACTERS, COLOURS, LOOKS, MOODS, THINGS, TOYS, Noun
from models.stories.references import Spec, Teller

Plot = Callable[[Teller, Entity, Entity], None]
_FRIEND = Noun("friend", "friends")
_LENGTHS = ("long", "lovely", "nice", "great")
_HOME: Spec = ("home", None)
_AGAIN: Spec = ("again", None)
_TOGETHER: Spec = ("together", None)


def _named(nouns: tuple[Noun, ...], *singulars: str) -> tuple[Noun, ...]:
    return tuple(noun for noun in nouns if noun.singular in singulars)


_CARRIED = (*TOYS, *_named(THINGS, "hat", "book", "cup", "coat", "stone", "brush"))
_FOOD = _named(THINGS, "apple", "cake")


def opening(t: Teller, hero: Entity, companion: Entity) -> None:
    """Who the story is about; some stories begin at once."""
    character = t.rng.choice(CHARACTERS)
    if hero.name is None:
        t.say(t.then("once", lambda: t.there_is(hero)) if t.tense == "past" else t.there_is(hero))
    elif t.maybe(0.25):
        t.say(t.is_(hero, t.kind(character, hero.noun)))
    elif t.maybe(0.25):
        t.say(t.is_(t.cast.group(hero, companion), t.kind("good", _FRIEND, plural=True)))
    elif t.maybe(0.25):
        t.say(t.is_(hero, character))
    elif t.maybe(0.4):
        t.say(
            t.does(
                hero, "live", ("near", t.cast.place("school", "park", "river", "wood")), ("with", t.cast.relative(hero))
            )
        )


def scenery(t: Teller) -> None:
    """Something seen on the way, with another noun between it and its verb."""
    nouns = THINGS if t.maybe(0.3) else ANIMALS
    one = t.cast.thing() if nouns is THINGS else t.cast.animal()
    if nouns is THINGS:
        one.adjective = None  # it is told next
    several = t.cast.some(ANIMALS)
    seen, other = (one, several) if t.maybe() else (several, one)
    if t.maybe(0.15):
        other = t.cast.animal() if seen is one else t.cast.some(ANIMALS)  # of the same number
    state = t.rng.choice(MOODS if seen.kind == "animal" else (*LOOKS, *COLOURS))
    if seen.kind == "thing" or other.kind == "thing" or t.maybe():
        t.say(t.is_(t.the(seen, (t.rng.choice(("near", "behind")), _familiar(other))), state))
        return
    verb = t.rng.choice(("chase", "follow", "like", "watch"))
    t.say(t.is_(t.the(seen, t.that(seen, verb, ("obj", _familiar(other)))), state))
    if t.maybe():
        t.say(t.does(seen, t.rng.choice(("run", "walk")), ("to", t.cast.place())))


def _familiar(entity: Entity) -> Entity:
    entity.known = True
    return entity


def closing(t: Teller, hero: Entity, companion: Entity) -> None:
    """How it ends."""
    alone: tuple[Callable[[], Phrase], ...] = (
        lambda: t.then("then", lambda: t.does(hero, "go", _HOME)),
        lambda: t.then("soon", lambda: t.is_(hero, t.rng.choice(("happy", "tired", "sleepy")))),
    )
    if not companion.known:
        t.say(t.rng.choice(alone)())
        return
    both = t.cast.group(hero, companion)
    together: tuple[Callable[[], Phrase], ...] = (
        lambda: t.does(hero, "go", _HOME, ("with", companion)),
        lambda: t.is_(both, "happy"),
        lambda: t.does(hero, "smile", t.and_("thank", ("obj", companion))),
        lambda: t.does(companion, "love", ("obj", hero)),
        lambda: t.does(both, "walk", _HOME, _TOGETHER),
    )
    t.say(t.rng.choice((*alone, *together))())


def lost(t: Teller, hero: Entity, companion: Entity) -> None:
    """A thing is lost and found."""
    thing = t.cast.thing(_CARRIED, owner=hero)
    t.say(t.does(hero, "lose", ("obj", thing), ("in", t.cast.place("park", "garden", "wood"))))
    if t.maybe():
        t.say(t.because("because", t.is_(hero, "sad"), lambda: t.fails(hero, "find", ("obj", thing))))
    else:
        t.say(t.does(hero, "start", t.to("cry")))
    if t.maybe():
        t.say(t.does(companion, "want", t.to("help", ("obj", hero))))
    else:
        t.say(t.does(companion, "see", ("obj", hero), t.and_("call", ("obj", t.cast.relative(companion)))))
    tree = t.cast.place("tree", "hill", "house")
    t.say(t.does(companion, "look", (t.rng.choice(("near", "behind")), tree), t.and_("find", ("obj", thing))))
    if t.maybe():
        t.say(t.does(companion, "give", ("obj", thing), ("to", hero)))
    if t.maybe():
        t.say(t.does(hero, "thank", ("obj", companion), ("for", t.cast.event("help", owner=companion))))
    else:
        t.say(t.is_(hero, "happy", t.and_("hug", ("obj", companion))))


def stray(t: Teller, hero: Entity, companion: Entity) -> None:
    """An animal is found and cared for."""
    animal, place = t.cast.animal(), t.cast.place()
    if t.maybe():
        t.say(t.in_front("near", place, lambda: t.does(hero, "see", ("obj", animal))))
    else:
        t.say(t.does(hero, "find", ("obj", animal), ("near", place)))
    t.say(t.is_(animal, t.rng.choice(("hungry", "cold", "sad"))))
    food = t.cast.thing(_FOOD)
    if t.maybe():
        t.say(t.does(hero, "give", ("iobj", animal), ("obj", food)))
    else:
        t.say(t.does(companion, "bring", ("obj", food), ("for", animal)))
        t.say(t.does(animal, "eat", ("obj", food)))
    t.say(t.does(animal, "follow", ("obj", hero), ("to", t.cast.place("house", "farm"))))
    if t.maybe():
        parent = t.cast.relative(hero)
        t.say(t.does(parent, "like", ("obj", animal)))
        t.say(t.does(animal, "sleep", ("in", t.cast.thing(_named(THINGS, "box"), owner=animal)), ("near", parent)))
    else:
        t.say(t.is_(t.the(t.cast.event("love", owner=hero), ("for", animal)), "great"))


def chase(t: Teller, hero: Entity, companion: Entity) -> None:
    """Some animals run from another."""
    chaser, chased = t.cast.animal(_named(ANIMALS, "dog", "fox", "bear", "puppy")), t.cast.some(ANIMALS)
    t.say(t.does(hero, "have", ("obj", chaser)))
    t.say(t.does(chaser, "like", t.to("chase", ("obj", chased))))
    t.say(t.does(chased, "run", ("away", None), t.and_("hide", ("behind", t.cast.place("tree", "house", "hill")))))
    if t.maybe():
        t.say(t.is_(t.the(chaser, t.that(chaser, "chase", ("obj", chased))), t.rng.choice(MOODS)))
    else:
        t.say(t.is_(t.the(chased, ("near", chaser)), t.rng.choice(("cold", "tired", "angry"))))
    t.say(t.does(hero, "call", ("obj", chaser)))
    t.say(t.can(companion, "hear", ("obj", t.cast.event("call", owner=hero))))
    if t.maybe():
        t.say(t.does(companion, "laugh", t.and_("help", ("obj", hero))))


def bell(t: Teller, hero: Entity, companion: Entity) -> None:
    """A bell, and who may ring it."""
    bell = t.cast.thing(_named(THINGS, "bell"))
    t.say(t.there_is(bell, ("in", t.cast.place("school"))))
    t.say(t.does(hero, "want", t.to("ring", ("obj", bell))))
    if t.maybe():
        t.say(t.does(t.cast.relative(hero), "show", ("obj", bell), ("to", companion)))
    ringing = t.does(bell, "ring") if t.maybe() else t.does(companion, "ring", ("obj", bell))
    t.say(t.when("when", ringing, lambda: t.does(hero, "jump", t.and_("laugh"))))
    t.say(t.does(hero, "hug", ("obj", companion)))


def ring(t: Teller, hero: Entity, companion: Entity) -> None:
    """A ring, and whose it is."""
    found = t.cast.thing(_named(THINGS, "ring"))
    owner = t.cast.relative(companion)
    t.say(t.does(hero, "find", ("obj", found), ("on", t.cast.place("road", "hill", "farm"))))
    t.say(t.does(hero, "show", ("obj", found), ("to", companion)))
    if t.maybe():
        t.say(t.is_(t.the(found, t.that_object(hero, "find")), t.rng.choice(("old", "shiny"))))
    t.say(t.does(owner, "see", ("obj", found), t.and_("start", t.to("cry"))))
    t.say(t.is_(found, t.whose(owner)))
    t.say(t.does(hero, "give", ("obj", found), ("to", owner)))


def outing(t: Teller, hero: Entity, companion: Entity) -> None:
    """Dancing, playing, walking."""
    both = t.cast.group(hero, companion)
    act = t.rng.choice(("dance", "play", "walk"))
    event = t.cast.event(act, *_LENGTHS)
    t.say(t.does(both, "love", t.to(act, _TOGETHER)))
    if act == "walk":
        t.say(t.does(both, "go", ("for", event), ("in", t.cast.place("park", "wood", "garden"))))
    else:
        t.say(t.does(both, "watch", ("obj", event), ("at", t.cast.place("school", "farm", "park"))))
        t.say(t.then("then", lambda: t.does(both, act, ("near", t.cast.place("tree", "river", "house")))))
    if act == "walk":
        t.say(t.does(both, "see", ("obj", both), ("in", t.cast.place("river"))))
    elif t.maybe():
        t.say(t.does(both, "show", ("obj", t.cast.thing(TOYS, owner=both)), ("to", t.cast.relative(companion))))
    wearer, other = (hero, companion) if t.maybe() else (companion, hero)
    t.say(t.does(wearer, "lose", ("obj", t.cast.thing(_named(THINGS, "coat", "hat"), owner=wearer))))
    t.say(t.does(other, "look", ("at", wearer), t.and_("start", t.to("laugh"))))
    t.say(t.is_(event, t.rng.choice([quality for quality in _LENGTHS if quality != event.adjective])))


def dream(t: Teller, hero: Entity, companion: Entity) -> None:
    """A dream."""
    beast = t.cast.animal(_named(ANIMALS, "bear", "bird", "frog", "horse", "fox"))
    night = t.cast.event("dream", "strange", "long", "lovely")
    t.say(t.does(hero, "have", ("obj", night)))
    t.say(t.in_front("in", night, lambda: t.does(beast, "chase", ("obj", hero))))
    t.say(t.does(hero, "run", t.and_("hide", ("behind", t.cast.place("tree", "house", "hill")))))
    if t.maybe():
        t.say(t.does(beast, "want", t.to("eat", ("obj", t.cast.thing(_FOOD, owner=hero)))))
    parent = t.cast.relative(hero)
    t.say(t.does(parent, "hear", ("obj", hero), t.and_("sing", ("to", hero))))
    if t.maybe():
        t.say(t.does(companion, "dream", ("of", t.cast.some(ANIMALS)), ("in", t.cast.place("house"))))
    t.say(t.does(hero, "sleep", _AGAIN))


def work(t: Teller, hero: Entity, companion: Entity) -> None:
    """Work, and help with it."""
    parent = t.cast.relative(hero)
    labour = t.cast.event("work", known=True)
    t.say(t.does(parent, "work", ("on", t.cast.place("farm"))))
    t.say(t.is_(labour, "hard"))
    t.say(t.does(hero, "want", t.to("help", ("obj", parent))))
    if t.maybe():
        injured = t.cast.part(hero) if t.maybe() else hero
        t.say(t.when("when", t.does(hero, "work"), lambda: t.does(hero, "hurt", ("obj", injured))))
    t.say(t.does(companion, "bring", ("obj", t.cast.thing(_named(THINGS, "brush", "box", "cup"))), ("for", parent)))
    if t.maybe():
        t.say(t.is_(parent, "proud", ("of", hero)))
    t.say(t.does(parent, "thank", ("obj", companion), ("for", t.cast.event("help", owner=companion))))


def change(t: Teller, hero: Entity, companion: Entity) -> None:
    """Something is painted in another colour."""
    thing = t.cast.thing(TOYS, owner=hero)
    event = t.cast.event("change", known=True)
    thing.adjective = "old"
    t.say(t.does(hero, "want", t.to("change", ("obj", thing))))
    t.say(t.does(companion, "help", ("obj", hero), t.and_("paint", ("obj", thing))))
    t.say(t.then("now", lambda: t.is_(thing, t.rng.choice(COLOURS))))
    thing.adjective = None
    t.say(t.is_(event, t.rng.choice(("good", "great", "nice"))))
    t.say(t.does(hero, "show", ("obj", thing), ("to", t.cast.relative(companion))))


def digger(t: Teller, hero: Entity, companion: Entity) -> None:
    """A mole that digs."""
    animal = t.cast.animal(_named(ANIMALS, "mole"))
    t.say(t.does(animal, "live", ("under", t.cast.place("garden", "hill", "tree"))))
    t.say(t.does(hero, "wait", ("for", animal), ("with", companion)))
    t.say(t.when("when", t.does(animal, "see", ("obj", hero)), lambda: t.does(animal, "hide", ("obj", animal))))
    t.say(t.does(companion, "draw", ("obj", animal), ("in", t.cast.thing(_named(THINGS, "book"), owner=companion))))


def spot(t: Teller, hero: Entity, companion: Entity) -> None:
    """A mole on someone's skin."""
    relative, skin = t.cast.relative(hero), t.cast.event("mole", "small", "black", "brown")
    t.say(t.does(relative, "have", ("obj", skin), ("on", t.cast.part(relative))))
    t.say(t.does(companion, "look", ("at", skin), t.and_("laugh")))
    t.say(t.is_(relative, "sad", t.and_("wash", ("obj", relative), ("in", t.cast.place("river")))))
    t.say(t.does(hero, "hug", ("obj", relative)))


PLOTS: tuple[Plot, ...] = (lost, stray, chase, bell, ring, outing, dream, work, change, digger, spot)
