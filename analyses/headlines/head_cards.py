"""What stands first on a page about one model? Sentences, the atlas of heads and a card of each, from the tables.

The values here are what `report/templates` shows: `overview`, `atlas` and `cards`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analyses.headlines import ranking, say
from analyses.headlines.facts import Fact, Size, Tables, answers, facts, vocabulary
from analyses.headlines.formation_curves import Curve, formation
from analyses.headlines.sentences import Sentence, headline, sentences
from analyses.measures import Behaviour
from analyses.page.sections import Block, Section, Table
from analyses.tables.findings import both_ways
from analyses.tables.schema import SCHEMAS, WAYS
from analyses.viewer import Passage, Viewer
from analyses.wording import plain_words
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import HEAD, Place, kinds, places
from analyses.wording.plain_words import TEXTS, Label, Words

_ROOM = 12  # layers or heads beside each other that have room for words
_ALIKE = 8  # heads that a card names as being like it
_NEAR = {
    "first-token": "first",
    **{f"offset:-{by}": f"−{by}" for by in (5, 4, 3, 2)},
    **{"previous-token": "−1", "self": "0", "next-token": "+1", "offset:2": "+2", "offset:3": "+3"},
}
"""By measure of attention to near tokens, what stands under its bar."""
_LOWEST_TOP = 0.2  # of attention: a bar that is full shows at least so much
_FARTHEST = 1.5  # of an answer: intervals beyond 1 are drawn so far
_TICKS: dict[str, list[tuple[str, float]]] = {
    "share": [("0", 0.0), ("100%", 1.0)],
    "lift": [("1×", 0.0)],
    "correlation": [("0", 0.0), ("1", 1.0)],
    "nats": [("0", 0.0)],
}
_MEASURED = "measure value baseline baseline_name gain interval q n"
_HEADINGS = {"looks there and needed": "Looks there and needed", "needed": "Needed"}
_HOLDS, _UNASKED = "Attention holds; effect not established", "Attends; untested"


class Cell(NamedTuple):
    """A head in the atlas: `id` leads to its card, and two facts are told in it."""

    id: str
    name: str
    stands: Literal["needed", "looks", "quiet"]  # filled, outlined, or empty
    behaviour: str = ""
    first: str = ""
    second: str = ""


class Atlas(NamedTuple):
    """The heads of one kind of attention, the last layer first; `dense` where there is no room for words."""

    title: str
    layers: Sequence[Sequence[Cell]]
    dense: bool


class Bar(NamedTuple):
    """A number with its interval, in words and as fractions of the way along a line, which has `ticks` with a name.

    `brief` is the number alone; what it is `over` is heard beside it, and seen in `text`.
    """

    text: str
    brief: str
    at: float
    low: float
    high: float
    ticks: Sequence[tuple[str, float]]
    over: str = ""


class Known(NamedTuple):
    """A fact on a card: its sentence, its name, and its bars."""

    words: str
    short: str
    behaviour: str
    note: str
    bars: Sequence[Bar]


class Step(NamedTuple):
    """One distance or pair of tags in a strip: its name, its number in words, and how high its bar stands, 0 to 1."""

    name: str
    text: str
    height: float


class Example(NamedTuple):
    """A sentence, each word with what it is (`asks`, `seen`, `both`), and whether what is seen is what is sought."""

    words: Sequence[tuple[str, str]]
    text: str
    right: bool | None = None


@dataclass(frozen=True)
class Card:
    """All that is known of one head.

    groups    facts under headings
    distance  attention by distance, the first position apart as `sink`
    tags      attention between tags, beside what distance explains
    examples  sentences in which it is surest, and at random, each under what they are examples of
    alike     the ids of heads of which the same is told first
    tasks     its share in each causal task
    rest      everything else that was measured
    rows      its rows, to copy
    formed    when it formed, where the run that trained the model is known
    """

    id: str
    name: str
    groups: Sequence[tuple[str, Sequence[Known]]]
    distance: Sequence[Step]
    sink: Step | None
    tags: Sequence[Step]
    examples: Sequence[tuple[str, Sequence[Example]]]
    alike: Sequence[str]
    tasks: Table | None
    rest: Table
    rows: str
    formed: Curve | None = None


@dataclass(frozen=True)
class Overview:
    """What stands first on a page about one model: a sentence for each behaviour, the atlas of heads, and their cards.

    `cards` begin with the head that is shown first. `below` stands under the atlas: a passage to read.
    """

    said: Sequence[Sentence]
    atlases: Sequence[Atlas]
    cards: Sequence[Card]
    below: Sequence[Block] = ()

    @property
    def ids(self) -> list[str]:
        """Of the heads that have a card."""
        return [card.id for card in self.cards]


def overview(
    tables: Tables,
    behaviours: Mapping[str, Behaviour],
    passages: Sequence[Passage] = (),
    ranked: Mapping[Place, Sequence[Fact]] = MappingProxyType({}),
) -> tuple[str, Overview, list[Sentence]]:
    """The headline, what stands first, and the sentences with the rows that they come from.

    Args:
        tables: of a report, by name: `heads` at least; `example_sentences`, where sentences were read; `when_formed`
            and `forming`, where the run that trained the model is known.
        behaviours: by name, those that were measured.
        passages: what stands under the atlas, for the head that is chosen there.
        ranked: every head's facts, the first to be told first, where they are known; else they are made of the tables.
    """
    ranked = ranked or {place: ranking.ranked(several) for place, several in facts(tables, behaviours).items()}
    said = sentences(tables, ranked, behaviours)
    order = dict.fromkeys([*ranking.strongest(ranked), *ranked])
    cards = _Cards(tables, ranked, vocabulary(behaviours))
    viewers = [Viewer(tuple(passages), ranking.called(ranked), heads=False)] if passages else []
    first = Overview(
        said,
        _atlases(ranked, cards.several),
        [cards.card(place) for place in order],
        [Section("Where does a word look?", viewers)] if viewers else [],
    )
    return headline(said), first, said


def _atlases(ranked: Mapping[Place, Sequence[Fact]], several: bool) -> list[Atlas]:
    """An atlas for each kind of attention."""
    atlases = []
    for (stack, attention), heads in groupby(ranked, key=lambda place: place[:2]):
        layers = [
            [_cell(place, ranked[place], several) for place in layer]
            for _, layer in groupby(sorted(heads), key=lambda place: place.layer)
        ]
        title = {"cross": "Cross-attention"}.get(attention, stack.capitalize()) if several else "Heads"
        atlases.append(Atlas(title, layers[::-1], max(len(layers), *map(len, layers)) > _ROOM))
    return atlases


def _cell(place: Place, facts: Sequence[Fact], several: bool) -> Cell:
    id, name = place.named(several=several), place.named(several=False)
    if not facts:
        return Cell(id, name, "quiet")
    first, *rest = (plain_words.breakable(fact.words.short) for fact in facts[:2])
    stands = "needed" if any(fact.needed for fact in facts) else "looks"
    return Cell(id, name, stands, facts[0].behaviour, first, "".join(rest))


class _Cards:
    """Makes the cards of a model's heads, on scales that they share."""

    def __init__(self, tables: Tables, ranked: Mapping[Place, Sequence[Fact]], words: Mapping[str, Words]):
        self.tables, self.ranked, self.words = tables, ranked, words
        self.several = kinds(tables["heads"]) > 1
        self.ends = _ends([size for facts in ranked.values() for fact in facts for size in fact.sizes])
        effects, examples = (tables.get(name, pd.DataFrame()) for name in ("effects", "example_sentences"))
        self.measured = _by_place(tables["heads"].loc[tables["heads"]["sink"] == "kept"])
        self.effects, self.examples = _by_place(both_ways(effects) if len(effects) else effects), _by_place(examples)
        self.answers = answers(tables)
        self.alike: dict[Words, list[Place]] = {}
        for place in ranking.strongest(ranked):
            self.alike.setdefault(ranked[place][0].words, []).append(place)

    def card(self, place: Place) -> Card:
        """The card of one head."""
        facts, id = self.ranked[place], place.named(several=self.several)
        measured, examples = self.measured[place], self.examples.get(place)
        first = measured.drop_duplicates("measure")
        by_name = pd.Series(first["value"].to_numpy(), index=first["measure"])
        steps = _by_distance(by_name)
        formed = formation(self.tables, place, facts, self.words)
        cited = [_cited(fact, say.fact(fact, id, self.words)) for fact in facts]
        cited += [f"{formed[0].text}\n    tables/{formed[1]}"] if formed else []
        same = self.alike[facts[0].words] if facts else []
        return Card(
            id,
            id.replace(".", " ", 1) if self.several else id,
            self._groups(facts, id),
            [step for step in steps if step.name != "first"],
            next((step for step in steps if step.name == "first"), None),
            _between_tags(by_name),
            [] if examples is None else _examples(examples, self.words),
            [each.named(several=self.several) for each in same if each != place][:_ALIKE],
            self._tasks(self.effects.get(place)),
            SCHEMAS["heads"].page(measured.to_dict("records"), _MEASURED, TEXTS["card rest"]),
            "\n".join(cited),
            formed[0] if formed else None,
        )

    def _groups(self, facts: Sequence[Fact], head: str) -> list[tuple[str, list[Known]]]:
        """The facts under what they rest on; what the first fact rests on stands first."""
        groups: dict[str, list[Known]] = {}
        for fact in facts:
            untested = _HOLDS if any(size.unit == "nats" for size in fact.sizes) else _UNASKED
            bars = [self._bar(size) for size in fact.sizes if np.isfinite(size.low)]
            known = Known(say.fact(fact, head, self.words), fact.words.short, fact.behaviour, say.rates(fact), bars)
            groups.setdefault(_HEADINGS.get(fact.kind, untested), []).append(known)
        return [*groups.items()]

    def _bar(self, size: Size) -> Bar:
        """A size on the line that all of its unit share."""
        low, high = self.ends[size.unit]

        def along(value: float) -> float:
            return float(np.clip((value - low) / (high - low), 0, 1))

        ticks = [(name, along(value)) for name, value in _TICKS[size.unit]]
        over = f"over {say.over(size)}" if size.what == "gain" and size.unit not in {"lift", "nats"} else ""
        return Bar(say.size(size), say.brief(size), along(size.value), along(size.low), along(size.high), ticks, over)

    def _tasks(self, effects: pd.DataFrame | None) -> Table | None:
        """What the head carries of each causal task, needed or not."""
        if effects is None:
            return None
        rows = [row | {"carried": self.answers.get(row["task"])} for row in effects.to_dict("records")]
        return SCHEMAS["both ways"].page(rows, f"task {WAYS}")


def _by_place(rows: pd.DataFrame) -> dict[Place, pd.DataFrame]:
    """A table's rows by head."""
    groups = (own for _, own in rows.groupby(HEAD, sort=False)) if len(rows) else ()
    return {places(own)[0]: own for own in groups}


def _ends(sizes: Sequence[Size]) -> dict[str, tuple[float, float]]:
    """Where the line of each unit begins and ends: at the largest of all heads, a share's at 1 to 1.5."""
    ends = {}
    for unit in _TICKS:
        same = [size for size in sizes if size.unit == unit and np.isfinite(size.low)]
        top = max((size.high for size in same), default=1.0)
        top = float(np.clip(top, 1, _FARTHEST)) if unit in {"share", "correlation"} else max(top, 1e-6)
        ends[unit] = min(0.0, *(max(size.low, -0.2 * top) for size in same), 0.0), top
    return ends


def _by_distance(values: pd.Series) -> list[Step]:
    """Mean attention to near tokens, and to the first position; the highest bar is the largest, or a fifth."""
    numbers = values.to_dict()
    known = {at: float(numbers[name]) for name, at in _NEAR.items() if name in numbers}
    top = max(_LOWEST_TOP, *(value for value in known.values() if np.isfinite(value)), 0.0)
    texts = {at: percent(value).replace("under ", "<").replace("over ", ">") for at, value in known.items()}
    return [Step(at, texts[at], max(value, 0.0) / top) for at, value in known.items()]


def _between_tags(values: pd.Series) -> list[Step]:
    """Attention between tags, as a multiple of what distance explains; a full bar is four times."""
    labels = {Label.parse(str(name)): float(value) for name, value in values.items() if np.isfinite(value)}
    return [
        Step(label.words().short, f"{value:.1f}×", float(np.clip(value / 4, 0, 1)))
        for label, value in labels.items()
        if label.kind == "tag"
    ]


def _examples(rows: pd.DataFrame, words: Mapping[str, Words]) -> list[tuple[str, list[Example]]]:
    """Where a head is surest of what its label says, or of anything, and at random."""
    first = rows.iloc[0]
    count = f"{number(int(first['asked']))} %s in {counted(int(first['read']), 'passage')} that were read"
    best, drawn = ([*_sentences(rows.loc[rows["choice"] == choice])] for choice in ("best", "random"))
    if not isinstance(first["measure"], str):
        surest = "No label of this head is about words of this text. Of any words, those where it is surest:"
        return [(surest, best), (f"Any words, drawn at random among {count % 'words'}:", drawn)]
    asked = plain_words.asked(first["label"], first["measure"], words)
    surest = f"{asked.words[0].upper()}{asked.words[1:]} whose {asked.whose}, the surest first:"
    if not best:
        surest = f"Of {count % asked.words} there is none whose {asked.whose}."
    among = f"Drawn at random among {count % asked.words}: ✓ where the {asked.whose}, ✗ where it is not:"
    return [(surest, [each._replace(right=None) for each in best]), (among, drawn)]


def _sentences(rows: pd.DataFrame) -> Iterator[Example]:
    """Sentences with the word that asks and the word attended to."""
    for row in rows.to_dict("records"):
        words = [(word, _part(at, row)) for at, word in enumerate(str(row["sentence"]).split(" "))]
        right = bool(row["right"]) if isinstance(row["measure"], str) else None
        yield Example(words, percent(float(row["weight"])), right)


def _part(at: int, row: Mapping[str, Any]) -> str:
    asks, seen = at == row["asks"], at == row["seen"]
    return "both" if asks and seen else "asks" if asks else "seen" if seen else ""


def _cited(fact: Fact, sentence: str) -> str:
    """A fact's rows with its numbers, to copy."""
    rows = (f"    tables/{row}" for row in fact.rows)
    return "\n".join([f"{sentence} {'; '.join(say.numbers(fact))}", *rows])
