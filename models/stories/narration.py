"""How does a tale speak? It puts so much before, between and after words that no fixed rule finds dependencies.

A `Narrator` separates verbs from their subjects and auxiliaries; an aside may come between the two.
"""

import random
from collections.abc import Callable

from models.stories import grammar, lexicon
from models.stories.cast import Entity
from models.stories.description import Describer, Description, Spec
from models.stories.grammar import HEAD, Part, Phrase, join, nominal, word
from models.stories.lexicon import FRIEND, NEUTER, Noun
from models.stories.references import Lazy, Mode, later

_MIXED = (("tired", "cheerful"), ("cold", "brave"), ("slow", "careful"), ("hungry", "patient"), ("shy", "curious"))
_TIMES = ("morning", "afternoon", "evening")
_VISIBLE = ("walk", "run", "look", "climb", "open", "take", "bring", "carry", "call")  # may be done quietly or quickly
_PARTED = ("perfect", "progressive", "long", "will")  # auxiliaries that an aside may follow
_INSIDE = {  # adverbs that may stand between an auxiliary and its verb, by what the auxiliary says
    **{"perfect": (), "progressive": ("still",), "long": ("always", "often")},
    **{"cannot": ("yet", "even"), "not": ("really", "even"), "will": ("soon", "always")},
}
Subject = Entity | Description | Callable[[], Phrase]
_EVERYONE = Entity("everyone", "person", NEUTER, Noun("everyone", "everyone"))


class Narrator(Describer):
    """The state of one tale while it is told."""

    verbs = lexicon.TALE_VERBS

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._times = _TIMES
        self._late = False  # whether the next subject has a relative clause
        self.fair = False  # whether the weather was mentioned
        self._deep = False  # whether the clause is a dependent one, which has no asides

    def one_of(self, *ways: Callable[[], Phrase], front: float = 0.45) -> None:
        """Say one of several sentences, at times with a word or a time in front of it."""
        main = self.rng.choice(ways)
        if not self.maybe(front):
            self.say(main())
        elif not self.fair and self.maybe(0.25):
            self.say(self.after_rain(main))
        elif self.maybe(0.5):
            self.say(self.then(self.choose("then", "soon", "now"), main))
        else:
            self.say(self.one_day(main))

    # Clauses.

    def tell(self, doer: Subject, verb: str, *specs: Spec, mode: Mode = "plain") -> Phrase:
        """A clause: its subject, its verb with auxiliaries and adverbs before it, and the rest."""
        subject = self._as_subject(doer)
        group, form = self._group(verb, mode, subject.plural)
        if mode in _PARTED and self.maybe(0.35):
            group[1:1] = self._interposed(doer)
        parts = self._parts(specs)
        if mode == "plain" and verb in _VISIBLE and not any(map(callable, specs)) and self.maybe(0.3):
            parts.append(self.manner())
        return grammar.predication(subject, group, word(form, "VERB"), *parts)

    def _interposed(self, subject: Subject) -> list[Part]:
        """An aside between an auxiliary and its verb; none in a dependent clause."""
        people = [each for each in self.cast.everyone if each.name and each is not subject]
        if not people or self._deep:
            return []
        person = self.rng.choice(people)
        knows = self.while_("as", lambda: self.tell(person, self.choose("know", "hope", "guess")))
        return grammar.aside((knows if self.maybe(0.4) else self.as_known(person))())

    def done(self, patient: Subject, verb: str, *specs: Spec) -> Phrase:
        """A clause in the passive: "the kite had been made by Tom"."""
        subject = self._as_subject(patient)
        group = self._auxiliary("perfect", subject.plural)
        group.append(("aux:pass", word("been", "AUX")))
        head = word(lexicon.participle(self.verbs[verb]), "VERB")
        return join(("nsubj:pass", subject), *group, (HEAD, head), *self._parts(specs))

    def be(
        self,
        doer: Subject,
        predicate: Callable[[], Phrase],
        *specs: Spec,
        mode: Mode = "plain",
        adverb: str = "",
        aside: Lazy | None = None,
    ) -> Phrase:
        """A clause with "be" as its copula: "had never been so happy", "was, as Tom had said, a kind girl"."""
        subject = self._as_subject(doer)
        parts: list[Part] = []
        if adverb:
            parts.append(("advmod", word("not", "PART")) if adverb == "not" else grammar.adverb(adverb))
        if mode == "plain":
            group: list[Part] = [("cop", grammar.be(self.tense, plural=subject.plural)), *parts]
        else:
            group = self._auxiliary(mode, subject.plural)
            if mode in _PARTED and self.maybe(0.3):
                group += self._interposed(doer)
            group += [*parts, ("cop", word("been" if mode == "perfect" else "be", "AUX"))]
        if aside:
            group += grammar.aside(aside())
        return grammar.predication(subject, group, predicate(), *self._parts(specs))

    def so(self, *options: str) -> Callable[[], Phrase]:
        """A strong quality: "so happy"."""
        return lambda: grammar.degree("so", word(self.choose(*options), "ADJ"))

    def quality(self, adjective: str, chance: float = 0.15) -> Phrase:
        """An adjective, sometimes with how much, sometimes with another."""
        phrase = word(adjective, "ADJ")
        if self.maybe(chance):
            phrase = grammar.degree(self.choose(*lexicon.DEGREES), phrase)
        return phrase

    @later
    def feeling(self, *options: str) -> Phrase:
        """One or two adjectives of mood: "tired but very happy"."""
        first, second = self.rng.sample(options, 2)
        if self.maybe(0.35):
            return join((HEAD, self.quality(first)), grammar.conjunct("and", self.quality(second)))
        return self.quality(first)

    @later
    def a(self, noun: Noun, *traits: str) -> Phrase:
        """What someone is, a predicate and no mention: "a very kind boy"."""
        described = word(self.choose(*traits), "ADJ")
        if self.maybe(0.8):
            described = grammar.degree(self.choose("very", "rather", "really"), described)
        return nominal(grammar.article("a", described.words[0].form), [("amod", described)], noun, plural=False)

    @later
    def friends(self) -> Phrase:
        """What two are, a predicate: "very good friends"."""
        good = word(self.choose("good", "close", "dear"), "ADJ")
        if self.maybe():
            good = grammar.degree("very", good)
        return nominal(None, [("amod", good)], FRIEND, plural=True)

    def _group(self, verb: str, mode: Mode, plural: bool) -> tuple[list[Part], str]:
        """What stands before a verb, and the verb's form."""
        forms = self.verbs[verb]
        if mode == "plain":
            parts = [self.manner()] if verb in _VISIBLE and self.maybe(0.1) else []
            return parts, grammar.verb_form(forms, self.tense, plural=plural)
        group = self._auxiliary(mode, plural)
        if self.maybe(0.25) and _INSIDE[mode]:
            group.append(grammar.adverb(self.choose(*_INSIDE[mode])))
        if mode == "long":
            group.append(("aux", word("been", "AUX")))
        inflected = {"perfect": lexicon.participle, "progressive": lexicon.gerund, "long": lexicon.gerund}
        return group, inflected[mode](forms) if mode in inflected else forms.base

    def manner(self) -> Part:
        """An adverb of manner: "very quietly"."""
        adverb = word(self.choose(*lexicon.MANNERS), "ADV")
        return "advmod", grammar.degree(self.choose("very", "quite", "so"), adverb) if self.maybe(0.3) else adverb

    # Parts that are written when their turn comes.

    def saying(self, clause: Callable[[], Phrase]) -> Lazy:
        """The content of saying, thinking or knowing: "that he liked dogs"."""
        return self._inside("ccomp", lambda: grammar.marked("that", clause()))

    def while_(self, mark: str, clause: Callable[[], Phrase]) -> Lazy:
        """A clause that says when or why: "because he was tired"."""
        return self._inside("advcl", lambda: grammar.marked(mark, clause()))

    def asked(self, question: str | Phrase, entity: Entity, *auxiliary: str) -> Lazy:
        """An indirect question: "what it was", "how old the dog could be"."""

        def phrase() -> Phrase:
            first = word(question, "PRON") if isinstance(question, str) else question
            subject = self.mention(entity, as_subject=True)
            be = word("be", "AUX") if auxiliary else grammar.be(self.tense, plural=subject.plural)
            could = [("aux", word(each, "AUX")) for each in auxiliary]
            return join((HEAD, first), ("nsubj", subject), *could, ("cop", be))

        return self._inside("ccomp", phrase)

    def about(self, relative: str, verb: str, *specs: Spec, of: Entity, mode: Mode = "plain") -> Lazy:
        """A relative clause whose noun, `of`, is its subject: "who had lost a hat"."""

        def phrase() -> Phrase:
            self._subject = of
            group, form = self._group(verb, mode, of.plural)
            pronoun = word(relative, "PRON", plural=of.plural)
            return grammar.predication(pronoun, group, word(form, "VERB"), *self._parts(specs))

        return self._inside("acl:relcl", phrase)

    def whom(self, relative: str, person: Entity, verb: str, *specs: Spec, mode: Mode = "plain") -> Lazy:
        """A relative clause whose noun is its object: "that Tim had found", "Tim had found"."""

        def phrase() -> Phrase:
            clause = self.tell(person, verb, *specs, mode=mode)
            return join(("obj", word(relative, "PRON")), (HEAD, clause)) if relative else clause

        return self._inside("acl:relcl", phrase)

    def as_known(self, person: Entity) -> Lazy:
        """An aside: "as everyone could see", "as Tom had said"."""

        def phrase() -> Phrase:
            if self.maybe(0.4):
                return self.tell(person, self.choose("say", "hope", "guess"), mode="perfect")
            can = word("could" if self.tense == "past" else "can", "AUX")
            perceived = word(self.choose("see", "hear", "tell"), "VERB")
            clauses = [self._relative_clause(person)()] if self.maybe(0.6) else []
            return grammar.predication(join((HEAD, word("everyone", "PRON")), *clauses), [("aux", can)], perceived)

        return self.while_("as", phrase)

    def _relative_clause(self, person: Entity) -> Lazy:
        """Who "everyone" is: "who knew Tom", "at the little school"."""
        if self.maybe(0.6):
            return self.about("who", self.choose("know", "meet", "like"), ("obj", person), of=_EVERYONE)
        town, adjective = self.rng.choice(lexicon.TOWNS), word(self.choose("little", "old", "whole"), "ADJ")
        named = nominal(grammar.article("the"), [("amod", adjective)], town, plural=False)
        place = grammar.refer(named, town.singular)
        return lambda: ("nmod", grammar.prepositional("in", place))

    def question(self, entity: Entity) -> Lazy:
        """An indirect question about someone or something: "what it was", "how old the dog could be"."""
        could = "could" if self.tense == "past" else "can"
        auxiliary = (could,) if self.maybe(0.25) else ()
        if entity.kind == "animal" and self.maybe(0.4):
            return self.asked("what", entity, *auxiliary)
        fit = {"person": "kind angry", "animal": "big tame", "thing": "big heavy"}[entity.kind].split()
        adjective = word(self.choose("old", *fit), "ADJ")
        if self.maybe(0.3):
            predicate = "strong" if entity.kind == "thing" else self.choose("strong", "clever", "tired")
            adjective = join((HEAD, adjective), grammar.conjunct("and", word(predicate, "ADJ")))
        return self.asked(join(grammar.adverb("how"), (HEAD, adjective)), entity, *auxiliary)

    def because_of(self, *events: str) -> Lazy:
        """A reason: "because of the rain"."""
        return self._with_of("because", "ADP", lambda: self.cast.event(self.choose(*events), is_known=True))

    def instead_of(self, entity: Entity) -> Lazy:
        """An alternative: "instead of the old box"."""
        return self._with_of("instead", "ADV", lambda: entity)

    @later
    def _with_of(self, first: str, tag: str, entity: Callable[[], Entity]) -> Part:
        preposition = join((HEAD, word(first, tag)), ("fixed", word("of", "ADP")))
        return "obl", join(("case", preposition), (HEAD, self.mention(entity())))

    def mood(self, *options: str) -> Lazy:
        """What someone feels: "felt very tired"."""
        return lambda: ("xcomp", self.feeling(*options)())

    @later
    def both_at(self, preposition: str, first: Entity, second: Entity) -> Part:
        """Two places: "behind the gate and the wall"."""
        pair = join((HEAD, self.mention(first)), grammar.conjunct("and", self._second(second)))
        return "obl", grammar.prepositional(preposition, pair)

    def objects(self, first: Entity, second: Entity) -> Lazy:
        """Two things: "a lamp and an old but strong rope"."""
        return lambda: ("obj", join((HEAD, self.mention(first)), grammar.conjunct("and", self._second(second))))

    # What stands before a clause, and clauses together.

    def one_day(self, main: Callable[[], Phrase]) -> Phrase:
        """A time in front, later than the last one: "one cold morning", "that evening"; none when the day is over."""
        if not self._times:
            return self.then(self.choose("then", "now"), main)
        begins, time = len(self._times) == len(_TIMES), self.cast.event(self._times[0])
        self._times = self._times[1:]
        determiner: Part = ("nummod", word("one", "NUM")) if begins else grammar.article("that")
        traits: list[Part] = []
        if begins and self.maybe():
            traits = [("amod", word(self.choose("cold", "warm", "fine", "windy"), "ADJ"))]
        elif not begins and self.maybe(0.3):
            determiner, traits = grammar.article("the"), [("amod", word("same", "ADJ"))]
        phrase = grammar.refer(nominal(determiner, traits, time.noun, plural=False), time.chain)
        self._spoken(time)
        return join(("obl:unmarked", phrase), *([grammar.comma()] if self.maybe(0.3) else []), (HEAD, main()))

    @later
    def and_(self, verb: str, *specs: Spec) -> Part:
        """A second verb of the same subject, at times with a mood before it: "and, tired but happy, went home"."""
        assert self._subject
        form = grammar.verb_form(self.verbs[verb], self.tense, plural=self._subject.plural)
        mood = self.maybe(0.6) and self._subject.kind == "person"
        first, second = self.rng.choice(_MIXED)
        joined = join((HEAD, word(first, "ADJ")), grammar.conjunct("but", word(second, "ADJ")))
        parts = grammar.aside(("advcl", joined)) if mood else []
        return grammar.conjunct("and", join(*parts, (HEAD, word(form, "VERB")), *self._parts(specs)))

    def then(self, adverb: str, main: Callable[[], Phrase]) -> Phrase:
        """An adverb before a clause, whose subject may have done something before."""
        self._late = self.maybe(0.5)
        sentence = super().then(adverb, main)
        self._late = False
        return sentence

    def after_rain(self, main: Callable[[], Phrase]) -> Phrase:
        """Weather in front, once a tale: "then, when the cold rain had stopped, Anna ran"."""
        weather = self.cast.event(self.choose("rain", "wind", "storm"), is_known=True)
        self.fair = True
        traits: list[Part] = [("amod", word(self.choose("cold", "heavy"), "ADJ"))] if self.maybe() else []
        phrase = grammar.refer(nominal(grammar.article("the"), traits, weather.noun, plural=False), weather.chain)
        group, form = self._group("stop", "perfect", False)
        stopped = grammar.subordinate("when", grammar.predication(phrase, group, word(form, "VERB")))
        then = [grammar.adverb(self.choose("then", "soon", "now"))] if self.maybe(0.75) else []
        return join(*then, *([grammar.comma()] if then else []), stopped, grammar.comma(), (HEAD, main()))

    def and_so(self, first: Phrase, second: Callable[[], Phrase], conjunction: str = "and") -> Phrase:
        """Two clauses: "they looked behind the wall, but they did not see it"."""
        self._subject = None
        whole = join(grammar.comma(), ("cc", word(conjunction, "CCONJ")), (HEAD, second()))
        return join((HEAD, first), ("conj", whole))

    @later
    def _inside(self, relation: str, phrase: Callable[[], Phrase]) -> Part:
        """A dependent clause; the clause around it keeps its own subject."""
        subject, deep = self._subject, self._deep
        self._deep = True
        sentence = phrase()
        self._subject, self._deep = subject, deep
        return relation, sentence

    def _as_subject(self, subject: Subject) -> Phrase:
        late, self._late = self._late, False
        if late and isinstance(subject, Entity) and subject.name:
            subject = Description(subject, (self._inside("acl:relcl", self._outside),))
        if isinstance(subject, Description):
            self._tells_of(subject.entity)
            return self._described(subject)
        return super()._as_subject(subject)

    def _outside(self) -> Phrase:
        """A clause about someone: "who had followed a singing bird outside"."""
        state, noun = self.rng.choice(lexicon.PASSING)
        passing = self.cast.animal([noun])
        view = nominal(grammar.article("a", state), [("amod", word(state, "VERB"))], noun, plural=False)
        self._spoken(passing)
        group = self._auxiliary("perfect", False)
        verb = word(self.choose("followed", "chased", "watched"), "VERB")
        place = grammar.adverb("outside" if verb.words[0].form == "watched" else self.choose("outside", "away", "home"))
        return grammar.predication(word("who", "PRON"), group, verb, ("obj", grammar.refer(view, passing.chain)), place)
