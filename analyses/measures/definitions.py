"""What is a measure, and what is a behaviour? Values that scores, knock-outs, figures and pages all read.

A `Measure` asks one question about a head: from these rows, does it look at those keys? A `Behaviour` is a set of
measures that one pass over a text answers, with the minimal pairs that test it. Ours are in `analyses.behaviours`;
users make theirs in the same way (`docs/own_measures.md`).
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
"""The declared fields of our behaviours, by name."""
Claims = dict[int, set[int]]
"""The keys that each row claims, visible or not; a row is a column of the window's tokens."""


@dataclass(frozen=True)
class Unit:
    """The unit of a measure. Only gains in the same unit are ranked together."""

    title: str  # heading of a table of such measures
    ranked: bool = True  # whether more is better; other measures only describe
    drawn: Quantity = "gain"  # what colours show; "lift" is the value as a ratio
    caption: str = ""  # how to read such a figure, if it does not show gains

    def __post_init__(self):
        one_of("drawn", self.drawn, Quantity)


UNITS = {name: Unit(**declared) for name, declared in DECLARED["units"].items()}
RANKED = tuple(name for name, unit in UNITS.items() if unit.ranked)


@dataclass(frozen=True)
class Rival:
    """A simpler rule that a head must beat. `looks` returns what the rule attends to, in the scorer's form:

    positions    `(rows)`: a pattern, `prompt 1 query key`
    word pairs   `(items)`: the word chosen for each item, counted in the window; None: all words alike
    antecedents  `(item)`: one score per candidate

    Or `looks` is the rule's score, if the measure's definition fixes that number.
    """

    name: str
    looks: Callable[[Any], Any] | float | None

    def __call__(self, question: Any) -> Any:
        """What the rule attends to."""
        assert callable(self.looks)
        return self.looks(question)


@dataclass(frozen=True)
class Measure:
    """One question about every head.

    name        its name in tables: `previous-token`, `relation:obj:dependent->head`
    title       the same in plain words
    words       how sentences and examples word it; by default its name or title
    unit        a key of `UNITS`
    mask        the keys that satisfy it, for the rows of a batch (`prompt query key`); None if it claims no keys
                (entropy)
    claims      instead of `mask`, for one window: the eligible rows, and the keys that satisfy it
    pairs       instead of `claims`: pairs of words of a whole text, query and target. The head chooses the word with
                most of its attention. Rows and keys are the words' pieces; with `foretells`, the only row is the one
                before the query
    rivals      simpler rules; the best on the same rows is the baseline
    null        which keys the null permutes: any, those at about the same distance, or none
    of_words    keys are chosen for what they are, not for their distance; hiding them is also compared with hiding keys
                at the usual distances
    needs       the annotation a text must have ("tags", "relations", "chains"), if its behaviour names none
    binary      each item is right or wrong: a finding needs eight documents (means of attention need five)
    later       claims keys after the query, which a causal stack does not see
    foretells   reads the row that predicts the word, which only a causal stack has
    masked      reads a masked word, which only models that fill masks have
    hidden      its claimed keys are knocked out
    label       the label of a head that shows it, by default the measure's name; None: no label (others say it)
    together    measures that share this name count only if the head shows all of them
    reference   the rival that the head must beat here, if another measure (`together`) demands the strictest
    tasks       the minimal pairs that ask the same question
    corpus      the text to read it on, if not the given one
    recorded    its name in the record of a training run, if recorded there
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
        """The label of a head that shows the measure; None if more is not better, or if other labels say it."""
        if not UNITS[self.unit].ranked:
            return None
        return self.name if self.label == "" else self.label

    @property
    def fewest(self) -> int:
        """How many documents with items a finding needs; with fewer, tests are too optimistic."""
        return 8 if self.binary or self.pairs is not None else 5

    @property
    def points(self) -> bool:
        """Whether the measure claims keys."""
        return any(way is not None for way in (self.mask, self.claims, self.pairs))

    def keys_of(self, window: Window) -> Claims:
        """The eligible rows of a window, each with the keys that satisfy the measure, visible or not."""
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
    """One of our measures: its fields from `definitions.toml`, and those that are code."""
    fields: dict[str, Any] = {**DECLARED["measures"][behaviour][name], **options}
    if "words" in fields:
        fields["words"] = Words(**fields["words"])
    return Measure(name, **fields)


def pieces_of(window: Window, pairs: Iterable[tuple[int, int]]) -> Claims:
    """From the pieces of each query word that the window scores to the pieces of its targets."""
    claims: Claims = {}
    for query, target in pairs:
        if query != target and query in window.columns and target in window.columns and window.scores(query):
            for row in window.columns[query]:
                claims.setdefault(row, set()).update(window.columns[target])
    return claims


def claims_ahead(window: Window, pairs: Iterable[tuple[int, int]]) -> Claims:
    """From the token before each query word, where a causal model predicts it, to the pieces of its targets."""
    claims: Claims = {}
    for query, target in pairs:
        pieces = pieces_of(window, [(query, target)])
        if pieces and min(pieces):
            claims.setdefault(min(pieces) - 1, set()).update(pieces[min(pieces)])
    return claims


@dataclass(frozen=True)
class Behaviour:
    """Measures that are read together, and how to test, word and draw them.

    name          the column `behaviour`
    title         the heading
    noun          its name in headlines, if not the heading
    measures      all its measures, in the order of its scorers
    collector     makes the object that adds them up: `collector(model, seed=, heads=)`
    headline      names of the measures that pages lead with
    needs         the annotation a text must have: of "tags", "relations", "chains"
    described     what is measured, in plain sentences
    grids         by unit, the question that the grid of headline measures answers
    effects       its causal test: `effects(model, pairs=, seed=)`; None: it has no minimal pairs
    tasks         by name, the builder of each task of that test (`analyses.tasks.causal_tests.Builders`)
    attention     the kind of attention that it is about
    bare          options of the collector if only gains over the baseline matter
    null          further options for heads that learnt nothing
    cost          roughly how many claims, with controls, one text has, which sets the cost of knock-outs
    words         how many words of a document knock-outs read at least, in any model: fewer hold no item
    probe         how to read a model without output layer: by a probe of tags, or of antecedents
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
