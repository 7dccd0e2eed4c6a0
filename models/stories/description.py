"""How does a tale describe someone? With adjectives, participles and nouns before a noun, and phrases after it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from models.stories import grammar, lexicon
from models.stories.cast import Entity
from models.stories.grammar import HEAD, Part, Phrase, join, nominal, word
from models.stories.lexicon import FEMININE, FRIEND, MASCULINE, Noun
from models.stories.references import Lazy, Teller, later


@dataclass(frozen=True)
class Description:
    """An entity that is described, never a pronoun, with clauses after it."""

    entity: Entity
    clauses: tuple[Lazy, ...] = ()


Spec = tuple[str, Entity | Description | None] | Lazy
_WAYS = {"one": 4, "two": 1, "joined": 22, "degree": 1, "state": 24, "both": 2}  # to describe a noun, by how often


class Describer(Teller):
    """The state of a tale, and how it describes its entities."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._joining = False  # whether the next noun has two adjectives

    def choose(self, *options: str) -> str:
        """One of them."""
        return self.rng.choice(options)

    def adorn(self, entity: Entity) -> Entity:
        """Give it adjectives, a participle and, for some nouns, a noun before it."""
        sort = "meal" if entity.noun in lexicon.MEALS else entity.kind
        entity.traits = tuple(self.rng.sample(lexicon.TRAITS[sort], 3))
        if self.maybe(0.85):
            entity.state = self.rng.choice(lexicon.STATES[sort])
        compounds = lexicon.COMPOUNDS.get(entity.noun.singular)
        if compounds and self.maybe(0.9):
            entity.compound = self.rng.choice(compounds)
        entity.adjective = None
        return entity

    def people(self) -> tuple[Entity, Entity]:
        """Two people with names, a "he" and a "she" in either order."""
        pair = [self._child(pronouns) for pronouns in (MASCULINE, FEMININE)]
        self.rng.shuffle(pair)
        return pair[0], pair[1]

    def _child(self, pronouns: lexicon.Pronouns) -> Entity:
        person = self.cast.person(pronouns, named=True)
        if person.name and self.maybe(0.7):
            person.names = (person.name, self.rng.choice(lexicon.SURNAMES))
        return person

    def helper(self, nephew: Entity) -> Entity:
        """Someone grown-up: "Uncle Ben", or a man with a hat."""
        pronouns = self.rng.choice((MASCULINE, FEMININE))
        if self.maybe(0.6):
            person = self.cast.person(pronouns, named=True)
            person.names, person.owner = ("Uncle" if pronouns is MASCULINE else "Aunt", person.name or ""), nephew
            return person
        person = self.adorn(self.cast.grown_up(pronouns))
        person.feature = self.adorn(self.cast.thing(lexicon.FEATURES))
        person.feature.state = None
        return person

    def pet(self) -> Entity:
        """An animal."""
        return self.adorn(self.cast.animal(lexicon.PETS))

    def thing(self, nouns: Sequence[Noun] = lexicon.TREASURES, owner: Entity | None = None) -> Entity:
        """A thing."""
        return self.adorn(self.cast.thing(nouns, owner))

    def spot(self, *names: str) -> Entity:
        """A place nearby: a gate, a wall."""
        return self.adorn(self.cast.spot(*names))

    def treats(self) -> Entity:
        """Several small things to eat: "plums"."""
        treats = self.cast.some(lexicon.TREATS)
        treats.adjective, treats.bare = None, True
        return treats

    # Ways to call someone or something.

    @later
    def pair(self, first: Entity, second: Entity) -> Phrase:
        """Two as a subject, for this sentence only: "Tom and the dog"."""
        self._subject = None
        return grammar.coordinated(self._full(first), self._full(second))

    @later
    def friend_of(self, person: Entity, friend: Entity, *clauses: Lazy) -> Phrase:
        """A description for a subject: "her good friend Tom"."""
        owner = self._possessor(person, friend)
        self._tells_of(friend)
        self._spoken(friend)
        friend.is_known = True
        traits: list[Part] = [("amod", word(self.choose("best", "old", "good"), "ADJ"))] if self.maybe() else []
        noun = word(self.choose("friend", "neighbour"), "NOUN")
        whole = join(owner, *traits, (HEAD, noun), ("appos", word(friend.name or "", "PROPN")))
        term = grammar.refer(whole, friend.chain)
        return join((HEAD, term), grammar.comma(), *self._parts(clauses), grammar.comma()) if clauses else term

    def _second(self, entity: Entity) -> Phrase:
        """The second of two, which often has two adjectives of its own: "and an old but strong rope"."""
        self._joining = self.maybe(0.85)
        phrase = self._full(entity)
        self._joining = False
        return phrase

    def beside(self, preposition: str, entity: Entity) -> Lazy:
        """What stands at a noun: "near the gate"."""
        return lambda: ("nmod", grammar.prepositional(preposition, self._full(entity)))

    def _described(self, description: Description) -> Phrase:
        phrase = self._description(description.entity, *description.clauses)
        self._spoken(description.entity)
        description.entity.is_known = True
        return grammar.refer(phrase, description.entity.chain)

    def _rivals(self, entity: Entity) -> list[Entity]:
        """In a tale "it" is clear only if nothing else of any kind was mentioned that it could mean."""
        now = len(self.sentences)
        rivals = [each for each in self.cast.everyone if each is not entity and each.pronouns is entity.pronouns]
        return [each for each in rivals if each.last >= now - 1 and not (each is self._subject and entity.last == now)]

    def _is_clear(self, entity: Entity, *, as_subject: bool) -> bool:
        """In a tale a subject is no "he" again after another "he"."""
        return not self._rivals(entity) and super()._is_clear(entity, as_subject=as_subject)

    def _description(self, entity: Entity, *clauses: Lazy) -> Phrase:
        if entity.members:
            return super()._description(entity)
        if entity.name:
            parts = [grammar.comma(), *self._parts(clauses), grammar.comma()] if clauses else []
            return join((HEAD, self._name(entity)), *parts)
        modifiers = self._modifiers(entity)
        if entity.compound:
            modifiers.append(("compound", word(entity.compound, "NOUN")))
        first = modifiers[0][1].words[0].form if modifiers else entity.noun.singular
        determiner = None
        if clauses and entity.is_known:  # "the boat that Tom had lost", not "Tom's boat that"
            determiner = grammar.article("the")
        elif not entity.bare:
            determiner = self._determiner(entity, first)
        parts = self._parts(clauses)
        if entity.feature and not clauses and (not entity.is_known or self.maybe(0.35)):
            parts.append(self.beside("with", entity.feature)())
        return nominal(determiner, modifiers, entity.noun, *parts, plural=entity.plural)

    def _name(self, entity: Entity) -> Phrase:
        assert entity.name
        if entity.owner and entity.noun == FRIEND and self.maybe(0.25):
            return nominal(self._possessor(entity.owner, entity), [], FRIEND, plural=False)
        kin, fond = entity.owner and entity.noun != FRIEND, self.maybe(0.26)
        full = entity.names and (fond or kin or self.maybe(0.15 if entity.is_known else 0.8))
        first, *rest = (word(name, "PROPN") for name in (entity.names if full else (entity.name,)))
        name = join((HEAD, first), *(("flat", other) for other in rest))
        if entity.owner and kin and self.maybe(0.6):
            return join(self._possessor(entity.owner, entity), (HEAD, name))
        if not fond:
            return name
        fondly = self.choose("dear", "good", *(("old", "kind") if kin else ("little", "poor")))
        return join(("amod", word(fondly, "ADJ")), (HEAD, name))

    def _possessor(self, owner: Entity, owned: Entity) -> Part:
        """An owner named in the sentence is "his" or "her" if no other can be meant."""
        if owner.is_known and owner.last == len(self.sentences) and not self._rivals(owner):
            return "nmod:poss", grammar.refer(word(owner.pronouns.possessive, "PRON"), owner.chain)
        return super()._possessor(owner, owned)

    def _modifiers(self, entity: Entity) -> list[Part]:
        if not entity.traits or (not self._joining and self.maybe(0.6 if entity.is_known else 0.25)):
            return []
        first, second = (word(each, "ADJ") for each in self.rng.sample(entity.traits, 2))
        state: Part = ("amod", word(entity.state or "", "VERB"))
        way = self.rng.choices(list(_WAYS), list(_WAYS.values()))[0]
        way = "joined" if self._joining else way
        if entity.state and way in ("state", "both"):
            return [state] if way == "state" else [("amod", first), state]
        if way == "two":
            return [("amod", first), ("amod", second)]
        if way == "joined":
            return [("amod", join((HEAD, first), grammar.conjunct(self.choose("and", "but"), second)))]
        return [("amod", grammar.degree(self.choose("very", "rather"), first) if way == "degree" else first)]

    def _part(self, role: str, entity: Entity | Description | None, *, of_noun: bool) -> Part:
        if not isinstance(entity, Description):
            return super()._part(role, entity, of_noun=of_noun)
        phrase = self._described(entity)
        return (role, phrase) if role in ("obj", "iobj") else ("obl", grammar.prepositional(role, phrase))
