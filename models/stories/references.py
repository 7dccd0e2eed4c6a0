"""How does a story mention its entities? By name, by description, or by a pronoun that a reader can resolve.

A `Teller` remembers when each entity was last mentioned. It uses a pronoun only where gender, number, kind or the
subject of the sentence leave one reading. So chains are gold by construction, and yet neither the nearest mention nor
the first nor the last equal pronoun is always right.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from models.stories import grammar
from models.stories.cast import Cast, Entity
from models.stories.grammar import HEAD, Part, Phrase, Tense, join, nominal, word
from models.stories.lexicon import COLOURS, VERBS, Noun, Verb

_PRONOUN = 0.75  # how often a pronoun is used where it is clear
_CONTINUED = 0.5  # how often the subject stays "he" after another "he"
_BY_NOUN = 0.2  # how often someone with a name is "the boy"
_DESCRIBED_AGAIN = 0.15  # how often the adjective is repeated

Lazy = Callable[[], Part]
Spec = tuple[str, Entity | None] | Lazy  # a relation or preposition and its entity, an adverb, or a later part
Subject = Entity | Callable[[], Phrase]
Mode = Literal["plain", "not", "can", "cannot", "will", "perfect", "progressive", "long"]  # "long": "had been looking"
_RELATIONS = frozenset(("obj", "iobj"))
S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def later(make: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Callable[[], R]]:
    """A method whose words are written when their turn in the sentence comes."""

    @wraps(make)
    def method(teller: S, *args: P.args, **settings: P.kwargs) -> Callable[[], R]:
        return partial(make, teller, *args, **settings)

    return method


class Teller:
    """The state of one story while it is told; `sentences` holds the story so far.

    Parts of a sentence are specs: ("obj", dog), ("in", park), or a function that makes a part. They turn into words
    from left to right, because a mention depends on the words before it.
    """

    verbs: Mapping[str, Verb] = VERBS

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tense: Tense = "past" if rng.random() < 0.8 else "present"
        self.cast = Cast(rng)
        self.sentences: list[Phrase] = []
        self._subject: Entity | None = None  # of the clause being told
        self._topic: Entity | None = None  # the first subject of the sentence being told
        self._topic_before: Entity | None = None  # the previous sentence's topic

    def say(self, sentence: Phrase) -> None:
        """Add a sentence."""
        self.sentences.append(sentence)
        self._topic_before, self._topic, self._subject = self._topic, None, None

    def maybe(self, chance: float = 0.5) -> bool:
        """A coin."""
        return self.rng.random() < chance

    # Sentences.

    def does(self, subject: Subject, verb: str, *specs: Spec, mode: Mode = "plain") -> Phrase:
        """A clause: does(tim, "see", ("obj", dog), ("in", park))."""
        spoken, parts = self._as_subject(subject), self._parts(specs)
        return grammar.predication(spoken, self._auxiliary(mode, spoken.plural), self._verb(verb, mode, spoken), *parts)

    def _verb(self, verb: str, mode: Mode, subject: Phrase) -> Phrase:
        forms = self.verbs[verb]
        finite = grammar.verb_form(forms, self.tense, plural=subject.plural)
        return word(finite if mode == "plain" else forms.base, "VERB")

    def _auxiliary(self, mode: Mode, plural: bool) -> list[Part]:
        """The first auxiliary, with its "not"; none in a plain clause."""
        if mode == "plain":
            return []
        past = self.tense == "past"
        have, can = "had" if past else "have" if plural else "has", "could" if past else "can"
        forms = {
            **{"perfect": have, "long": have, "can": can, "cannot": can, "will": "would" if past else "will"},
            "progressive": grammar.be(self.tense, plural=plural).words[0].form,
            "not": "did" if past else "do" if plural else "does",
        }
        negative: list[Part] = [("advmod", word("not", "PART"))] if mode in ("not", "cannot") else []
        return [("aux", word(forms[mode], "AUX")), *negative]

    def is_(self, subject: Subject, predicate: str | Callable[[], Phrase], *specs: Spec) -> Phrase:
        """A clause with a form of "be": an adjective, sometimes with a "very", or another predicate."""
        spoken = self._as_subject(subject)
        if isinstance(predicate, str):
            strong = predicate not in COLOURS and self.maybe(0.3)
            intensity = [grammar.adverb(self.rng.choice(("very", "so")))] if strong else []
            phrase = join(*intensity, (HEAD, word(predicate, "ADJ")))
        else:
            phrase = predicate()
        copula = grammar.be(self.tense, plural=spoken.plural)
        return grammar.predication(spoken, [("cop", copula)], phrase, *self._parts(specs))

    def there_is(self, entity: Entity, *specs: Spec) -> Phrase:
        """A clause that introduces something."""
        subject = self.mention(entity)
        be = grammar.be(self.tense, plural=subject.plural, tag="VERB")  # a verb of its own here
        expletive = ("expl", word("there", "PRON"))
        return join(expletive, (HEAD, be), ("nsubj", subject), *self._parts(specs))

    def because(self, conjunction: str, main: Phrase, clause: Callable[[], Phrase]) -> Phrase:
        """A main clause, already in words, and one that depends on it and comes after it."""
        return join((HEAD, main), grammar.subordinate(conjunction, clause()))

    def when(self, conjunction: str, clause: Phrase, main: Callable[[], Phrase]) -> Phrase:
        """A dependent clause, already in words, and its main clause after it."""
        return join(grammar.subordinate(conjunction, clause), grammar.comma(), (HEAD, main()))

    def then(self, adverb: str, main: Callable[[], Phrase]) -> Phrase:
        """An adverb before a clause."""
        return join(grammar.adverb(adverb), (HEAD, main()))

    def in_front(self, preposition: str, entity: Entity, main: Callable[[], Phrase]) -> Phrase:
        """A place before a clause: "In the park, Tim saw a dog"."""
        return join(*self._parts([(preposition, entity)]), grammar.comma(), (HEAD, main()))

    # Parts that are written when their turn comes.

    def to(self, verb: str, *specs: Spec) -> Lazy:
        """An infinitive: to("help", ("obj", lily))."""
        to, infinitive = ("mark", word("to", "PART")), word(self.verbs[verb].base, "VERB")
        return lambda: ("xcomp", join(to, (HEAD, infinitive), *self._parts(specs)))

    @later
    def and_(self, verb: str, *specs: Spec) -> Part:
        """A second verb of the same subject: "and found a ball"."""
        plural = self._subject is not None and self._subject.plural
        finite = word(grammar.verb_form(self.verbs[verb], self.tense, plural=plural), "VERB")
        return grammar.conjunct("and", join((HEAD, finite), *self._parts(specs)))

    @later
    def that(self, subject: Entity, verb: str, *specs: Spec) -> Part:
        """A relative clause whose noun is its subject: "that chased the cats"."""
        pronoun, parts = word("that", "PRON", plural=subject.plural), self._parts(specs)
        return "acl:relcl", grammar.predication(pronoun, [], self._verb(verb, "plain", pronoun), *parts)

    @later
    def that_object(self, subject: Entity, verb: str) -> Part:
        """A relative clause whose noun is its object: "that Tim found"."""
        spoken = self.mention(subject, as_subject=True)
        clause = grammar.predication(spoken, [], self._verb(verb, "plain", spoken))
        return "acl:relcl", join(("obj", word("that", "PRON")), (HEAD, clause))

    @later
    def the(self, entity: Entity, *specs: Spec) -> Phrase:
        """A description with more after it, for a subject: the(dog, ("near", cats))."""
        entity.is_known = entity.is_known or entity.owner is None
        determiner = self._determiner(entity)
        adjectives = [entity.adjective] if entity.adjective and self.maybe() else []
        self._spoken(entity)
        self._tells_of(entity)
        parts = self._parts(specs, of_noun=True)
        whole = nominal(determiner, adjectives, entity.noun, *parts, plural=entity.plural)
        return grammar.refer(whole, entity.chain)

    def _parts(self, specs: Sequence[tuple[str, Any] | Lazy], *, of_noun: bool = False) -> list[Part]:
        return [spec() if callable(spec) else self._part(*spec, of_noun=of_noun) for spec in specs]

    def _part(self, role: str, entity: Entity | None, *, of_noun: bool) -> Part:
        if entity is None:
            return grammar.adverb(role)
        phrase = self.mention(entity)
        if role in _RELATIONS:
            return role, phrase
        return "nmod" if of_noun else "obl", grammar.prepositional(role, phrase)

    # Ways to call someone or something.

    def kind(self, adjective: str, noun: Noun, *, plural: bool = False) -> Callable[[], Phrase]:
        """What someone is, a predicate and no mention: "a kind boy", "good friends"."""
        determiner = None if plural else grammar.article("a", adjective)
        return lambda: nominal(determiner, [adjective], noun, plural=plural)

    @later
    def whose(self, owner: Entity) -> Phrase:
        """An owner as a predicate, "hers"; the sentence before must be about that person."""
        self._spoken(owner)
        return grammar.refer(word(owner.pronouns.alone, "PRON"), owner.chain)

    def mention(self, entity: Entity, *, as_subject: bool = False) -> Phrase:
        """The entity in words, at this point of the story."""
        if not as_subject and entity is self._subject and entity.kind in ("person", "animal"):
            phrase = word(entity.pronouns.reflexive, "PRON", plural=entity.plural)
        elif self._is_clear(entity, as_subject=as_subject):
            form = entity.pronouns.subject if as_subject else entity.pronouns.object
            phrase = word(form, "PRON", plural=entity.plural)
        else:
            phrase = self._description(entity)
        self._spoken(entity)
        entity.is_known = True
        return grammar.refer(phrase, entity.chain)

    def _as_subject(self, subject: Subject) -> Phrase:
        if not isinstance(subject, Entity):
            return subject()
        phrase = self.mention(subject, as_subject=True)
        self._tells_of(subject)
        return phrase

    def _tells_of(self, subject: Entity) -> None:
        self._subject = subject
        self._topic = self._topic or subject

    def _spoken(self, entity: Entity) -> None:
        entity.last = len(self.sentences)

    def _is_clear(self, entity: Entity, *, as_subject: bool) -> bool:
        """Whether to use a pronoun: mostly where it has one reading, elsewhere never."""
        now = len(self.sentences)
        if entity.last < now - 1:
            return False
        if as_subject and entity is self._topic:  # "Tim was sad because he fell"
            return True
        if self._rivals(entity):
            goes_on = as_subject and entity is self._topic_before and entity.kind == "person"
            return goes_on and not self._topic and self.maybe(_CONTINUED)
        return self.maybe(_PRONOUN)

    def _rivals(self, entity: Entity) -> list[Entity]:
        """Others that the same pronoun could mean: mentioned in this sentence or the last.

        The subject of the clause is no rival of an entity that the sentence has named: "Ben saw Tim and sang to him"
        would otherwise say "himself".
        """
        now = len(self.sentences)
        rivals = [each for each in self.cast.everyone if each is not entity and each.pronouns is entity.pronouns]
        alike = [each for each in rivals if each.kind == entity.kind or entity.plural or each is self._subject]
        return [each for each in alike if each.last >= now - 1 and not (each is self._subject and entity.last == now)]

    def _description(self, entity: Entity) -> Phrase:
        if entity.members and (not entity.is_known or self.maybe()):
            first, second = (self._full(member) for member in entity.members)
            return grammar.coordinated(first, second)
        if entity.name and not (entity.is_known and self._only_noun(entity) and self.maybe(_BY_NOUN)):
            return word(entity.name, "PROPN")
        determiner = self._determiner(entity)
        first = not entity.is_known or entity.kind == "place"
        adjectives = [entity.adjective] if entity.adjective and (first or self.maybe(_DESCRIBED_AGAIN)) else []
        return nominal(determiner, adjectives, entity.noun, plural=entity.plural)

    def _full(self, member: Entity) -> Phrase:
        phrase = self._description(member)
        self._spoken(member)
        member.is_known = True
        return grammar.refer(phrase, member.chain)

    def _only_noun(self, entity: Entity) -> bool:
        return sum(each.noun == entity.noun for each in self.cast.everyone) == 1

    def _determiner(self, entity: Entity, first: str = "") -> Part:
        """A determiner or possessor; `first` is the word after it, unless that is the entity's adjective."""
        if entity.owner and (entity.kind in ("person", "event") or not entity.is_known or self.maybe(0.4)):
            return self._possessor(entity.owner, entity)
        if entity.is_known:
            return grammar.article("the")
        if entity.plural:
            number = self.rng.choice(("some", "two", "three"))
            return ("det", word(number, "DET")) if number == "some" else ("nummod", word(number, "NUM"))
        return grammar.article("a", first or entity.adjective or entity.noun.singular)

    def _possessor(self, owner: Entity, owned: Entity) -> Part:
        """A pronoun for the subject's things, and for deeds of anyone just named: "Tim thanked Ben for his help"."""
        deed = owned.kind == "event" and owner.last == len(self.sentences)
        if owner is self._subject or deed or (owner.is_known and self._is_clear(owner, as_subject=False)):
            self._spoken(owner)
            return "nmod:poss", grammar.refer(word(owner.pronouns.possessive, "PRON"), owner.chain)
        return "nmod:poss", join((HEAD, self._full(owner)), ("case", word("'s", "PART")))
