"""Phrases that carry their own analysis: composing two composes their words, dependencies and mentions.

`join` does it all: the parts stand side by side, and the root of each depends on the root of the part called HEAD.
Relations follow Universal Dependencies v2. `refer` marks a mention.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from interp.annotation import ROOT, AnnotatedText, Mention
from models.stories.lexicon import Noun, Verb

HEAD = "head"  # marks the part of a phrase on which the others depend
Tense = Literal["past", "present"]
_BE = {("past", False): "was", ("past", True): "were", ("present", False): "is", ("present", True): "are"}


class Word(NamedTuple):
    """A word inside a phrase; its head is an index within the same phrase."""

    form: str
    tag: str
    head: int = ROOT
    relation: str = "root"

    @property
    def glued(self) -> bool:
        """Whether it follows the word before it without a space."""
        return self.tag == "PUNCT" or self.form == "'s"


@dataclass(frozen=True)
class Phrase:
    """Words with one root, and the mentions in them."""

    words: tuple[Word, ...]
    mentions: tuple[Mention, ...] = ()
    plural: bool = False  # of the root, for agreement

    @property
    def root(self) -> int:
        """The index of the word that depends on no other."""
        return next(i for i, each in enumerate(self.words) if each.head == ROOT)


Part = tuple[str, Phrase]  # a phrase and its relation to the head of the phrase that it joins


def word(form: str, tag: str, *, plural: bool = False) -> Phrase:
    """A phrase of one word."""
    return Phrase((Word(form, tag),), plural=plural)


def join(*parts: Part) -> Phrase:
    """The parts in order, each dependent by its relation on the one whose relation is HEAD."""
    starts = [sum(len(phrase.words) for _, phrase in parts[:i]) for i in range(len(parts))]
    head = next(i for i, (relation, _) in enumerate(parts) if relation == HEAD)
    root = starts[head] + parts[head][1].root
    words: list[Word] = []
    mentions: list[Mention] = []
    for start, (relation, phrase) in zip(starts, parts, strict=True):
        for form, tag, above, label in phrase.words:
            if above != ROOT:
                words.append(Word(form, tag, above + start, label))
            else:
                words.append(Word(form, tag, ROOT, label) if relation == HEAD else Word(form, tag, root, relation))
        mentions.extend(mention.moved(start) for mention in phrase.mentions)
    return Phrase(tuple(words), tuple(mentions), plural=parts[head][1].plural)


def refer(phrase: Phrase, chain: str) -> Phrase:
    """The same phrase as a mention of `chain`."""
    mention = Mention(0, len(phrase.words), phrase.root, chain)
    return replace(phrase, mentions=(mention, *phrase.mentions))


def nominal(determiner: Part | None, modifiers: Iterable[str | Part], noun: Noun, *rest: Part, plural: bool) -> Phrase:
    """A noun phrase: a determiner or possessor, adjectives or other modifiers, a noun, and what follows it."""
    form = word(noun.plural if plural else noun.singular, "NOUN", plural=plural)
    parts: list[Part] = [determiner] if determiner else []
    parts += [("amod", word(each, "ADJ")) if isinstance(each, str) else each for each in modifiers]
    return join(*parts, (HEAD, form), *rest)


def degree(adverb_form: str, described: Phrase) -> Phrase:
    """An adjective or adverb and how much: "very old"."""
    return join(adverb(adverb_form), (HEAD, described))


def article(form: str, word_after: str = "") -> Part:
    """A determiner; "a" becomes "an" before a word that begins with a vowel."""
    return "det", word("an" if form == "a" and word_after[:1] in "aeiou" else form, "DET")


def prepositional(preposition: str, phrase: Phrase) -> Phrase:
    """A noun phrase with its preposition, which depends on it."""
    return join(("case", word(preposition, "ADP")), (HEAD, phrase))


def verb_form(verb: Verb, tense: Tense, *, plural: bool) -> str:
    """The finite form that agrees with the subject."""
    if tense == "past":
        return verb.past
    return verb.base if plural else verb.third


def predication(subject: Phrase, group: Iterable[Part], head: Phrase, *rest: Part) -> Phrase:
    """A subject, the words before the predicate's head (auxiliaries, copula, adverbs, an aside), the head, the rest."""
    return join(("nsubj", subject), *group, (HEAD, head), *rest)


def be(tense: Tense, *, plural: bool, tag: str = "AUX") -> Phrase:
    """The finite form of "be", not yet attached: a copula or an auxiliary, by default."""
    return word(_BE[tense, plural], tag)


def conjunct(conjunction: str, second: Phrase) -> Part:
    """A second phrase after one of its kind: "and found a ball"."""
    return "conj", join(("cc", word(conjunction, "CCONJ")), (HEAD, second))


def coordinated(first: Phrase, second: Phrase) -> Phrase:
    """Two noun phrases as one, the first of them its head: "Tim and Lily"."""
    return replace(join((HEAD, first), conjunct("and", second)), plural=True)


def subordinate(conjunction: str, dependent: Phrase) -> Part:
    """A clause that depends on another: "because he was sad"."""
    return "advcl", marked(conjunction, dependent)


def marked(conjunction: str, dependent: Phrase) -> Phrase:
    """A clause with its conjunction: "that he was sad"."""
    mark = ("advmod", word(conjunction, "ADV")) if conjunction == "when" else ("mark", word(conjunction, "SCONJ"))
    return join(mark, (HEAD, dependent))


def aside(part: Part) -> list[Part]:
    """A part between commas."""
    return [comma(), part, comma()]


def comma() -> Part:
    """A comma."""
    return "punct", word(",", "PUNCT")


def adverb(form: str) -> Part:
    """An adverb."""
    return "advmod", word(form, "ADV")


def text(sentences: Iterable[Phrase], document: str) -> AnnotatedText:
    """The sentences, each with its capital and full stop, as one annotated text."""
    words: list[Word] = []
    mentions: list[Mention] = []
    starts: list[int] = []
    for sentence in sentences:
        whole = join((HEAD, sentence), ("punct", word(".", "PUNCT")))
        start = len(words)
        starts.append(start)
        words.extend(each if each.head == ROOT else each._replace(head=each.head + start) for each in whole.words)
        words[start] = words[start]._replace(form=words[start].form[0].upper() + words[start].form[1:])
        mentions.extend(mention.moved(start) for mention in whole.mentions)
    forms, tags, heads, relations = zip(*words, strict=True)
    return AnnotatedText(
        words=forms,
        space_after=(*(not following.glued for following in words[1:]), False),
        document=document,
        tags=tags,
        heads=heads,
        relations=relations,
        mentions=tuple(sorted(mentions, key=lambda mention: (mention.start, -mention.end))),
        sentence_starts=tuple(starts),
    )
