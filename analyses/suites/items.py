"""What is a test suite? Paradigms of items: a sentence in several conditions, of which a grammar prefers some."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from analyses.suites.predictions import Prediction
from interp.errors import InputError
from interp.tokens import Span

GOOD, BAD = "good", "bad"  # the conditions of minimal pairs
CRITICAL, NAMED, DIFFERING = "critical", "named", "differing"  # spans with a fixed meaning


@dataclass(frozen=True)
class Sentence:
    """A sentence of one condition, and its parts: by name the characters [start, end) of `text`.

    `critical` is where the sentence is decided, `named` the word where the linguist says one must look from there,
    `differing` the words that the other sentence of a pair lacks. SyntaxGym's have every region by its number ("5"); a
    region without text is an empty span.
    """

    text: str
    spans: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """One sentence in all its conditions; pairs have `good` and `bad`."""

    key: str
    group: str  # the template or lemma that it shares with others: intervals resample groups
    sentences: Mapping[str, Sentence]
    pole: str = ""  # which class of answers is right here ("singular"), where the paradigm has items of both


@dataclass(frozen=True)
class Paradigm:
    """Items that test one thing.

    `sister` names the paradigm of the same suite that is the other pole of the contrast: a preference that passes this
    one without a look at the sentence fails that one. `predictions` are SyntaxGym's; pairs have none: the good sentence
    is the likelier one.
    """

    name: str
    items: tuple[Item, ...]
    field: str = ""  # "morphology", "syntax"
    phenomenon: str = ""  # "filler_gap_dependency"
    sister: str | None = None
    predictions: tuple[Prediction, ...] = ()


@dataclass(frozen=True)
class Suite:
    """Paradigms, each with its own name, and how many items were left out, by why."""

    name: str
    paradigms: tuple[Paradigm, ...]
    left_out: Counter[str] = field(default_factory=Counter)


def joined(suites: Sequence[Suite]) -> Suite:
    """Several suites as one; an `InputError` where two paradigms have one name."""
    paradigms = tuple(each for suite in suites for each in suite.paradigms)
    if twice := [name for name, n in Counter(each.name for each in paradigms).items() if n > 1]:
        raise InputError(f"the paradigm {twice[0]} is there more than once: expected different names")
    left_out = sum((suite.left_out for suite in suites), Counter[str]())
    return Suite(", ".join(each.name for each in suites), paradigms, left_out)


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """How many words or tokens two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
