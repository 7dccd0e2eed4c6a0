"""Heads that do one part of a job, and texts on which a simple rule does the rest.

In `clauses` a verb's subject is the animal with its code: the only animal before it (plain), or one of two with a
plural noun or another verb between. An object's verb is the one with its code: the only verb, or one of two with a
noun, a noun of another number or a third verb between. In `reports` a pronoun refers to one of three. Its form gives
their kind (he: men; him: animals; she: pronouns; her: women, with a nearer brother), its spelling the right one's code.
The word right before a verb, an auxiliary or a pronoun has the same kind and code, so a decoder's head can look from
there. Within a kind no rule is right much more than half of the time.

A specialist reads the code of one kind. Its label is the stratum in which it is right. A label of another stratum, or
of all items, is false unless they contain only its kind.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.planted.linked_texts import CODES, SPELLINGS
from benchmarks.planted.random_models import NORMS, Behaviour, Composed, Form, built, noise
from interp import AnnotatedText
from interp.annotation import ROOT, Attributes
from models.planted.heads import seek
from models.stories import grammar
from models.stories.grammar import Phrase, Word
from models.stories.lexicon import ADJECTIVES, ANIMALS, FEMININE_NAMES, MASCULINE_NAMES, THINGS, VERBS

SPECIALIST = "specialist"
SUBJECTS = ("attractor", "clause")  # what stands between a verb and its subject
OBJECTS = ("noun", "attractor", "clause")  # between an object and its verb
MEANT = {"he": "man", "him": "animal", "she": "she", "her": "woman"}  # the kind of a pronoun's three candidates
_PRONOUNS = {"he": 0.2, "him": 0.32, "she": 0.33, "her": 0.15}  # their shares
_OBJECTS = {"plain": 0.5, "noun": 0.12, "attractor": 0.12, "clause": 0.26}
_NEAREST = 0.55  # share of pronouns that refer to the nearest of the three, and of clauses whose verb is the nearer one
_BROTHERS, _PREPOSITIONS = ("brother", "uncle"), ("near", "beside", "behind", "under", "by")
_PLURALS = frozenset(each.plural for each in THINGS)
_N_HEADS, _N_CTX, _SENTENCES = 8, 128, 8
_STRATA = {"noun": "one noun between", "attractor": "attractor between", "clause": "clause between"}
_CHAINS = {
    "antecedent a name": ("he", "her"),
    "antecedent a noun": ("him",),
    "antecedent a pronoun": ("she",),
    "other gender between": ("her",),
}
_LINKING = ("relation:", "relation-predicting:", "antecedent")  # labels that link words


@dataclass(frozen=True)
class Sorts:
    """The words of a planted model by class: `thing attractor 2` are objects of one kind and code."""

    classes: Mapping[str, tuple[str, ...]]
    tags: Mapping[str, str]

    @staticmethod
    def draw(rng: random.Random) -> "Sorts":
        """All available words, randomly divided among the classes."""
        classes = {f"{form} {code}": (forms[code],) for form, forms in SPELLINGS.items() for code in range(CODES)}
        tags = dict.fromkeys((word for forms in SPELLINGS.values() for word in forms), "PRON")
        tags |= dict.fromkeys(_PREPOSITIONS, "ADP") | dict.fromkeys(_BROTHERS, "NOUN")
        tags |= {"the": "DET", "The": "DET", "was": "AUX", ".": "PUNCT"}

        def deal(words: Sequence[str], tag: str, *kinds: str, rest: str = "") -> None:
            """Make a class for each kind and code, and one for the `rest`."""
            names = [f"{kind} {code}" for kind in kinds for code in range(CODES)] + [rest] * bool(rest)
            deck = rng.sample(new := [word for word in words if word not in tags], len(new))
            classes.update({name: tuple(deck[number :: len(names)]) for number, name in enumerate(names)})
            tags.update(dict.fromkeys(deck, tag))

        asking = [*(f"verb {kind}" for kind in (*SUBJECTS, *MEANT)), "giver"]
        deal([verb.past for verb in VERBS.values()], "VERB", *asking, rest="verb")
        voices = [f"{voice} {kind}" for voice in ("active", "passive") for kind in SUBJECTS]
        deal(ADJECTIVES, "ADV", *voices, rest="adverb")
        deal([noun.singular for noun in ANIMALS], "NOUN", "animal")
        deal([noun.singular for noun in THINGS], "NOUN", "thing noun", "thing clause", rest="thing")
        deal([noun.plural for noun in THINGS], "NOUN", "thing attractor")
        deal(MASCULINE_NAMES, "PROPN", "man")
        deal(FEMININE_NAMES, "PROPN", "woman")
        return Sorts(classes, tags)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words, each once."""
        return tuple(self.tags)

    @property
    def directions(self) -> dict[str, tuple[str, ...]]:
        """The classes that planted heads read."""
        animals = (word for code in range(CODES) for word in self.classes[f"animal {code}"])
        return {**self.classes, "any animal": tuple(animals)}


class _Draft:
    """A sentence being written, word by word."""

    def __init__(self, sorts: Sorts, rng: random.Random):
        self.sorts, self.rng = sorts, rng
        self.words: list[Word] = []

    def word(self, name: str, head: int = ROOT, relation: str = "dep") -> int:
        """Add a random word of a class."""
        return self.add(self.rng.choice(self.sorts.classes[name]), head, relation)

    def add(self, form: str, head: int = ROOT, relation: str = "dep") -> int:
        """Add a word."""
        self.words.append(Word(form, self.sorts.tags[form], head, relation))
        return len(self.words) - 1

    def noun(self, name: str, *, after: bool = False) -> int:
        """Add an article and a noun, with `after` after a preposition."""
        noun = len(self.words) + 1 + after
        if after:
            self.add(self.rng.choice(_PREPOSITIONS), noun, "case")
        self.add("the", noun, "det")
        return self.word(name)

    def link(self, dependent: int, head: int, relation: str) -> None:
        """Make a word depend on another."""
        self.words[dependent] = self.words[dependent]._replace(head=head, relation=relation)

    def phrase(self, root: int) -> Phrase:
        """The sentence; words without a head depend on its root."""
        words = [each._replace(head=root) if each.head == ROOT else each for each in self.words]
        words[root] = words[root]._replace(head=ROOT, relation="root")
        return Phrase(tuple(words))


def clauses(sorts: Sorts, count: int, seed: int = 0) -> list[AnnotatedText]:
    """Texts like "The cat near the dog near the hats slowly saw. The hen found took the pig the box." """
    rng = random.Random(f"strata-{seed}")
    texts = [[_clause(sorts, rng) for _ in range(_SENTENCES)] for _ in range(count)]
    return [_with_numbers(grammar.text(each, f"clauses-{seed}-{number}")) for number, each in enumerate(texts)]


def _clause(sorts: Sorts, rng: random.Random) -> Phrase:
    draft = _Draft(sorts, rng)
    codes, index = rng.sample(range(CODES), 2), rng.randrange(2)
    if rng.random() < 0.5:
        (kind,) = rng.choices([*_OBJECTS], [*_OBJECTS.values()])
        subject = draft.noun("animal 0")
        givers = [draft.word(f"giver {code}") for code in codes[: 1 if kind == "plain" else 2]]
        draft.link(subject, givers[0], "nsubj")
        if kind == "clause":  # a fixed offset finds the nearer verb
            index = int(rng.random() < _NEAREST)
            draft.word("verb")
        elif rng.random() < 0.5:
            draft.word("adverb")
        if kind in {"noun", "attractor"}:
            draft.noun("animal 1")
        thing = draft.noun("thing" if kind == "plain" else f"thing {kind} {codes[index]}")
        draft.link(thing, givers[0 if kind == "plain" else index], "obj")
        return draft.phrase(givers[0])
    kind, active = rng.choice(("plain", *SUBJECTS)), rng.random() < 0.5
    animals = [draft.noun(f"animal {codes[0]}")]
    if kind == "plain":
        index = 0
    else:
        animals.append(draft.noun(f"animal {codes[1]}", after=True))
    if kind == "attractor":
        draft.noun("thing attractor 0", after=True)
    if kind == "clause":
        draft.word("verb")
    voice = "active" if active else "passive"
    draft.word("adverb" if kind == "plain" else f"{voice} {kind} {codes[index]}")
    auxiliary = None if active else draft.add("was")
    verb = draft.word(f"verb {kind} {codes[index]}" if active and kind != "plain" else "verb")
    draft.link(animals[index], verb, "nsubj" if active else "nsubj:pass")
    if auxiliary is not None:
        draft.link(auxiliary, verb, "aux:pass")
    return draft.phrase(verb)


def _with_numbers(text: AnnotatedText) -> AnnotatedText:
    numbers = (f"Number={'Plur' if word in _PLURALS else 'Sing'}" for word in text.words)
    return replace(text, feats=tuple(map(Attributes, numbers)))


def reports(sorts: Sorts, count: int, seed: int = 0) -> list[AnnotatedText]:
    """Texts like "The box saw Tim near Ben beside Sam. The hat heard HE." """
    rng = random.Random(f"strata-reports-{seed}")
    texts = [[phrase for _ in range(_SENTENCES // 2) for phrase in _episode(sorts, rng)] for _ in range(count)]
    return [_with_numbers(grammar.text(each, f"reports-{seed}-{number}")) for number, each in enumerate(texts)]


def _episode(sorts: Sorts, rng: random.Random) -> list[Phrase]:
    (form,) = rng.choices([*_PRONOUNS], [*_PRONOUNS.values()])
    codes = rng.sample(range(CODES), CODES)
    index = 2 if rng.random() < _NEAREST else rng.randrange(2)
    chain = f"{rng.random()}"
    met, report = _Draft(sorts, rng), _Draft(sorts, rng)
    thing, verb = met.noun("thing"), met.word("verb")
    met.link(thing, verb, "nsubj")
    people = []
    for number, code in enumerate(codes):
        if number:
            met.add(rng.choice(_PREPOSITIONS))
        people.append(met.word(f"{MEANT[form]} {code}"))
    mentions = [(place, chain if number == index else f"{chain}-{number}") for number, place in enumerate(people)]
    if form == "her":
        met.add(rng.choice(_PREPOSITIONS))
        mentions.append((met.add(rng.choice(_BROTHERS)), f"{chain}-brother"))
    thing = report.noun("thing")
    verb_of_pronoun = report.word(f"verb {form} {codes[index]}")
    report.link(thing, verb_of_pronoun, "nsubj")
    pronoun = report.word(f"{form} {codes[index]}", verb_of_pronoun, "obj")
    return [_mentioning(met.phrase(verb), mentions), _mentioning(report.phrase(verb_of_pronoun), [(pronoun, chain)])]


def _mentioning(phrase: Phrase, mentions: Sequence[tuple[int, str]]) -> Phrase:
    return replace(phrase, mentions=tuple(grammar.Mention(place, place + 1, place, chain) for place, chain in mentions))


def specialists(*, causal: bool) -> list[Behaviour]:
    """A head for each stratum, and one that goes to the second-last noun."""

    def reads(asking: Sequence[str], sought: Mapping[str, str], measure: str, *strata: str) -> Behaviour:
        """A head that looks from classes to the word with their code. `strata`: where it is right, its own first."""
        plan = seek(
            {f"{name} {code}": [f"{sought[name]} {code}"] for name in asking for code in range(CODES)}, itself=False
        )
        label, *others = (f"{measure}@{stratum}" for stratum in strata)
        return Behaviour(SPECIALIST, plan, label, tuple(others))

    behaviours = []
    rows = {"relation:nsubj:head->dependent": "verb"}
    if causal:
        rows |= {"relation-predicting:nsubj:head->dependent": "active"}
        rows |= {"relation-predicting:aux-subject:dependent->head": "passive"}
    for measure, asking in rows.items():
        for kind in SUBJECTS:
            behaviours.append(reads([f"{asking} {kind}"], {f"{asking} {kind}": "animal"}, measure, _STRATA[kind]))
    for number, kind in enumerate(OBJECTS):
        right = OBJECTS[number:2] if kind != "clause" else ("clause", "noun", "attractor")
        asking = [f"thing {each}" for each in right]
        behaviours.append(
            reads(asking, dict.fromkeys(asking, "giver"), "relation:obj:dependent->head", *map(_STRATA.get, right))
        )
    for measure, before in {"antecedent": "", "antecedent-predicting": "verb "}.items():
        for stratum, forms in _CHAINS.items() if causal or not before else ():
            asking = [f"{before}{form}" for form in forms]
            others = ["other gender between"] if len(forms) > 1 else []
            sought = dict(zip(asking, map(MEANT.get, forms), strict=True))
            behaviours.append(reads(asking, sought, measure, stratum, *others))
    second_last = seek({f"verb attractor {code}": ["any animal"] for code in range(CODES)})
    return [*behaviours, Behaviour("second-last noun", second_last)]


def false_links(behaviour: Behaviour, names: Sequence[str]) -> list[str]:
    """Labels that link words and are false for this head."""
    return [name for name in names if name.startswith(_LINKING) and not behaviour.is_called(name)]


def compose_strata(seed: int, *, form: Form = "decoder") -> Composed:
    """A planted model with a specialist for each stratum, a head for the second-last noun, and noise.

    `seed` draws the words, the heads' places, the norm and the rest.
    """
    rng = random.Random(f"specialists-{seed}")
    sorts, heads = Sorts.draw(rng), specialists(causal=form != "encoder")
    heads += [noise(rng) for _ in range(-len(heads) % _N_HEADS)]
    rng.shuffle(heads)
    layers = [heads[first : first + _N_HEADS] for first in range(0, len(heads), _N_HEADS)]
    n_kv_heads = _N_HEADS // 2 if form == "grouped" else None
    return built(sorts, layers, form, rng.choice(NORMS), n_ctx=_N_CTX, n_kv_heads=n_kv_heads)
