"""What stands first on a page about one model? Sentences, the atlas of heads and a card of each, from the tables.

The values here are what `report/templates` shows: `overview`, `atlas` and `cards`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analyses.behaviours import RECORDED, vocabulary
from analyses.headlines import facts as fact_tables
from analyses.headlines import sentences as wording
from analyses.headlines.facts import Fact, Row, Size, Tables
from analyses.headlines.sentences import Sentence
from analyses.measures.definitions import Behaviour
from analyses.measures.findings import NOTABLE, both_ways
from analyses.page.sections import SCHEMAS, WAYS, Block, Section, Table
from analyses.viewer import Passage, Viewer
from analyses.wording import plain_words
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import HEAD, Place, heads_in, heads_named, kinds
from analyses.wording.plain_words import TEXTS, Label, Words, worded

_ROOM = 12  # layers or heads beside each other that have room for words
_ALIKE = 8  # heads that a card names as being like it
_NEAR = {"first-token": "first", **{f"offset:-{by}": f"−{by}" for by in (5, 4, 3, 2)}}
_NEAR |= {"previous-token": "−1", "self": "0", "next-token": "+1", "offset:2": "+2", "offset:3": "+3"}
"""By measure of attention to near tokens, what stands under its bar."""
_LOWEST_TOP = 0.2  # of attention: a bar that is full shows at least so much
_FARTHEST = 1.5  # of an answer: intervals beyond 1 are drawn so far
_TICKS = {"share": [("0", 0.0), ("100%", 1.0)], "lift": [("1×", 0.0)]}
_TICKS |= {"correlation": [("0", 0.0), ("1", 1.0)], "nats": [("0", 0.0)]}
_MEASURED = "measure value baseline baseline_name gain interval q n"
_HEADINGS = {"looks there and needed": "Looks there and needed", "needed": "Needed"}
_ATTENDS, _UNTESTED = "Attention holds; effect not established", "Attends; untested"


class Cell(NamedTuple):
    """A head in the atlas: `id` leads to its card, and its words are those of two facts."""

    id: str
    name: str
    state: Literal["needed", "looks", "quiet"]  # filled, outlined, or empty
    behaviour: str = ""
    first: str = ""
    second: str = ""


class Atlas(NamedTuple):
    """The heads of one kind of attention, the last layer first; `dense` where there is no room for words.

    `links` are drawn between the heads of each set: its behaviour, and a point a head, in cells from the upper left.
    """

    title: str
    layers: Sequence[Sequence[Cell]]
    dense: bool
    links: Sequence[tuple[str, Sequence[tuple[float, float]]]] = ()


class Bar(NamedTuple):
    """A number with its interval, in words and as fractions of the way along a line, which has `ticks` with a name.

    `brief` is the number alone; what it is `over` is heard beside it, and seen in `text`.
    """

    text: str
    brief: str
    value: float
    low: float
    high: float
    ticks: Sequence[tuple[str, float]]
    over: str = ""


Values = Mapping[str, Any]
"""What a template shows, by name.

A fact: `words` its sentence, `short` its name, `behaviour`, `note`, `bars`. A step of a strip, one distance or pair of
tags: `name`, `text` its number in words, `height` of its bar, 0 to 1. An example: `words` with what each is (`asks`,
`seen`, `both`), `text`, and whether the word that is seen is sought (`right`). A curve, a score over training: `text`
when the head formed, `note`, `behaviour`, `points` (step and score), and as fractions of the way the step by which it
had `formed` and the `baseline`.
"""


@dataclass(frozen=True)
class Card:
    """All that is known of one head."""

    id: str
    name: str
    groups: Sequence[tuple[str, Sequence[Values]]]  # facts under headings
    distance: Sequence[Values]  # attention by distance, that to the first position first
    tags: Sequence[Values]  # attention between tags, beside what distance explains
    examples: Values | None  # sentences: what they are examples of, the `best` and those at `random`
    alike: Sequence[str]  # the ids of heads with the same first fact
    tasks: Table | None  # its share in each causal task
    rest: Table  # everything else that was measured
    rows: str  # its rows, to copy
    formed: Values | None = None  # when it formed, where the run that trained the model is known


@dataclass(frozen=True)
class Overview:
    """What stands first on a page about one model: a sentence for each behaviour, the atlas of heads, and their cards.

    `cards` begin with the head that is shown first. `below` stands under the atlas: a passage to read.
    """

    sentences: Sequence[Sentence]
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
) -> tuple[str, Overview]:
    """The headline, and what stands first."""
    if not ranked:
        facts = fact_tables.facts(tables, behaviours)
        ranked = {place: fact_tables.ranked(head_facts) for place, head_facts in facts.items()}
    sentences = wording.sentences(tables, ranked, behaviours)
    viewers = [Viewer(tuple(passages), fact_tables.called(ranked), heads=False)] if passages else []
    below = [Section("Where does a word look?", viewers)] if viewers else []
    cards = [*_cards(tables, ranked, vocabulary(behaviours))]
    return wording.headline(sentences), Overview(sentences, _atlases(ranked, kinds(tables["heads"]) > 1), cards, below)


def _atlases(ranked: Mapping[Place, Sequence[Fact]], by_kind: bool) -> list[Atlas]:
    atlases = []
    for (stack, attention), group in groupby(ranked, key=lambda place: place[:2]):
        heads = [*group]
        facts_of_kind = [fact for place in heads for fact in ranked[place]]
        layers = [
            [_cell(place, ranked[place], by_kind) for place in layer]
            for _, layer in groupby(sorted(heads), key=lambda place: place.layer)
        ]
        title = {"cross": "Cross-attention"}.get(attention, stack.capitalize()) if by_kind else "Heads"
        dense = max(len(layers), *map(len, layers)) > _ROOM
        atlases.append(Atlas(title, layers[::-1], dense, _links(facts_of_kind, len(layers))))
    return atlases


def _links(facts: Iterable[Fact], n_layers: int) -> list[tuple[str, list[tuple[float, float]]]]:
    sets = {str(row): (fact.behaviour, row["heads"]) for fact in facts if (row := fact.row("sets"))}
    return [
        (
            behaviour,
            [
                (round(head + 0.92 - 0.12 * index, 2), round(n_layers - layer - 0.15, 2))
                for layer, head in heads_named(names)
            ],
        )
        for index, (behaviour, names) in enumerate(sets.values())
    ]


def _cell(place: Place, facts: Sequence[Fact], by_kind: bool) -> Cell:
    id, name = place.named(prefix=by_kind), place.named(prefix=False)
    if not facts:
        return Cell(id, name, "quiet")
    first, *rest = (plain_words.breakable(fact.words.short) for fact in facts[:2])
    state = "needed" if any(fact.is_needed for fact in facts) else "looks"
    return Cell(id, name, state, facts[0].behaviour, first, "".join(rest))


def _cards(tables: Tables, ranked: Mapping[Place, Sequence[Fact]], words: Mapping[str, Words]) -> Iterator[Card]:
    heads, effects = tables["heads"], tables.get("effects", pd.DataFrame())
    by_kind, answers = kinds(heads) > 1, fact_tables.answers(tables)
    ends = _ends([size for facts in ranked.values() for fact in facts for size in fact.sizes])
    measured = _by_place(heads.loc[heads["sink"] == "kept"])
    tested = _by_place(both_ways(effects) if len(effects) else effects)
    examples = _by_place(tables.get("example_sentences", pd.DataFrame()))
    strongest = fact_tables.strongest(ranked)
    alike: dict[Words, list[Place]] = {}
    for place in strongest:
        alike.setdefault(ranked[place][0].words, []).append(place)
    for place in dict.fromkeys([*strongest, *ranked]):
        facts, id = ranked[place], place.named(prefix=by_kind)
        first = measured[place].drop_duplicates("measure")
        values = dict(zip(map(str, first["measure"]), first["value"].astype(float), strict=True))
        formed = _formation(tables, place, facts, words)
        groups: dict[str, list[Values]] = {}
        cited = []
        for fact in facts:
            sentence = f"{wording.fact_clause(fact, id, words)}."
            untested = _ATTENDS if any(size.unit == "nats" for size in fact.sizes) else _UNTESTED
            bars = [_bar(size, *ends[size.unit]) for size in fact.sizes if np.isfinite(size.low)]
            texts = {"words": sentence, "short": fact.words.short, "note": wording.rates(fact)}
            groups.setdefault(_HEADINGS.get(fact.kind, untested), []).append(
                {**texts, "behaviour": fact.behaviour, "bars": bars}
            )
            numbers = "; ".join(wording.numbers(fact))
            cited.append("\n".join([f"{sentence} {numbers}", *(f"    tables/{row}" for row in fact.rows)]))
        similar = [each for each in alike[facts[0].words] if each != place] if facts else []
        cited += [f"{formed[0]['text']}\n    tables/{formed[1]}"] if formed else []
        tasks = tested[place].to_dict("records") if place in tested else []
        tasks = [row | {"carried": answers.get(row["task"])} for row in tasks]
        yield Card(
            id=id,
            name=id.replace(".", " ", 1) if by_kind else id,
            groups=[*groups.items()],
            distance=_by_distance(values),
            tags=_between_tags(values),
            examples=_examples(examples[place], words) if place in examples else None,
            alike=[each.named(prefix=by_kind) for each in similar[:_ALIKE]],
            tasks=SCHEMAS["both ways"].page(tasks, f"task {WAYS}") if tasks else None,
            rest=SCHEMAS["heads"].page(measured[place].to_dict("records"), _MEASURED, TEXTS["card rest"]),
            rows="\n".join(cited),
            formed=formed[0] if formed else None,
        )


def _by_place(rows: pd.DataFrame) -> dict[Place, pd.DataFrame]:
    groups = (group for _, group in rows.groupby(HEAD, sort=False)) if len(rows) else ()
    return {heads_in(group)[0]: group for group in groups}


def _bar(size: Size, low: float, high: float) -> Bar:

    def fraction(value: float) -> float:
        return float(np.clip((value - low) / (high - low), 0, 1))

    ticks = [(name, fraction(value)) for name, value in _TICKS[size.unit]]
    over = f"over {wording.baseline_text(size)}" if size.what == "gain" and size.unit not in {"lift", "nats"} else ""
    ends = fraction(size.value), fraction(size.low), fraction(size.high)
    return Bar(wording.size_text(size), wording.brief_size(size), *ends, ticks, over)


def _ends(sizes: Sequence[Size]) -> dict[str, tuple[float, float]]:
    ends = {}
    for unit in _TICKS:
        of_unit = [size for size in sizes if size.unit == unit and np.isfinite(size.low)]
        top = max((size.high for size in of_unit), default=1.0)
        top = float(np.clip(top, 1, _FARTHEST)) if unit in {"share", "correlation"} else max(top, 1e-6)
        ends[unit] = min(0.0, *(max(size.low, -0.2 * top) for size in of_unit), 0.0), top
    return ends


def _by_distance(values: Mapping[str, float]) -> list[Values]:
    near = {name: values[measure] for measure, name in _NEAR.items() if measure in values}
    top = max(_LOWEST_TOP, *(value for value in near.values() if np.isfinite(value)), 0.0)
    texts = {name: percent(value).replace("under ", "<").replace("over ", ">") for name, value in near.items()}
    steps = [{"name": name, "text": texts[name], "height": max(value, 0.0) / top} for name, value in near.items()]
    return [*steps] if {*near} - {"first"} else []


def _between_tags(values: Mapping[str, float]) -> list[Values]:
    """Attention between tags, as a multiple of what distance explains; a full bar is four times."""
    labels = {Label.parse(name): value for name, value in values.items() if np.isfinite(value)}
    return [
        {"name": label.words().short, "text": f"{value:.1f}×", "height": float(np.clip(value / 4, 0, 1))}
        for label, value in labels.items()
        if label.kind == "tag"
    ]


def _examples(rows: pd.DataFrame, words: Mapping[str, Words]) -> Values:
    first, examples = rows.iloc[0], [(row["choice"], _example(row)) for row in rows.to_dict("records")]
    question = plain_words.topic(first["label"], first["measure"], words) if isinstance(first["measure"], str) else None
    counts = {"asked": number(int(first["asked"])), "read": counted(int(first["read"]), "passage")}
    sentences = {choice: [each for name, each in examples if name == choice] for choice in ("best", "random")}
    return {"question": question, **counts, **sentences}


def _example(row: Mapping[str, Any]) -> Values:
    parts = {row["asks"]: "asks", row["seen"]: "seen"} if row["asks"] != row["seen"] else {row["asks"]: "both"}
    words = [(word, parts.get(index, "")) for index, word in enumerate(str(row["sentence"]).split(" "))]
    right = bool(row["right"]) if isinstance(row["measure"], str) else None
    return {"words": words, "text": percent(float(row["weight"])), "right": right}


def _formation(
    tables: Tables, place: Place, facts: Sequence[Fact], words: Mapping[str, Words]
) -> tuple[Values, Row] | None:
    """When the first fact formed that was measured while the model was trained, and held at the last look."""
    if "when_formed" not in tables:
        return None
    cells = ((fact, str(row["measure"])) for fact in facts for row in fact.rows if row.table == "heads")
    for fact, measure in ((fact, measure) for fact, measure in cells if measure in RECORDED):
        key = {**place._asdict(), "measure": RECORDED[measure]}
        pair = (tables[name] for name in ("when_formed", "forming"))
        rows, points = (each.loc[(each[[*key]] == [*key.values()]).all(axis=1)] for each in pair)
        if len(rows) and pd.notna(rows["formed_at"].iloc[0]):
            row = Row("when_formed", rows.iloc[0].to_dict())
            return _curve(worded(measure, words).said, fact.behaviour, row.cells, points), row
    return None


def _curve(does: str, behaviour: str, row: Mapping[str, Any], points: pd.DataFrame) -> Values:
    points = points.sort_values("step")
    steps, values = points["step"].astype(int).tolist(), points["value"].astype(float).tolist()
    low, high, highest = min(0.0, *values), max(1.0, *values), values.index(max(values))

    def height(value: float) -> float:
        return (value - low) / (high - low)

    step, last = number(int(row["formed_at"])), number(int(row["step"]))
    onset = f"there from the first look on, step {step} of {last}"
    if pd.notna(row["before"]):
        onset = f"formed by step {step} of {last}, not yet at {number(int(row['before']))}"
    marks = [0, highest, -1] if values[highest] - values[-1] >= NOTABLE else [0, -1]  # a later loss is named
    note = ", ".join(f"{number(values[index])} at step {number(steps[index])}" for index in dict.fromkeys(marks))
    has_baseline = pd.notna(row["baseline"])
    note += f"; the strictest baseline (grey) has {number(row['baseline'])}" * has_baseline
    return {
        "text": f"{does[0].upper()}{does[1:]}: {onset}.",
        "note": f"{note}.",
        "behaviour": behaviour,
        "points": [(step / steps[-1], height(value)) for step, value in zip(steps, values, strict=True)],
        "formed": int(row["formed_at"]) / steps[-1],
        "baseline": height(float(row["baseline"])) if has_baseline else None,
    }
