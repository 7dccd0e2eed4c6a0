"""What do tags, relations, labels, rules and tasks mean? The words in which they are told to one who knows no notation.

`short` is what fits into a cell (`object to its verb`), `said` what a sentence says of a head (`goes from an object to
its verb`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

TAGS = {
    "ADJ": "adjective",
    "ADP": "preposition",
    "ADV": "adverb",
    "AUX": "auxiliary",
    "CCONJ": "conjunction",
    "DET": "determiner",
    "INTJ": "interjection",
    "NOUN": "noun",
    "NUM": "number",
    "PART": "particle",
    "PRON": "pronoun",
    "PROPN": "name",
    "PUNCT": "punctuation mark",
    "SCONJ": "subordinator",
    "SYM": "symbol",
    "VERB": "verb",
    "X": "other word",
}
"""The universal tags (https://universaldependencies.org/u/pos)."""
RELATIONS = {
    "det": ("determiner", "noun"),
    "amod": ("adjective", "noun"),
    "nsubj": ("subject", "verb"),
    "obj": ("object", "verb"),
    "nmod:poss": ("possessor", "noun"),
    "case": ("preposition", "noun"),
    "aux": ("auxiliary", "verb"),
    "cop": ("copula", "predicate"),
    "advmod": ("adverb", "word"),
    "conj": ("conjunct", "first conjunct"),
    "cc": ("conjunction", "conjunct"),
    "mark": ("subordinator", "verb"),
}
"""Dependent and head of each relation that is asked of every text."""
_PLACES = {"first-token": "first token", "self": "itself"}
_RULES = {
    "nearest": "the nearest mention",
    "first": "the first mention",
    "random": "any mention",
    "same gender": "the last mention of the same gender",
    "same form": "the last mention of the same form",
    "name or gender": "the last mention of fitting gender",
    "name or person": "the last name or person",
    "leftmost person": "the leftmost person",
    "last pronoun": "the last pronoun",
    "same role": "the last mention in the same role",
    "uniform": "uniform attention",
    "no preference": "no preference",
    "untrained heads": "the best untrained head",
    "no order": "no order",
    "the relation itself": "the relation itself",
    "the antecedent itself": "the antecedent itself",
}
_READOUTS = {
    "next token": "the log-probability of the next token",
    "masked word": "the log-probability of the masked word",
    "tag probe": "a probe of the word’s tag",
    "antecedent probe": "a probe of pronoun and antecedent",
}


@dataclass(frozen=True)
class Words:
    """How something that a head does is told: in a cell, and in a sentence that begins with the head.

    `share` is how a share of it ends that sentence, where that is neither of cases nor of the head's attention.
    """

    short: str
    said: str
    share: str = ""


_LABELS = {
    "first-token": Words("first token", "rests on the first token"),
    "self": Words("itself", "looks at the token itself"),
    "previous-token": Words("token before", "looks at the token before"),
    "next-token": Words("token after", "looks at the token after"),
    "duplicate-token": Words("same token", "looks at earlier copies of the same token"),
    "induction": Words("induction", "looks at what followed this token before (induction)"),
    "antecedent": Words("antecedent", "goes from a pronoun to what it stands for"),
    "antecedent-predicting": Words("antecedent ahead", "looks at what the next pronoun will mean"),
    "antecedent-mass": Words(
        "antecedent’s share", "gives what a pronoun stands for", "{} of what it gives mentions before it"
    ),
    "positional-head": Words("one distance", "looks hardest at one and the same distance", "in {} of cases"),
    "monotonicity": Words("source in order", "walks through the source in order"),
}
NAMED = " (a name or noun)"  # what stands nearest of it
NEARBY = Words("nearby", "looks at tokens nearby")


def an(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def listed(names: Sequence[str]) -> str:
    """`layer`, `layer and head`, `layer, head and position`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def plural(noun: str) -> str:
    """Several of what a tag names."""
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


_PARTS = (
    *("adja·cent", "adjec·tive", "ante·cedent", "auxil·iary", "conjunc·tion", "deter·miner", "induc·tion"),
    *("inter·jection", "posses·sor", "predi·cate", "prepo·sition", "punctu·ation", "subor·dinator"),
)


def breakable(words: str) -> str:
    """The same, with a soft hyphen or a space of no width where it may be broken in a narrow cell."""
    for parts in _PARTS:
        words = words.replace(parts.replace("·", ""), parts.replace("·", "\u00ad"))
    return words.replace("/", "/\u200b")


def infinitive(said: str) -> str:
    """`goes to the last verb`, after "to"."""
    verb, _, rest = said.partition(" ")
    return f"{'go' if verb == 'goes' else verb.removesuffix('s')} {rest}"


def tag(name: str) -> str:
    """A tag in words; as it is where it is no universal one."""
    return TAGS.get(name, name)


def relation(name: str, way: str) -> Words:
    """From one end of a dependency to the other: `dependent->head` or `head->dependent`."""
    if name in RELATIONS:
        dependent, head = RELATIONS[name]
        this, that = (dependent, head) if way == "dependent->head" else (head, dependent)
        if this == "word":
            return Words(f"word to its {that}", f"goes from a word to its {that}")
        return Words(f"{this} to its {that}", f"goes from {an(this)} to its {that}")
    this, that = way.split("->")
    return Words(f"{name}: {this} to {that}", f"goes from the {this} of {name} to its {that}")


def offset(by: int) -> str:
    """A distance in words: `3 back`, `2 ahead`."""
    return f"{abs(by)} {'back' if by < 0 else 'ahead'}"


def rule(name: str, of: str = "word") -> str:
    """A simple rule as the thing that it looks at: `last VERB/AUX` is the last verb or auxiliary."""
    if name in _RULES:
        return _RULES[name]
    if found := re.fullmatch(r"offset ([+-]\d+)", name):
        by = int(found[1])
        return f"the {of} {'before' if by < 0 else 'after'}" if abs(by) == 1 else f"the {of} {offset(by)}"
    if found := re.fullmatch(r"(last|next) (\S+)( \(end of its run\))?", name):
        classes = [tag(each) for each in found[2].split("/")]
        several = " or ".join(filter(None, [", ".join(classes[:-1]), classes[-1]]))
        return f"the {found[1]} {several}{found[3] or ''}"
    return f"“{name}”"


def taking(name: str) -> str:
    """A simple rule as what one would do who follows it: `taking the last verb`; uniform attention is no choice."""
    said = rule(name)
    return f"taking {said}" if said.startswith(("the last", "the next", "the first", "the nearest", "any")) else said


_ADJACENT = "adjacent "


def readout(name: str) -> str:
    """What effects of keys are read off from."""
    return _READOUTS.get(name, name)


def answer(carried: str) -> str:
    """What minimal pairs decide: `the choice of he or she` where it is one between two words."""
    words = carried.removeprefix(_ADJACENT)
    one, slash, other = words.partition("/")
    where = " right after its noun" if words != carried else ""
    return f"the choice of {one} or {other}{where}" if slash else carried


def needed_alone(words: Words) -> Words:
    """What is told where a head's keys have an effect, and its attention there is little beyond chance."""
    return Words(
        words.short, f"{words.short}: the model needs what it sees there, but its attention there does not stand out"
    )


def label(name: str, title: str = "") -> Words:
    """What a label says of a head, or a measure; its title where it is somebody's own."""
    told = title or name
    return known(name) or Words(told, f"looks where “{told}” says")


@dataclass(frozen=True)
class Asked:
    """Of which words examples of a label are (`verbs`), and what is so of those at which a head does what it says."""

    words: str
    whose: str


def asked(label: str, measure: str, title: str = "") -> Asked:
    """The words that a measure asks, and what a head's attention from them does that has the label.

    Args:
        label: the measure's own, or a rule's (`rule:last VERB`); several offsets apart by commas.
        measure: by its name.
        title: of a measure that is somebody's own.
    """
    words, sought, mentions = _asked(measure, title)
    if label.startswith("rule:any->"):
        words, sought = "words", an(tag(label.removeprefix("rule:any->")))
    elif label.startswith("rule:"):
        sought = rule(label.removeprefix("rule:"))
    elif ", " in label:
        near = [_asked(each, title)[1] for each in label.split(", ")]
        sought = f"{', '.join(near[:-1])} or {near[-1]}"
    return Asked(words, f"most attended mention is {sought}" if mentions else f"strongest attention is on {sought}")


_SOUGHT = {
    "first-token": ("words", "the first token"),
    "self": ("words", "the word itself"),
    "previous-token": ("words", "the token before"),
    "next-token": ("words", "the token after"),
    "duplicate-token": ("repeated words", "an earlier copy"),
    "induction": ("repeated words", "what followed an earlier copy"),
    "antecedent": ("pronouns", "one that they stand for"),
    "antecedent-predicting": ("words before a pronoun", "one that the pronoun will stand for"),
}


def _asked(measure: str, title: str) -> tuple[str, str, bool]:
    """Words that ask, what they seek, and whether that is a mention."""
    kind, _, rest = measure.partition(":")
    if kind in _SOUGHT:
        return *_SOUGHT[kind], kind.startswith("antecedent")
    if kind == "offset":
        return "words", f"the token {offset(int(rest))}", False
    if kind == "tag" and rest.count("->") == 1:
        this, that = map(tag, rest.split("->"))
        return plural(this), an(that), False
    if kind == "relation" and rest.count("->") == 1:
        name, _, way = rest.rpartition(":")
        ends = RELATIONS.get(name)
        this, that = (ends if way == "dependent->head" else ends[::-1]) if ends else way.split("->")
        return (
            (plural(this), f"their {that}", False) if ends else (f"words at the {this} of {name}", f"its {that}", False)
        )
    return f"words that “{title or measure}” is about", "a word that it names", False


def known(name: str) -> Words | None:
    """What a label or measure of ours says of a head; None for others, and for what says nothing of where it looks."""
    kind, _, rest = name.partition(":")
    if kind == "relation" and rest.count("->") == 1 and not rest.endswith(":transposed"):
        return relation(*rest.rsplit(":", 1))
    if kind == "tag" and rest.count("->") == 1:
        this, that = map(tag, rest.split("->"))
        return Words(f"{this} to {that}", f"looks from {plural(this)} to {plural(that)}")
    if kind == "rule" and rest.startswith("any->"):
        noun = tag(rest.removeprefix("any->"))
        return Words(f"any {noun}", f"looks at {plural(noun)}, whoever asks")
    if kind == "rule":
        return Words(rule(rest).removeprefix("the "), f"goes to {rule(rest)}")
    if kind == "offset":
        return Words(f"token {offset(int(rest))}", f"looks at the token {offset(int(rest))}")
    words = _LABELS.get(kind)
    return Words(f"named {words.short}", f"{words.said}{NAMED}", words.share) if words and rest == "named" else words
