"""What stands first on a page about one model? A headline, small pictures of its heads, and a card of each.

A card shows one fact at a time. A sentence shows where the head looks, the model's answers before and after show what
breaks when it is changed, and an axis shows what it had to beat. The values here feed the templates `overview`, `atlas`
and `cards` in `report/templates`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from analyses.behaviours import RECORDED, vocabulary
from analyses.headlines import facts as fact_tables
from analyses.headlines import sentences as wording
from analyses.headlines.facts import Fact, Row, Tables
from analyses.headlines.flip_panel import FlipPanel, flip_panels
from analyses.headlines.sentences import Sentence
from analyses.measures.definitions import Behaviour
from analyses.measures.findings import DISCOVERY, NOTABLE, both_ways
from analyses.page.sections import SCHEMAS, WAYS, Bars, Block, Details, Table, emphasis
from analyses.viewer import Passage, Viewer
from analyses.viewer.pictures import Picture, picture
from analyses.viewer.training_steps import TrainingSteps
from analyses.wording import plain_words
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import HEAD, Place, heads_in, kinds
from analyses.wording.plain_words import TEXTS, Label, Words, worded

_NARROW = 5  # heads side by side from which words are shortened
_ROOM = 12  # layers or heads side by side that leave room for words
_ALIKE = 8  # similar heads that a card names
_NEAR = {"first-token": "first", **{f"offset:-{by}": f"−{by}" for by in (5, 4, 3, 2)}}
_NEAR |= {"previous-token": "−1", "self": "0", "next-token": "+1", "offset:2": "+2", "offset:3": "+3"}
"""The label under the bar of each measure of attention to near tokens."""
_LOWEST_TOP = 0.2  # attention that a full bar stands for, at least
_READERS = 3  # that a card names: the strongest on the choosing half of the pairs
_APART = 0.15  # of an axis: names any nearer would overlap
_MOST = 20  # rows of a card's table; `tables/heads` has all
_MEASURED = "measure value baseline baseline_name gain interval q n"


class Cell(NamedTuple):
    """A head in the atlas: `id` links to its card, `word` is its first fact, and `picture` its attention."""

    id: str
    name: str
    state: Literal["needed", "looks", "quiet"]  # tinted, coloured, or grey
    behaviour: str = ""
    word: str = ""
    picture: Picture | None = None


class Atlas(NamedTuple):
    """The heads of one kind of attention, last layer first; `dense` if there is no room for words."""

    title: str
    layers: Sequence[Sequence[Cell]]
    dense: bool


class Point(NamedTuple):
    """A head or a rule on an axis, as fractions of its length; some have an interval and a name."""

    kind: Literal["this", "named", "other", "rule"]
    at: float
    low: float = float("nan")
    high: float = float("nan")
    name: str = ""


class Axis(NamedTuple):
    """What a fact had to beat: this head, the other heads and the rule on one line."""

    points: Sequence[Point]
    ticks: Sequence[tuple[str, float]]
    text: str


class Example(NamedTuple):
    """Words with their roles (`asks`, `seen`, `both` or none), the attention between them, and whether it is right.

    `bars` holds the model's answers before and after the change, if they were measured.
    """

    words: Sequence[tuple[str, str]]
    text: str
    right: bool | None
    bars: Bars | None = None
    lost: float = 0.0  # probability of the answer
    closing = frozenset(",.;:!?")  # these words follow without a space


@dataclass(frozen=True)
class FactCard:
    """A fact in three parts, and more examples of it."""

    id: str
    fact: Fact
    sentence: str
    look: Example | None
    right: str  # how often the head does what the fact says
    effect: str  # what breaks, in numbers, or why that is not known
    axis: Axis | None
    note: str
    best: Sequence[Example] = ()
    drawn: Sequence[Example] = ()
    asked: str = ""  # the pool of the random examples
    why: str = ""  # who wrote the keys that it finds
    read_by: str = ""  # who reads it

    @staticmethod
    def from_fact(
        tables: Tables,
        place: Place,
        fact: Fact,
        words: Mapping[str, Words],
        rows: pd.DataFrame,
        by_kind: bool,
        carriers: Mapping[str, Collection[Place]],
    ) -> "FactCard":
        """The card of a head's fact; `rows` are its examples, `carriers` the heads that carry each task's answer."""
        id, examples, asked, first = place.named(prefix=by_kind), {"best": [], "random": []}, "", {}
        for row in rows.to_dict("records"):
            examples[row["choice"]].append(_example(row, tables, place.named(prefix=False)))
        best, drawn = examples.values()
        writers, readers = (_why(tables, place, fact, table) for table in ("writers", "readers"))
        if len(rows):
            first = rows.iloc[0].to_dict()
            passages = f"in {counted(int(first['read']), 'passage')}"
            topic = f"{plain_words.topic(fact.name, str(first['measure']), words)} {passages}"
            asked = f"{number(int(first['asked']))} {'prompts' if fact.row('effects') else topic}"
        return FactCard(
            id=f"{id}/{slug(fact.name)}",
            fact=fact,
            sentence=f"{wording.claim(fact, id, words)}.",
            # the sure example in which the answer loses most; otherwise a random one
            look=max(best, key=lambda each: each.lost, default=None) or next(iter(drawn), None),
            right=wording.right_clause(fact, first),
            effect=wording.loss_clause(fact, by_kind),
            axis=_axis(tables, place, fact, by_kind, carriers[fact.name]),
            note=wording.rates(fact),
            best=best,
            drawn=drawn,
            asked=asked,
            why=f"{wording.writers_clause(writers[0], words)}." if writers else "",
            read_by=f"{wording.readers_clause(readers)}." if readers else "",
        )


def _why(tables: Tables, place: Place, fact: Fact, table: str) -> list[Any]:
    """The families that write the keys of a fact, or the strongest readers of its head for its task."""
    if table not in tables or fact.label.kind == "rule":
        return []
    rows, label = tables[table].loc[(tables[table][HEAD] == [*place]).all(axis=1)], fact.row("labels")
    if table == "writers":
        return rows.loc[rows["measure"].isin(fact.measures) & (rows["kind"] == "family")].to_dict("records")
    task = fact.name if label is None else label.cells.get("task")
    return strongest_readers(rows.loc[rows["task"] == task]).to_dict("records")


def strongest_readers(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `readers`: for each head and task, the strongest on the choosing half of the pairs."""
    rows = rows.loc[(rows["q"] < DISCOVERY) & (rows["effect"] * rows["choosing"] > 0)]
    return rows.sort_values("choosing", key=abs, ascending=False).groupby(["task", *HEAD], sort=False).head(_READERS)


Values = Mapping[str, Any]
"""The values that a template shows, by name: steps of a strip (`name`, `text`, `height` from 0 to 1), and a curve."""


@dataclass(frozen=True)
class Card:
    """Everything known about one head."""

    id: str
    name: str
    facts: Sequence[FactCard]
    distance: Sequence[Values]  # attention by distance, the first position first
    tags: Sequence[Values]  # attention between tags, beyond what distance explains
    alike: Sequence[str]  # ids of heads with the same first fact
    tasks: Table | None  # its share in each causal task
    rest: Table  # other measures, those with the surest gains
    rows: str  # its rows, to copy
    formed: Values | None = None  # when it formed, if the model's training run is known


@dataclass(frozen=True)
class Overview:
    """The top of a page about one model; the first of `cards` is shown first."""

    says: str  # one sentence with counts, under the headline
    sentences: Sequence[Sentence]
    atlases: Sequence[Atlas]
    cards: Sequence[Card]
    passage: str = ""  # the text behind the pictures
    flips: Sequence[FlipPanel] = ()
    below: Sequence[Block] = ()

    @property
    def ids(self) -> list[str]:
        """The ids of heads that have a card."""
        return [card.id for card in self.cards]


def overview(
    tables: Tables,
    behaviours: Mapping[str, Behaviour],
    passages: Sequence[Passage] = (),
    ranked: Mapping[Place, Sequence[Fact]] = MappingProxyType({}),
    model: str = "",
    steps: TrainingSteps | None = None,
) -> tuple[str, Overview]:
    """The headline, and the top of the page."""
    if not ranked:
        facts = fact_tables.facts(tables, behaviours)
        ranked = {place: fact_tables.ranked(head_facts) for place, head_facts in facts.items()}
    sentences, below = wording.sentences(tables, ranked, behaviours), list[Block]()
    if passages:
        viewer = Viewer(tuple(passages), fact_tables.called(ranked), heads=False)
        title = "Point at words" + ", through training" * bool(steps)
        below = [Details(title, [*([steps] if steps else []), viewer])]
    line, says = wording.headline(tables, ranked, sentences, vocabulary(behaviours))
    n_heads = counted(len(ranked), "head")
    return line, Overview(
        f"{says} {model}, {n_heads}.".strip() if model else says,
        sentences,
        _atlases(ranked, kinds(tables["heads"]) > 1, passages[0] if passages else None),
        [*_cards(tables, ranked, vocabulary(behaviours))],
        passages[0].title if passages else "",
        flip_panels(tables),
        below,
    )


def _atlases(ranked: Mapping[Place, Sequence[Fact]], by_kind: bool, passage: Passage | None) -> list[Atlas]:
    weights = {(each.heads.stack, each.heads.attention): each.weights for each in passage.attentions} if passage else {}
    atlases = []
    for kind, group in groupby(ranked, key=lambda place: place[:2]):
        rows = [[*layer] for _, layer in groupby(sorted(group), key=lambda place: place.layer)]
        (stack, attention), patterns, is_narrow = kind, weights.get(kind), max(map(len, rows)) >= _NARROW

        def cell(place: Place, patterns: Any = patterns, is_narrow: bool = is_narrow) -> Cell:
            names = place.named(prefix=by_kind), place.named(prefix=False)
            small = None if patterns is None else picture(patterns[place[2:]] / 255)
            if not ranked[place]:
                return Cell(*names, "quiet", picture=small)
            first, *_ = ranked[place]
            word = plain_words.breakable(first.words.short) if is_narrow else first.words.short
            return Cell(*names, "needed" if first.is_needed else "looks", first.behaviour, word, small)

        layers = [[*map(cell, row)] for row in rows]
        title = {"cross": "Cross-attention"}.get(attention, stack.capitalize()) if by_kind else "Heads"
        atlases.append(Atlas(title, layers[::-1], max(len(layers), *map(len, layers)) > _ROOM))
    return atlases


def _cards(tables: Tables, ranked: Mapping[Place, Sequence[Fact]], words: Mapping[str, Words]) -> Iterator[Card]:
    heads, effects = tables["heads"], tables.get("effects", pd.DataFrame())
    by_kind, answers = kinds(heads) > 1, fact_tables.answers(tables)
    measured = _by_place(heads.loc[heads["sink"] == "kept"])
    tested = _by_place(both_ways(effects) if len(effects) else effects)
    examples = _by_place(tables.get("examples", pd.DataFrame()))
    strongest, carriers = fact_tables.strongest(ranked), defaultdict[str, set[Place]](set)
    for carrier, fact in ((head, fact) for head in strongest for fact in ranked[head] if fact.row("effects")):
        carriers[fact.name].add(carrier)
    alike: dict[Words, list[Place]] = {}
    for place in strongest:
        alike.setdefault(ranked[place][0].words, []).append(place)
    for place in dict.fromkeys([*strongest, *ranked]):
        facts, id = ranked[place], place.named(prefix=by_kind)
        first = measured[place].drop_duplicates("measure")
        values = dict(zip(map(str, first["measure"]), first["value"].astype(float), strict=True))
        formed = _formation(tables, place, facts, words)
        shown = examples.get(place, pd.DataFrame(columns=["fact", "choice"]))
        fact_cards = [
            FactCard.from_fact(tables, place, fact, words, shown.loc[shown["fact"] == fact.name], by_kind, carriers)
            for fact in facts
        ]
        cited = []
        for fact in facts:
            cited.append(f"{wording.fact_clause(fact, id, words)}: {'; '.join(wording.numbers(fact))}")
            cited += [f"    tables/{row}" for row in fact.rows]
        similar = [each for each in alike[facts[0].words] if each != place] if facts else []
        cited += [formed[0]["text"], f"    tables/{formed[1]}"] if formed else []
        tasks = tested[place].to_dict("records") if place in tested else []
        tasks = [row | {"carried": answers.get(row["task"])} for row in tasks]
        yield Card(
            id=id,
            name=id.replace(".", " ", 1) if by_kind else id,
            facts=fact_cards,
            distance=_by_distance(values),
            tags=_between_tags(values),
            alike=[each.named(prefix=by_kind) for each in similar[:_ALIKE]],
            tasks=SCHEMAS["both ways"].page(tasks, f"task {WAYS}") if tasks else None,
            rest=SCHEMAS["heads"].page(_largest(measured[place]), _MEASURED, TEXTS["card rest"]),
            rows="\n".join(cited),
            formed=formed[0] if formed else None,
        )


def _largest(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The measures with the surest gains, in their original order."""
    kept = rows.sort_values(["q", "gain"], ascending=[True, False], kind="stable").head(_MOST)
    return rows.loc[rows.index.isin(kept.index)].to_dict("records")


def _by_place(rows: pd.DataFrame) -> dict[Place, pd.DataFrame]:
    groups = (group for _, group in rows.groupby(HEAD, sort=False)) if len(rows) else ()
    return {heads_in(group)[0]: group for group in groups}


def slug(name: str) -> str:
    """A fact's name in an address: `nsubj-head-dependent`."""
    return re.sub(r"[^\w-]+", "-", name.replace("->", "-")).strip("-").lower()


def _example(row: Mapping[str, Any], tables: Tables, head: str) -> Example:
    parts = {row["asks"]: "asks", row["seen"]: "seen"} if row["asks"] != row["seen"] else {row["asks"]: "both"}
    words = [(word, parts.get(index, "")) for index, word in enumerate(str(row["sentence"]).split(" "))]
    right = None if pd.isna(row["right"]) else bool(row["right"])
    bars, lost = None, 0.0
    if pd.notna(row["pair"]):
        bars, lost = _answers(tables, str(row["fact"]), int(row["pair"]), head)
    elif pd.notna(row["before"]):
        before, after = float(row["before"]), float(row["after"])
        ends = [(TEXTS["as it is"], before), (TEXTS["without"], after)]
        bars, lost = Bars([(label, [(str(row["next"]), value, True)]) for label, value in ends]), before - after
    return Example(words, percent(float(row["weight"])), right, bars, lost)


def _answers(tables: Tables, task: str, pair: int, head: str) -> tuple[Bars | None, float]:
    """Answers to a clean prompt, unchanged and with a head as in the corrupted one; and how clearly they flip."""
    prompts, answers = tables["prompts"], tables["answers"]
    (prompt,) = prompts.loc[(prompts["task"] == task) & (prompts["pair"] == pair)].to_dict("records")
    rows = answers.loc[(answers["task"] == task) & (answers["pair"] == pair)].set_index("heads")
    if head not in rows.index:
        return None, 0.0
    labels = TEXTS["as it is"], [TEXTS["given"].format(head=head), " ", emphasis(f"“{prompt['corrupted']}”")]
    values = [[prompt["clean_right"], prompt["clean_wrong"]], *rows.loc[[head], ["right", "wrong"]].to_numpy()]
    bars = [
        (label, [(prompt["right"], float(right), True), (prompt["wrong"], float(wrong), False)])
        for label, (right, wrong) in zip(labels, values, strict=True)
    ]
    return Bars(bars), min(float(values[0][0]), float(values[1][1]))


def _axis(tables: Tables, place: Place, fact: Fact, by_kind: bool, carriers: Collection[Place]) -> Axis | None:
    """This head among all others of its kind of attention, with what it had to beat."""
    size, points, rule = fact.sizes[0], dict[Place, tuple[float, float, float]](), float("nan")
    effect, rules, label = fact.row("effects"), fact.row("rules"), fact.row("labels")
    if effect is not None:
        rows = tables["effects"]
        rows = rows.loc[(rows["task"] == fact.name) & (rows["intervention"] == "noise")]
        columns, text = ("effect", "ci_low", "ci_high"), TEXTS["axis of answers"]
    elif rules is not None and fact.label.kind not in {"rule", "any"}:
        rows = tables["rules"].loc[tables["rules"]["measure"] == rules["measure"]]
        rows = rows.assign(low=rows["rival_value"] + rows["margin_low"], high=rows["rival_value"] + rows["margin_high"])
        columns, rule = ("value", "low", "high"), rules["rival_value"]
        text = TEXTS["axis of cases"].format(n=number(int(rules["n"])), rule=plain_words.taking(str(rules["rival"])))
    elif fact.kind == "needed" and label is not None and fact.label.kind != "set":
        rows = tables["evidence"].loc[tables["evidence"]["measure"] == label["measure"]]
        columns, text, rule = ("effect", "effect_low", "effect_high"), TEXTS["axis of nats"], 0.0
    elif (cell := fact.row("heads")) is not None:
        rows = tables["heads"].loc[
            (tables["heads"]["sink"] == "kept") & (tables["heads"]["measure"] == cell["measure"])
        ]
        rows = rows.assign(low=rows["baseline"] + rows["ci_low"], high=rows["baseline"] + rows["ci_high"])
        columns, rule = ("value", "low", "high"), float(cell["baseline"])
        text = TEXTS["axis of attention"].format(rule=plain_words.rule(str(cell["baseline_name"]), "token"))
    else:
        return None
    for row in rows.loc[(rows["stack"] == place.stack) & (rows["attention"] == place.attention)].to_dict("records"):
        points[Place.from_row(row)] = (row[columns[0]], row[columns[1]], row[columns[2]])
    if place not in points or not np.isfinite(points[place][0]):
        return None
    values = [0.0, *(value for value, _, _ in points.values() if np.isfinite(value))]
    top = max(1.0 if size.unit in {"share", "correlation"} else 0.0, *values, np.nan_to_num(points[place][2]), rule)
    low = min(values)

    def along(value: float) -> float:
        return float(np.clip((value - low) / (top - low), 0, 1)) if np.isfinite(value) else float("nan")

    named_heads = {place, *(each for each in points if each in carriers)}
    marks = [Point("other", along(values[0])) for each, values in points.items() if each not in named_heads]
    marks.append(Point("rule", along(rule)))
    named = [along(0.0), 1.0]  # places along the axis that already have a text
    for each in sorted(named_heads, key=lambda each: (each == place, -points[each][0])):  # this head's name comes first
        ends, is_this = [*map(along, points[each])], each == place
        has_room = is_this or all(abs(ends[0] - other) > _APART for other in named)
        named.append(ends[0])
        marks.append(Point("this" if is_this else "named", *ends, name=each.named(prefix=by_kind) * has_room))
    unit = "nats" if "effect" in columns and effect is None else size.unit
    ends = {"lift": f"{top:.1f}×", "nats": f"{top:.2f}", "correlation": f"{top:.1f}"}.get(unit, percent(top))
    zero = {"lift": "0×", "nats": "0"}.get(unit, "0")
    return Axis([each for each in marks if np.isfinite(each.at)], [(zero, along(0.0)), (ends, 1.0)], text)


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


def _formation(
    tables: Tables, place: Place, facts: Sequence[Fact], words: Mapping[str, Words]
) -> tuple[Values, Row] | None:
    """When a head's first fact formed, among facts measured during training that still hold at the last look."""
    cells = ((fact, str(row["measure"])) for fact in facts for row in fact.rows if row.table == "heads")
    for fact, measure in cells if "when_formed" in tables else ():
        key = {**place._asdict(), "measure": RECORDED.get(measure)}
        pair = (tables[name] for name in ("when_formed", "forming"))
        rows, points = (each.loc[(each[[*key]] == [*key.values()]).all(axis=1)] for each in pair)
        if len(rows) and pd.notna(rows["formed_at"].iloc[0]):
            row = Row("when_formed", rows.iloc[0].to_dict())
            return _curve(worded(measure, words).said, fact.behaviour, row.cells, points.sort_values("step")), row
    return None


def _curve(does: str, behaviour: str, row: Mapping[str, Any], points: pd.DataFrame) -> Values:
    steps, values = points["step"].astype(int).tolist(), points["value"].astype(float).tolist()
    low, high, highest = min(0.0, *values), max(1.0, *values), values.index(max(values))
    step, last = number(int(row["formed_at"])), number(int(row["step"]))
    onset = f"there from the first look on, step {step} of {last}"
    if pd.notna(row["before"]):
        onset = f"formed by step {step} of {last}, not yet at {number(int(row['before']))}"
    marks = [0, highest, -1] if values[highest] - values[-1] >= NOTABLE else [0, -1]  # a later loss is named too
    note = ", ".join(f"{number(values[index])} at step {number(steps[index])}" for index in dict.fromkeys(marks))
    has_baseline = pd.notna(row["baseline"])
    note += f"; the strictest baseline (grey) has {number(row['baseline'])}" * has_baseline
    return {
        "text": f"{does[0].upper()}{does[1:]}: {onset}.",
        "note": f"{note}.",
        "behaviour": behaviour,
        "points": [(step / steps[-1], (value - low) / (high - low)) for step, value in zip(steps, values, strict=True)],
        "formed": int(row["formed_at"]) / steps[-1],
        "baseline": (float(row["baseline"]) - low) / (high - low) if has_baseline else None,
    }
