"""The words of the stories, and of the minimal pairs that are built from the same ones."""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun in both numbers."""

    singular: str
    plural: str


class Verb(NamedTuple):
    """A verb in the forms the stories use."""

    base: str
    third: str  # present, third person singular
    past: str


MASCULINE_NAMES = ("Tim", "Tom", "Ben", "Max", "Jack", "Bob", "Leo", "John", "Dan", "Paul", "Peter", "Joe")
FEMININE_NAMES = ("Lily", "Sue", "Mia", "Anna", "Lucy", "Amy", "Jane", "Emma", "Kate", "Rose", "Sara", "Mary")


def _nouns(regular: str, *irregular: Noun) -> tuple[Noun, ...]:
    return (*(Noun(word, word + "s") for word in regular.split()), *irregular)


MASCULINE_NOUNS = _nouns("boy king", Noun("man", "men"))
FEMININE_NOUNS = _nouns("girl queen", Noun("woman", "women"))
CHILD, FRIEND = Noun("child", "children"), Noun("friend", "friends")
NEUTRAL_NOUNS = _nouns("friend", CHILD)
MASCULINE_KIN = _nouns("father brother uncle")
FEMININE_KIN = _nouns("mother sister aunt")

ANIMALS = _nouns(
    "dog cat bird frog duck horse bear rabbit mole pig",
    Noun("mouse", "mice"),
    Noun("fox", "foxes"),
    Noun("puppy", "puppies"),
)
THINGS = _nouns(
    "ball hat book cup kite boat cake drum bell coat ring toy flower apple stone",
    Noun("box", "boxes"),
    Noun("brush", "brushes"),
)
TOYS = tuple(noun for noun in THINGS if noun.singular in {"ball", "kite", "boat", "drum", "toy", "box"})
CARRIED = (*TOYS, *(noun for noun in THINGS if noun.singular in {"hat", "book", "cup", "coat", "stone", "brush"}))
FOOD = tuple(noun for noun in THINGS if noun.singular in {"apple", "cake"})
KEPT = tuple(noun for noun in ANIMALS if noun.singular != "dog")
BODY = _nouns("nose hand leg head")
PLACES = _nouns("park garden house school river road wood shop farm hill tree")

NOUNS = (
    *MASCULINE_NOUNS,
    *FEMININE_NOUNS,
    *NEUTRAL_NOUNS,
    *MASCULINE_KIN,
    *FEMININE_KIN,
    *ANIMALS,
    *THINGS,
    *BODY,
    *PLACES,
)

SIZES = ("big", "small", "little", "tiny", "huge")
COLOURS = ("red", "blue", "green", "black", "white", "brown", "yellow")
LOOKS = ("new", "old", "pretty", "clean", "shiny", "round")
CHARACTERS = ("kind", "brave", "clever", "funny", "shy", "young", "quiet")
MOODS = ("happy", "sad", "tired", "hungry", "angry", "sleepy", "proud", "cold")
FINE = ("kind", "clever", "brave", "cheerful", "quiet", "shy")
LENGTHS = ("long", "lovely", "nice", "great")
QUALITIES = ("good", "nice", "long", "strange", "hard", "great", "sweet", "lovely")
ADJECTIVES = tuple(dict.fromkeys((*SIZES, *COLOURS, *LOOKS, *CHARACTERS, *MOODS, *QUALITIES)))


def _verbs(regular: str, irregular: str) -> dict[str, Verb]:
    """Verbs by base form: regular ones take -s and -ed (-d after -e, -es after -ch, -sh), others have their forms."""
    forms = [
        (base, base + ("es" if base.endswith(("ch", "sh")) else "s"), base + "ed"[base.endswith("e") :])
        for base in regular.split()
    ]
    return {base: Verb(base, *rest) for base, *rest in [*forms, *(each.split() for each in irregular.split(", "))]}


VERBS = _verbs(
    "work call change help love walk play dance dream chase like want look wash follow watch thank live jump "
    "visit smile laugh wait show open need start paint pull",
    "see sees saw, find finds found, lose loses lost, give gives gave, run runs ran, go goes went, sleep sleeps slept, "
    "hurt hurts hurt, hear hears heard, make makes made, hold holds held, hide hides hid, sit sits sat, eat eats ate, "
    "take takes took, bring brings brought, sing sings sang, draw draws drew, ring rings rang, have has had, "
    "carry carries carried, cry cries cried, hug hugs hugged, miss misses missed",
)
"""Every verb by its base form."""

TALE_VERBS = VERBS | _verbs(
    "ask belong climb promise hope search bark guess",
    "know knows knew, say says said, think thinks thought, tell tells told, keep keeps kept, fall falls fell, "
    "meet meets met, buy buys bought, build builds built, catch catches caught, lie lies lay, try tries tried, "
    "begin begins began, come comes came, feel feels felt, stop stops stopped",
)
"""Every verb of the tales by its base form; the planted vocabularies draw from `VERBS`, which stays as it is."""
_PARTICIPLES = {
    **{"see": "seen", "give": "given", "run": "run", "go": "gone", "take": "taken", "know": "known", "fall": "fallen"},
    **{"lie": "lain", "begin": "begun", "come": "come"},
}
_DOUBLED = ("run", "sit", "hug", "begin", "stop")


def participle(verb: Verb) -> str:
    """What follows "had"."""
    return _PARTICIPLES.get(verb.base, verb.past)


def gerund(verb: Verb) -> str:
    """The form in -ing."""
    if verb.base == "lie":
        return "lying"
    silent = verb.base.endswith("e") and not verb.base.endswith("ee")
    return (verb.base[:-1] if silent else verb.base + verb.base[-1] * (verb.base in _DOUBLED)) + "ing"


SURNAMES = ("Brown", "Miller", "Hill", "Reed", "Green", "Wood")
DEGREES = ("very", "quite", "so", "rather", "really")
COMPOUNDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gate", "wall", "path", "shed"), ("garden", "farm", "school")),
    **dict.fromkeys(("table", "door", "window"), ("kitchen", "cottage")),
    **dict.fromkeys(("boat", "bird", "kite"), ("paper", "toy")),
    **dict.fromkeys(("hat", "coat", "blanket", "scarf"), ("wool", "winter")),
    **dict.fromkeys(("cake", "pie", "tree"), ("apple", "cherry")),
    **dict.fromkeys(("ring", "bell", "cup", "key"), ("silver", "brass")),
    **dict.fromkeys(("dog", "cat"), ("farm", "house")),
    **dict.fromkeys(("box", "basket", "drum"), ("tin", "toy")),
}
"""Nouns that stand before a noun as its material or its place, by the noun that they stand before."""
AT_PLACES = _nouns("gate wall path shed table door window tree river hill pond bridge")
TREASURES = _nouns("boat kite hat coat scarf ring bell cup key ball drum book basket", Noun("box", "boxes"))
TOYS_OF_TALES = _nouns("boat kite ball bird")
PASSING = tuple(
    (state, Noun(name, name + "s"))
    for state, name in (("singing", "bird"), ("buzzing", "bee"), ("barking", "puppy"), ("hopping", "frog"))
)
"""What passes by, and what it does."""
TOWNS = _nouns("village town", Noun("valley", "valleys"))
MEALS = _nouns("cake pie")
PETS = _nouns("dog cat rabbit duck goat", Noun("puppy", "puppies"), Noun("pony", "ponies"), Noun("goose", "geese"))
FEATURES = _nouns("hat scarf coat basket stick lamp bag")
TREATS = _nouns("apple cake plum carrot nut")
MASCULINE_HELPERS = _nouns("farmer baker miller sailor", Noun("man", "men"))
FEMININE_HELPERS = _nouns("farmer baker teacher", Noun("woman", "women"))
STATES = {
    "person": ("smiling", "laughing", "whistling"),
    "animal": ("limping", "shivering", "frightened", "trembling"),
    "thing": ("painted", "polished", "patched", "borrowed"),
    "place": ("broken", "painted", "hidden"),
    "meal": ("steaming", "sugared"),
}
"""Participles before a noun, by the kind of what it stands for: "a limping dog"."""
TRAITS = {
    "person": ("kind", "old", "clever", "funny", "tall", "cheerful"),
    "animal": ("little", "old", "brave", "clever", "gentle", "fat", "lazy", "shy"),
    "thing": ("small", "old", "pretty", "shiny", "round", "strong", "plain", "light"),
    "place": ("old", "little", "narrow", "quiet", "low"),
    "meal": ("big", "small", "round", "sweet", "warm"),
}
"""Adjectives by the kind of what they are said of; all can be had in degrees."""
MANNERS = ("quickly", "slowly", "quietly", "carefully")

AMBIGUOUS = ("ring", "work", "call", "change", "help", "love", "walk", "play", "dance", "dream")
"""Words that the stories use as nouns and as verbs."""


class Pronouns(NamedTuple):
    """The forms of a third-person pronoun."""

    subject: str
    object: str
    possessive: str  # before a noun
    own: str  # alone: "the ball was hers"
    reflexive: str


MASCULINE = Pronouns("he", "him", "his", "his", "himself")
FEMININE = Pronouns("she", "her", "her", "hers", "herself")
PLURAL = Pronouns("they", "them", "their", "theirs", "themselves")
NEUTER = Pronouns("it", "it", "its", "its", "itself")
