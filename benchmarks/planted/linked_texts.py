"""Texts in which only a hidden code tells which words belong together, not distance, class, order or form.

Every verb, thing, name and spelling of a pronoun has one of three codes (`Linked.coded`). In `clauses` a sentence has
two verbs, then two things in either order. A thing is the object of the verb with its code, so the nearest verb is
right for one of the two. In `reports` a pronoun refers to the one of three people with its code. In half of the
episodes an animal, also a mention, stands between them. A pronoun's spellings ("he", "He", "HE") are one form.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.planted.planted_texts import Lexicon
from interp import AnnotatedText
from models.stories import grammar
from models.stories.grammar import HEAD, Part, Phrase, join, word

CODES = 3
SPELLINGS = {form: (form, form.capitalize(), form.upper()) for form in ("he", "him", "she", "her")}  # one code each
FORMS = {"male": ("he", "him"), "female": ("she", "her")}


@dataclass(frozen=True)
class Linked(Lexicon):
    """The words of a planted model, by class, and the codes that link them."""

    @staticmethod
    def draw(rng: random.Random, least: int = 2 * CODES) -> "Linked":
        """Random words, enough in each class that every code has several."""
        return Linked(**vars(Lexicon.draw(rng, least)))

    @property
    def tags(self) -> dict[str, str]:
        """The universal tag of every word."""
        return super().tags | {form: "PRON" for forms in SPELLINGS.values() for form in forms}

    def coded(self, words: Sequence[str], code: int) -> tuple[str, ...]:
        """The words of a class that have a code."""
        return tuple(words[code::CODES])

    @property
    def openers(self) -> tuple[str, ...]:
        """The names that can come first in a report; the other names never do."""
        return tuple(name for names in (self.masculine, self.feminine) for name in names[:CODES])

    @property
    def directions(self) -> dict[str, tuple[str, ...]]:
        """The classes that planted heads read, and each code's part of some."""
        names = (*self.masculine, *self.feminine)
        he, she = (tuple(each for form in forms for each in SPELLINGS[form]) for forms in FORMS.values())
        directions: dict[str, tuple[str, ...]] = {
            "word": self.vocabulary,
            "noun": (*self.animals, *self.things),
            "thing": self.things,
            "verb": self.verbs,
            "stop": (".",),
            "opener": self.openers,
            "pronoun": (*he, *she),
            **SPELLINGS,
            "male": he,
            "female": she,
            "name or male": (*names, *he),
            "name or female": (*names, *she),
            "mention": (*names, *he, *she, *self.animals),
        }
        classes = {"verb": self.verbs, "thing": self.things, "man": self.masculine, "woman": self.feminine}
        classes |= {"male": he, "female": she}  # in order of their codes
        coded = {f"{name} {code}": self.coded(words, code) for name, words in classes.items() for code in range(CODES)}
        return directions | coded


def clauses(lexicon: Linked, count: int, seed: int = 0, *, length: int = 4) -> list[AnnotatedText]:
    """Texts of `length` sentences like "The cat saw quite found the old box the hat." """
    rng = random.Random(f"clauses-{seed}")

    def described(nouns: Sequence[str]) -> Phrase:
        adverb = [grammar.adverb(rng.choice(lexicon.adverbs))] if rng.random() < 0.3 else []
        adjective: list[Part] = [("amod", word(rng.choice(lexicon.adjectives), "ADJ"))] if rng.random() < 0.5 else []
        return join(grammar.article("the"), *adverb, *adjective, (HEAD, word(rng.choice(nouns), "NOUN")))

    def sentence() -> Phrase:
        codes = rng.sample(range(CODES), 2)
        first, second = (word(rng.choice(lexicon.coded(lexicon.verbs, code)), "VERB") for code in codes)
        objects = [described(lexicon.coded(lexicon.things, code)) for code in codes]
        subject = join(grammar.article("the"), (HEAD, word(rng.choice(lexicon.animals), "NOUN")))
        between = [grammar.adverb(rng.choice(lexicon.adverbs))] if rng.random() < 0.5 else []
        whole = join(("nsubj", subject), (HEAD, first), ("conj", join(*between, (HEAD, second))))
        verbs = [2, len(whole.words) - 1]
        order = rng.sample((0, 1), 2)
        words = list(whole.words)
        for index in order:
            start = len(words)
            words += [
                each._replace(head=each.head + start)
                if each.head >= 0
                else each._replace(head=verbs[index], relation="obj")
                for each in objects[index].words
            ]
        return Phrase(tuple(words))

    return [grammar.text([sentence() for _ in range(length)], f"clauses-{seed}-{number}") for number in range(count)]


def reports(lexicon: Linked, count: int, seed: int = 0, *, episodes: int = 4) -> list[AnnotatedText]:
    """Texts of `episodes` like "Tim saw Ben near Tom. The cat heard HE." """
    rng = random.Random(f"reports-{seed}")

    def episode() -> list[Phrase]:
        sex = rng.choice([*FORMS])
        names, form = lexicon.masculine if sex == "male" else lexicon.feminine, rng.choice(FORMS[sex])
        codes = rng.sample(range(CODES), CODES)
        by_code = [[name for name in lexicon.coded(names, code)] for code in codes]
        opening = [name for name in by_code[0] if name in lexicon.openers]
        others = [[name for name in group if name not in lexicon.openers] for group in by_code[1:]]
        people = [rng.choice(group) for group in (opening, *others)]
        first, second, third = (grammar.refer(word(name, "PROPN"), name) for name in people)
        place = grammar.prepositional(rng.choice(lexicon.prepositions), third)
        met = _clause(lexicon, rng, first, ("obj", second), ("obl", place))
        which = rng.randrange(CODES)
        pronoun = grammar.refer(word(SPELLINGS[form][codes[which]], "PRON"), people[which])
        aside = rng.choice((lexicon.animals, lexicon.things))
        noun = word(rng.choice(aside), "NOUN")
        if aside is lexicon.animals:  # animals are mentions, things are not
            noun = grammar.refer(noun, f"it-{rng.random()}")
        subject = join(grammar.article("the"), (HEAD, noun))
        return [met, _clause(lexicon, rng, subject, ("obj", pronoun))]

    return [
        grammar.text([phrase for _ in range(episodes) for phrase in episode()], f"reports-{seed}-{number}")
        for number in range(count)
    ]


def _clause(lexicon: Linked, rng: random.Random, subject: Phrase, *rest: Part) -> Phrase:
    return join(("nsubj", subject), (HEAD, word(rng.choice(lexicon.verbs), "VERB")), *rest)
