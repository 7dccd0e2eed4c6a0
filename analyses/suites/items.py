"""What is a test suite? Paradigms of items: sentences in several conditions, of which the grammar prefers some."""

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
    """A sentence in one condition; `spans` names parts of it, as characters [start, end) of `text`.

    `critical` decides whether the sentence is good, `named` is the word that it depends on, according to the linguist,
    `differing` the words that the other sentence of a pair lacks. SyntaxGym's regions are numbered ("5"), maybe empty.
    """

    text: str
    spans: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """One sentence in all its conditions; pairs have `good` and `bad`."""

    key: str
    group: str  # the template or lemma that it shares with other items; intervals resample groups
    sentences: Mapping[str, Sentence]
    pole: str = ""  # the right class of answers ("singular"), if the paradigm has items of both


@dataclass(frozen=True)
class Paradigm:
    """Items that test one thing.

    `sister` names the paradigm of the same suite that is the contrast's other pole: a fixed preference that passes one
    fails the other. `predictions` are SyntaxGym's; without them, the good sentence of a pair should be likelier.
    """

    name: str
    items: tuple[Item, ...]
    field: str = ""  # "morphology", "syntax"
    phenomenon: str = ""  # "filler_gap_dependency"
    sister: str | None = None
    predictions: tuple[Prediction, ...] = ()


@dataclass(frozen=True)
class Suite:
    """Paradigms with different names, and counts of what was left out, by reason."""

    name: str
    paradigms: tuple[Paradigm, ...]
    left_out: Counter[str] = field(default_factory=Counter)


def joined(suites: Sequence[Suite]) -> Suite:
    """Join suites into one; two paradigms with the same name are an `InputError`."""
    paradigms = tuple(each for suite in suites for each in suite.paradigms)
    if twice := [name for name, n in Counter(each.name for each in paradigms).items() if n > 1]:
        raise InputError(f"the paradigm {twice[0]} occurs more than once: expected different names")
    left_out = sum((suite.left_out for suite in suites), Counter[str]())
    return Suite(", ".join(each.name for each in suites), paradigms, left_out)


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """How many words or tokens two texts share at the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
