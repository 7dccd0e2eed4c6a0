"""How are labels, measures, rules and tasks worded for readers who know no notation?

In tables a label is a string: `Label.parse` takes it apart, and `str` puts it together again.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

WORDS: dict[str, Any] = tomllib.loads(files("analyses.wording").joinpath("words.toml").read_text("utf-8"))
"""The names of tags, relations, rules and tables, and the wording of findings."""
TEXTS: Mapping[str, str] = WORDS["texts"]
TAGS: Mapping[str, str] = WORDS["tags"]
RELATIONS: Mapping[str, Sequence[str]] = WORDS["relations"]
"""The words for dependent and head of each relation that we measure in every text."""
STRATUM = "@"  # before the stratum in a measure's name
SET = "set:"  # begins the label of heads that are needed together
NAMED = " (a name or noun)"  # what is nearest


class Words(NamedTuple):
    """The wording of something that a head does."""

    short: str  # in a cell: `object to its verb`
    said: str  # in a sentence that begins with the head: `goes from an object to its verb`
    asks: str = ""  # the words that ask, as in a heading over examples: `objects`
    sought: str = ""  # what each of them looks for: `their verb`
    share: str = ""  # how a share ends that sentence, if it is neither of cases nor of the head's attention

    @property
    def named(self) -> "Words":
        """The same, asked only if a name or noun is nearest."""
        return self._replace(short=f"named {self.short}", said=f"{self.said}{NAMED}")

    def within(self, stratum: str) -> "Words":
        """The same, asked only in a stratum."""
        short, sentence = WORDS["strata"].get(stratum, [stratum, stratum])
        return self._replace(short=f"{self.short}, {short}", said=f"{self.said} {sentence}")

    @property
    def infinitive(self) -> str:
        """`goes to the last verb` in a form that follows "to"."""
        verb, _, rest = self.said.removesuffix(NAMED).partition(" ")
        return f"{'go' if verb == 'goes' else verb.removesuffix('s')} {rest}"


NEARBY = Words("nearby", "looks at tokens nearby")
_RELATED = {"relation", "relation-predicting", "relation-masked"}
_NEAR = {"previous-token", "next-token", "self", "offset"}


class Label(NamedTuple):
    """A head's label, or what a measure asks."""

    kind: str  # `relation`, `tag`, `rule`, `any` (a class of words, whoever asks), `offset`, or a name by itself
    name: str = ""  # of the relation or rule; the distance of an offset
    source: str = ""  # a tag or an end of a relation, from which a head looks to `target`
    target: str = ""
    stratum: str = ""  # the only stratum of the measure's items in which it holds

    @classmethod
    def parse(cls, text: str) -> "Label":
        """Parse the `text` of a label in a table."""
        text, _, stratum = text.partition(STRATUM)
        if stratum:
            return cls.parse(text)._replace(stratum=stratum)
        kind, _, rest = text.partition(":")
        name, _, way = rest.rpartition(":")
        source, arrow, target = way.partition("->")
        if kind == "rule" and rest.startswith("any->"):
            return cls("any", target=target)
        if kind in {*_RELATED, "tag"} and arrow and "->" not in name + target:
            return cls(kind, name, source, target)
        return cls(kind, rest)

    def __str__(self) -> str:
        if self.kind == "any":
            return f"rule:any->{self.target}"
        whole = ":".join(filter(None, [self.kind, self.name, f"{self.source}->{self.target}" * bool(self.target)]))
        return f"{whole}{STRATUM}{self.stratum}" if self.stratum else whole

    @property
    def rung(self) -> int:
        """How far it is from a simple rule.

        3: depends on the words' content (a relation, a reference or a copy); 2: a pair of tags; 1: a class of words,
        whoever asks; 0: a distance; -1: the first position.
        """
        if self.kind == "set":
            return Label.parse(self.name).rung
        if self.kind == "rule":
            return 0 if self.name.startswith("offset") else 1
        return {"first-token": -1, "any": 1, "tag": 2}.get(self.kind, 0 if self.kind in _NEAR else 3)

    @property
    def has_rules(self) -> bool:
        """Whether the rules that a head must beat say more than its baseline in `heads`."""
        return self.kind in {*_RELATED, "rule", "any", "antecedent", "antecedent-predicting"}

    def words(self, title: str = "") -> Words:
        """Its wording; a user's own label goes by its `title` or name."""
        if self.stratum:
            return self._replace(stratum="").words(title).within(self.stratum)
        kind, ends, place = self.kind, (tag(self.source), tag(self.target)), ""
        match self:
            case Label(_, name, source, target) if kind in _RELATED and target and name in RELATIONS:
                ends = tuple(RELATIONS[name] if source == "dependent" else RELATIONS[name][::-1])
            case Label(target=target) if kind in _RELATED and target:
                kind = "unknown relation"
            case Label("rule", name):
                place = rule(name)
            case Label("offset", name) if re.fullmatch(r"-?\d+", name):
                place = f"the token {offset(int(name))}"
            case Label("tag" | "any", target=target) if target:
                pass
            case _:
                kind = "own"
        forms = [*ends, *map(plural, ends), *map(an, ends)]
        words = dict(zip(("this", "that", "these", "those", "a_this", "a_that"), forms, strict=True))
        words |= {"where": place, "there": place.removeprefix("the "), "title": title or str(self), **self._asdict()}
        return Words(*(template.format(**words) for template in WORDS["labels"][kind]))


def worded(label: str, vocabulary: Mapping[str, Words]) -> Words:
    """The wording of a table's label or measure: its measure's own if known."""
    if label.startswith(SET):
        words = worded(label.removeprefix(SET), vocabulary)
        return words._replace(short=f"{words.short}, in a set")
    return vocabulary.get(label) or Label.parse(label).words()


def an(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """`layer`, `layer and head`, `layer, head and position`."""
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def plural(noun: str) -> str:
    """`verbs`, `auxiliaries`."""
    return noun[:-1] + "ies" if noun.endswith("y") else noun + "s"


def breakable(words: str) -> str:
    """Words for a narrow cell: with common abbreviations, soft hyphens and zero-width spaces for line breaks."""
    for whole, short in WORDS["narrow"].items():
        words = words.replace(whole, short.replace("·", "\u00ad"))
    return words.replace(" to ", " → ").replace("/", "/\u200b")


def tag(name: str) -> str:
    """A tag in words; unchanged if it is not a universal one."""
    return TAGS.get(name, name)


def offset(by: int) -> str:
    """A distance in words: `3 back`, `2 ahead`."""
    return f"{abs(by)} {'back' if by < 0 else 'ahead'}"


def rule(name: str, unit: str = "word") -> str:
    """The word that a simple rule picks: `last VERB/AUX` is the last verb or auxiliary."""
    if name in WORDS["rules"]:
        return WORDS["rules"][name]
    match name.split(" ", 2):
        case ["offset", by] if by[1:].isdigit():
            neighbour = f"the {unit} {'before' if int(by) < 0 else 'after'}"
            return neighbour if abs(int(by)) == 1 else f"the {unit} {offset(int(by))}"
        case [("last" | "next") as which, classes, *end] if end in ([], ["(end of its run)"]):
            return " ".join([f"the {which} {listed([*map(tag, classes.split('/'))], 'or')}", *end])
    return f"“{name}”"


def taking(name: str) -> str:
    """Following a simple rule, in words: `taking the last verb`; uniform attention picks nothing, so it has no verb."""
    words = rule(name)
    return f"taking {words}" if words.startswith(("the last", "the next", "the first", "the nearest", "any")) else words


def readout(name: str) -> str:
    """The read-out of key effects, in words."""
    return WORDS["readouts"].get(name, name)


def carried(name: str) -> str:
    """What minimal pairs decide, such as `he or she` for two words."""
    words = name.removeprefix("adjacent ")
    return words.replace("/", " or ") + " right after its noun" * (words != name) if "/" in words else name


def answer(name: str) -> str:
    """The same as an answer that can be lost in part: `the choice of he or she`."""
    return f"the choice of {carried(name)}" if "/" in name else WORDS["answers"].get(name, name)


def needed_alone(words: Words) -> Words:
    """The wording if a head's keys have an effect, but its attention there hardly exceeds chance."""
    sentence = f"{words.short}: the model needs what it sees there, but its attention there does not stand out"
    return words._replace(said=sentence)


def topic(label: str, measure: str, vocabulary: Mapping[str, Words]) -> str:
    """The words that a label's examples show: `verbs`, or any words if the label is a rule for all."""
    return "words" if Label.parse(label).kind == "any" else worded(measure, vocabulary).asks
