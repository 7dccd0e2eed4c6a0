"""What is a measure, and what is a behaviour? Values that say once what all that scores, hides, draws and words reads.

A `Measure` asks one question of a head: from these rows, does it look at those keys? A `Behaviour` is a set of measures
that one reading of a text answers, with the minimal pairs that test it. Ours are in `analyses.behaviours`; a user's own
are made in the same way (`docs/own_measures.md`).
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Bool
from torch import Tensor

from analyses.reading.windows import Window
from analyses.wording.plain_words import Label, Words
from interp.annotation import AnnotatedText
from interp.errors import InputError, one_of
from interp.patterns import Rows

Quantity = Literal["gain", "value", "lift"]
Null = Literal["any key", "same distance", "none"]
Attending = Literal["self", "cross"]
Probe = Literal["tag", "antecedent"]
UNSAID = Words("", "")
DECLARED: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
BEHAVIOURS: dict[str, dict[str, Any]] = {
    name: {"name": name, **declared} for name, declared in DECLARED["behaviours"].items()
}
"""By name, what is said of our behaviours and how they are drawn."""
Claims = dict[int, set[int]]
"""For each row (a column of a window's tokens) its keys, whether visible or not."""


@dataclass(frozen=True)
class Unit:
    """What a measure counts in: only gains of one unit can be ranked together."""

    title: str  # heads a table of such measures
    ranked: bool = True  # more is better; the others only describe
    drawn: Quantity = "gain"  # what gives a figure its colours: the gain, the value as it is, or the value as a ratio
    caption: str = ""  # how such a figure is read, where it shows no gains

    def __post_init__(self):
        one_of("drawn", self.drawn, Quantity)


UNITS = {name: Unit(**declared) for name, declared in DECLARED["units"].items()}
RANKED = tuple(name for name, unit in UNITS.items() if unit.ranked)


@dataclass(frozen=True)
class Rival:
    """A simpler rule that a head must beat. `looks` gives what it attends to, to the scorer of the measures it is for:

    of positions    `(rows)`: a pattern, `prompt 1 query key`
    of word pairs   `(items)`: the word that it chooses for each item, counted in the window; None: all words alike
    of antecedents  `(item)`: one score a candidate

    or is the number that it scores, where the measure's definition says it.
    """

    name: str
    looks: Callable[[Any], Any] | float | None

    def __call__(self, question: Any) -> Any:
        """What it attends to."""
        assert callable(self.looks)
        return self.looks(question)


@dataclass(frozen=True)
class Measure:
    """One question asked of every head.

    name        as tables have it: `previous-token`, `relation:obj:dependent->head`
    title       the same in plain words
    words       how it is worded of a head, and in examples; by default from its name or title
    unit        a key of `UNITS`
    mask        of the rows of a batch, the keys that satisfy it (`prompt query key`); None where there are none to
                point at (entropy)
    claims      instead of `mask`, of one window: which rows are eligible, and the keys that satisfy it
    pairs       instead of `claims`: the words that ask with the words that are sought, of a whole text. The head's
                choice is the word with most of its attention; rows and keys are the words' pieces, or (`foretells`) the
                row before a word is its only one
    rivals      what must be beaten: the strictest on the same rows is the baseline
    null        which keys change places with each other: any, those at about the same distance, or none say it
    of_words    keys are chosen for what they are, not for their distance: hiding them is compared with hiding others at
                the usual distances
    needs       of "tags", "relations", "chains", what a text must be annotated with, where its behaviour says none
    binary      each item is right or wrong: a finding takes eight documents, where means of attention take five
    later       asks for keys behind the query, which a causal stack does not see
    foretells   is asked where the next token is predicted, which only a causal stack does
    masked      is asked in the place of a masked word, which only models that fill masks have
    hidden      its claimed keys are knocked out
    label       what a head that shows it is called; the measure's name by default, None: nothing (other labels say it)
    together    measures that share this name count only where the head shows all of them
    reference   the rival that is enough to be beaten, where another measure (`together`) asks for the strictest
    tasks       the minimal pairs that ask about the same
    corpus      the text it is read on, where that is not the one that is given
    recorded    what the record of a training run calls it, where it is followed
    """

    name: str
    title: str = ""
    unit: str = "share"
    mask: Callable[[Rows], Bool[Tensor, "prompt query key"]] | None = None
    claims: Callable[[Window], Claims] | None = None
    pairs: Callable[[AnnotatedText], Iterable[tuple[int, int]]] | None = None
    needs: Sequence[str] = ()
    rivals: Sequence[Rival] = ()
    null: Null = "none"
    of_words: bool = True
    binary: bool = False
    later: bool = False
    foretells: bool = False
    masked: bool = False
    hidden: bool = True
    label: str | None = ""
    together: str = ""
    reference: str = ""
    tasks: Sequence[str] = ()
    corpus: str = ""
    recorded: str = ""
    words: Words = UNSAID

    def __post_init__(self):
        if not self.words.short:
            object.__setattr__(self, "words", Label.parse(self.name).words(self.title))
        if self.unit not in UNITS:
            raise InputError(f"measure {self.name}: expected a unit of {', '.join(UNITS)}, got {self.unit!r}")
        one_of("null", self.null, Null)
        for need in self.needs:
            one_of("needs", need, ("tags", "relations", "chains"))
        if sum(way is not None for way in (self.mask, self.claims, self.pairs)) > 1:
            raise InputError(f"measure {self.name}: expected one of `mask`, `claims` and `pairs`, got several")

    @property
    def called(self) -> str | None:
        """The label of a head that shows it; None where more of it is not better, or other labels say it."""
        if not UNITS[self.unit].ranked:
            return None
        return self.name if self.label == "" else self.label

    @property
    def fewest(self) -> int:
        """Documents with items of it that a finding takes; of fewer, tests say more than they know."""
        return 8 if self.binary or self.pairs is not None else 5

    @property
    def points(self) -> bool:
        """Whether there are keys that satisfy it."""
        return not (self.mask is None and self.claims is None and self.pairs is None)

    def keys_of(self, window: Window) -> Claims:
        """The rows that count in a window, each with the keys that satisfy the measure, whether visible or not."""
        if self.mask is not None:
            claims: Claims = {}
            for row, key in self.mask(window.rows)[0].nonzero().tolist():
                if row in window.scored:
                    claims.setdefault(row, set()).add(key)
            return claims
        if self.claims is not None:
            return self.claims(window)
        if self.pairs is None:
            return {}
        return (claims_ahead if self.foretells else pieces_of)(window, self.pairs(window.text))


def declared(behaviour: str, name: str, **options: Any) -> Measure:
    """A measure of ours: what `definitions.toml` says of it, and what is code."""
    fields: dict[str, Any] = {**DECLARED["measures"][behaviour][name], **options}
    if "words" in fields:
        fields["words"] = Words(**fields["words"])
    return Measure(name, **fields)


def pieces_of(window: Window, pairs: Iterable[tuple[int, int]]) -> Claims:
    """From the pieces of words that ask, where they are counted in this window, to those of the words they ask for."""
    claims: Claims = {}
    for query, target in pairs:
        if query != target and query in window.columns and target in window.columns and window.scores(query):
            for row in window.columns[query]:
                claims.setdefault(row, set()).update(window.columns[target])
    return claims


def claims_ahead(window: Window, pairs: Iterable[tuple[int, int]]) -> Claims:
    """From the token before each word that asks, where a causal model chooses it, to the pieces of what it asks for."""
    claims: Claims = {}
    for query, target in pairs:
        pieces = pieces_of(window, [(query, target)])
        if pieces and min(pieces):
            claims.setdefault(min(pieces) - 1, set()).update(pieces[min(pieces)])
    return claims


@dataclass(frozen=True)
class Behaviour:
    """Measures that are read together, and how they are tested, worded and drawn.

    name          the column `behaviour`
    title         the heading
    noun          what a headline calls it, where that is not the heading
    measures      every measure of it, in the order of its scorers
    collector     makes what adds them up: `collector(model, seed=, heads=)`
    headline      names of the measures that pages lead with
    needs         of "tags", "relations", "chains", what a text must be annotated with
    described     what was measured, in plain sentences
    grids         by unit, the question that the grid of its headline measures answers
    effects       its causal test: `effects(model, pairs=, seed=)`; None: there are no minimal pairs for it
    tasks         what builds each task of that test, by name (`analyses.tasks.causal_tests.Builders`)
    attention     the kind of attention that it is about
    bare          what the collector is told where only gains over the baseline count
    null          what it is told besides of heads that have learnt nothing
    cost          claims with their controls that one text has, about: what knock-outs of it cost
    words         of a document that they read at least, however large the model: fewer would hold no item
    probe         what reads a model without output layer: the word's tag, or whether two words are of one chain
    """

    name: str
    title: str
    measures: Sequence[Measure]
    collector: Callable[..., Any]
    headline: Sequence[str]
    needs: frozenset[str] = frozenset()
    described: str = ""
    grids: Mapping[str, str] = field(default_factory=dict)
    effects: Callable[..., Any] | None = None
    tasks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    attention: Attending = "self"
    bare: Mapping[str, Any] = field(default_factory=dict)
    null: Mapping[str, Any] = field(default_factory=dict)
    cost: int = 20
    words: int = 10
    probe: Probe = "tag"
    noun: str = ""

    def __post_init__(self):
        one_of("attention", self.attention, Attending)
        one_of("probe", self.probe, Probe)

    def measurable(self, *, causal: bool) -> list[Measure]:
        """The measures that a stack can show."""
        return [each for each in self.measures if not (each.later or each.masked if causal else each.foretells)]

    def __getitem__(self, name: str) -> Measure:
        """The measure of that name."""
        return {measure.name: measure for measure in self.measures}[name]
