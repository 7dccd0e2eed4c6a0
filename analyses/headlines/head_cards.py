"""What stands first on a page about one model? Sentences, the atlas of heads and a card of each, from the tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analyses import plain_words
from analyses.figures import measure_name
from analyses.head_names import Place, places
from analyses.headlines import ranking
from analyses.headlines.facts import Fact, Size, Tables, answers, facts, flips, titles
from analyses.headlines.formation_curves import formation
from analyses.headlines.sentences import Sentence, headline, sentences
from analyses.measures import Behaviour
from analyses.numerals import counted, false_discovery_rate, interval, number, percent
from analyses.sections import (
    Atlas,
    Bar,
    Block,
    Card,
    Cell,
    Example,
    Examples,
    Known,
    Overview,
    Said,
    Section,
    Step,
    Table,
)
from analyses.viewer import Passage, Viewer

_ROOM = 12  # layers or heads beside each other that have room for words
_ALIKE = 8  # heads that a card names as being like it
_OFFSETS = ("offset:-5", "offset:-4", "offset:-3", "offset:-2", "previous-token", "self")
_AHEAD = ("next-token", "offset:2", "offset:3")
_FIRST = "first-token"
_LOWEST_TOP = 0.2  # of attention: a bar that is full shows at least so much
_FARTHEST = 1.5  # of an answer: intervals beyond 1 are drawn so far
_TICKS: dict[str, list[tuple[str, float]]] = {
    "share": [("0", 0.0), ("100%", 1.0)],
    "lift": [("1×", 0.0)],
    "correlation": [("0", 0.0), ("1", 1.0)],
    "nats": [("0", 0.0)],
}
_AT = {"previous-token": "−1", "self": "0", "next-token": "+1"}
_REST = (
    "On the whole text; induction on random tokens that come twice. Labels, and what is said beside simple rules, are "
    "of the half of the text that reports, so the same measure may have another number there."
)
_NEEDED = "Looks there and needed"
_PAIRS = "Needed"
_HOLDS = "Attention holds; effect not established"
_UNASKED = "Attends; untested"


def overview(
    tables: Tables,
    behaviours: Mapping[str, Behaviour],
    passages: Sequence[Passage] = (),
    found: Mapping[Place, Sequence[Fact]] = MappingProxyType({}),
) -> tuple[str, Overview, list[Sentence]]:
    """The headline, what stands first, and the sentences with the rows that they come from.

    Args:
        tables: of a report, by name: `heads` at least; `example_sentences`, where sentences were read; `when_formed`
            and `forming`, where the run that trained the model is known.
        behaviours: by name, those that were measured.
        passages: what stands under the atlas, for the head that is chosen there.
        found: every head's facts, the first to be told first, where they are known; else they are made of the tables.
    """
    found = found or {place: ranking.ranked(own) for place, own in facts(tables, behaviours).items()}
    several = len({place[:2] for place in found}) > 1
    said = sentences(tables, found, behaviours)
    order = ranking.strongest(found)
    order = [*order, *(place for place in found if place not in set(order))]
    made = _Cards(tables, found, several, titles(behaviours))
    shown = Overview(
        [Said(each.title.capitalize(), each.first, each.behaviour, each.rest) for each in said],
        _atlases(found, several),
        [made.card(place) for place in order],
        _viewers(passages, found),
    )
    return headline(said), shown, said


def _viewers(passages: Sequence[Passage], found: Mapping[Place, Sequence[Fact]]) -> list[Block]:
    """The passages, if any."""
    if not passages:
        return []
    return [Section("Where does a word look?", [Viewer(tuple(passages), ranking.called(found), heads=False)])]


def _atlases(found: Mapping[Place, Sequence[Fact]], several: bool) -> list[Atlas]:
    """An atlas for each kind of attention."""
    made = []
    for kind, own in groupby(found, key=lambda place: place[:2]):
        layers = [[*row] for _, row in groupby(sorted(own), key=lambda place: place.layer)]
        cells = [[_cell(place, found[place], several) for place in layer] for layer in layers]
        title = {"cross": "Cross-attention"}.get(kind[1], kind[0].capitalize()) if several else "Heads"
        made.append(Atlas(title, cells[::-1], max(len(layers), *map(len, layers)) > _ROOM))
    return made


def _cell(place: Place, own: Sequence[Fact], several: bool) -> Cell:
    id, name = place.named(several=several), place.named(several=False)
    if not own:
        return Cell(id, name, "quiet")
    words = [plain_words.breakable(fact.words.short) for fact in own[:2]]
    stands = "needed" if any(fact.needed for fact in own) else "looks"
    return Cell(id, name, stands, own[0].behaviour, words[0], "".join(words[1:]))


class _Cards:
    """Makes the cards of a model's heads, on scales that they share."""

    def __init__(self, tables: Tables, found: Mapping[Place, Sequence[Fact]], several: bool, titled: Mapping[str, str]):
        self.tables, self.found, self.several, self.titled = tables, found, several, titled
        self.ends = _ends([size for own in found.values() for fact in own for size in fact.sizes])
        kept = tables["heads"].loc[tables["heads"]["sink"] == "kept"]
        self.measured = _by_place(kept)
        self.effects = _by_place(tables.get("effects", pd.DataFrame()))
        self.examples = _by_place(tables.get("example_sentences", pd.DataFrame()))
        self.tasks = answers(tables)

    def card(self, place: Place) -> Card:
        """The card of one head."""
        own, id = self.found[place], place.named(several=self.several)
        measured = self.measured[place]
        by_name = measured.drop_duplicates("measure").set_index("measure")
        examples = self.examples.get(place)
        distance, sink = _by_distance(by_name)
        formed = formation(self.tables, place, own)
        cited = [_cited(fact) for fact in own]
        cited += [f"{formed[0].text}\n    tables/{formed[1]}"] if formed else []
        return Card(
            id,
            id.replace(".", " ", 1) if self.several else id,
            self._groups(own),
            distance,
            sink,
            _between_tags(by_name),
            [] if examples is None else _examples(examples, self.titled),
            self._alike(place),
            self._carried(self.effects.get(place)),
            _rest(measured),
            "\n".join(cited),
            formed[0] if formed else None,
        )

    def _groups(self, own: Sequence[Fact]) -> list[tuple[str, list[Known]]]:
        """The facts under what they rest on; what the first fact rests on stands first."""
        found: dict[str, list[Known]] = {}
        for fact in own:
            asked = any(size.unit == "nats" for size in fact.sizes)
            heading = {"looks there and needed": _NEEDED, "needed": _PAIRS}.get(
                fact.kind, _HOLDS if asked else _UNASKED
            )
            bars = [self._bar(size) for size in fact.sizes if np.isfinite(size.low)]
            known = Known(fact.words.said, fact.words.short, fact.behaviour, _note(fact), bars)
            found.setdefault(heading, []).append(known)
        return [*found.items()]

    def _bar(self, size: Size) -> Bar:
        """A size on the line that all of its unit share."""
        low, high = self.ends[size.unit]

        def along(value: float) -> float:
            return float(np.clip((value - low) / (high - low), 0, 1))

        ticks = [(name, along(value)) for name, value in _TICKS[size.unit]]
        over = f"over {_over(size)}" if size.what == "gain" and size.unit not in {"lift", "nats"} else ""
        return Bar(_told(size), _brief(size), along(size.value), along(size.low), along(size.high), ticks, over)

    def _alike(self, place: Place) -> list[str]:
        """Heads of which the same is told first, the strongest first."""
        if not self.found[place]:
            return []
        first = self.found[place][0].words
        same = [each for each, own in self.found.items() if own and own[0].words == first and each != place]
        return [each.named(several=self.several) for each in ranking.strongest({p: self.found[p] for p in same})][
            :_ALIKE
        ]

    def _carried(self, effects: pd.DataFrame | None) -> Table | None:
        """What the head carries of each causal task, needed or not."""
        if effects is None:
            return None
        shown = []
        for _, rows in effects.groupby(["behaviour", "task"], sort=False):
            task = str(rows["task"].iloc[0])
            ways = {str(row["intervention"]): row for row in rows.to_dict("records")}
            shares = [text for way in ("noise", "denoise") for text in _share(ways.get(way))]
            shown.append([self.tasks.get(task) or task, *shares])
        ways = ("removed by replacing it", "restored by it")
        return Table(["task", *(name for way in ways for name in (way, "95%", "changes"))], shown, "lrrrrrr")


def _share(row: Mapping[str, Any] | None) -> list[str]:
    """An effect, its interval and how many answers change; dashes where there is none."""
    if row is None:
        return ["–"] * 3
    return [percent(row["effect"]), f"{percent(row['ci_low'])} to {percent(row['ci_high'])}", flips(row)]


def _by_place(rows: pd.DataFrame) -> dict[Place, pd.DataFrame]:
    """A table's rows by head."""
    if rows.empty:
        return {}
    return {
        place: own for place, (_, own) in zip(places(rows), rows.groupby([*Place._fields], sort=False), strict=True)
    }


def _ends(sizes: Sequence[Size]) -> dict[str, tuple[float, float]]:
    """Where the line of each unit begins and ends: at the largest of all heads, a share's at 1 to 1.5."""
    found = {}
    for unit in _TICKS:
        own = [size for size in sizes if size.unit == unit and np.isfinite(size.low)]
        top = max((size.high for size in own), default=1.0)
        top = float(np.clip(top, 1, _FARTHEST)) if unit in {"share", "correlation"} else max(top, 1e-6)
        found[unit] = min(0.0, *(max(size.low, -0.2 * top) for size in own), 0.0), top
    return found


def _told(size: Size) -> str:
    """A size in words, with its interval."""
    if size.unit == "share" and size.what != "gain":
        own = f", false discovery rate {_rate(size.q)}" if np.isfinite(size.q) else ""
        return (
            f"{percent(size.value)} {size.what} ({percent(size.low)} to {percent(size.high)}; {size.over} change){own}"
        )
    if size.unit == "lift":
        value, low, high = (f"{1 + each:.1f}" for each in (size.value, size.low, size.high))
        return f"{value} times what distance explains ({low} to {high})"
    bounds = interval(size.low, size.high)
    if size.unit == "nats":
        return f"{size.what} {number(size.value)} nats a token ({bounds}) of {plain_words.readout(size.over)}"
    what = f"gain over {_over(size)}" if size.what == "gain" else size.what
    return f"{what} {number(size.value)} ({bounds})"


def _brief(size: Size) -> str:
    """A size by itself, and in a word what it is of; what a gain is over has no room beside a bar (`Bar.over`)."""
    if size.unit == "share" and size.what != "gain":
        return f"{percent(size.value)} {size.what.partition(' ')[0]}"
    if size.unit == "lift":
        return f"{1 + size.value:.1f}× expected"
    if size.unit == "nats":
        return f"{size.value:.2f} nats lost"
    gain = number(size.value, sign=True)
    return f"{gain} gain" if size.what == "gain" else gain


def _over(size: Size) -> str:
    """What a gain is over."""
    return plain_words.rule(size.over, "token") if size.over else "its baseline"


def _note(fact: Fact) -> str:
    """What its baseline or rule gets, and its q's."""
    beside = ""
    if np.isfinite(fact.baseline) and fact.sizes[0].unit == "share":
        rival = plain_words.rule(fact.baseline_name, "token")
        beside = f"on {fact.read_on} {percent(fact.value)}, {rival} {percent(fact.baseline)}; "
    if fact.sizes[0].unit == "correlation":
        beside = f"rank correlation {number(fact.value)}, {plain_words.rule(fact.baseline_name)} 0; "
    q = "" if np.isfinite(fact.sizes[0].q) else f"false discovery rate {_rate(fact.q)}"
    return f"{beside}{q} of attention, {_rate(fact.q_effect)} of effect" if np.isfinite(fact.q_effect) else beside + q


def _rate(q: float) -> str:
    """A false discovery rate, on one line."""
    return false_discovery_rate(q).replace(" ", "\u00a0")


def _by_distance(by_name: pd.DataFrame) -> tuple[list[Step], Step | None]:
    """Mean attention to near tokens, and to the first position; the highest bar is the largest, or a fifth."""
    known = [name for name in (_FIRST, *_OFFSETS, *_AHEAD) if name in by_name.index]
    values = {name: float(by_name.loc[name, "value"]) for name in known}
    top = max(_LOWEST_TOP, *(value for value in values.values() if np.isfinite(value)), 0.0)
    steps = {
        name: Step(_at(name), percent(value).replace("under ", "<").replace("over ", ">"), max(value, 0.0) / top)
        for name, value in values.items()
    }
    sink = steps.pop(_FIRST, None)
    return [*steps.values()], sink


def _at(name: str) -> str:
    """How a distance stands under its bar."""
    by = name.removeprefix("offset:").replace("-", "−")
    return {**_AT, _FIRST: "first"}.get(name) or (by if by.startswith("−") else f"+{by}")


def _between_tags(by_name: pd.DataFrame) -> list[Step]:
    """Attention between tags, as a multiple of what distance explains; a full bar is four times."""
    rows = by_name.loc[[name for name in by_name.index if str(name).startswith("tag:")]]
    return [
        Step(plain_words.label(str(name)).short, f"{row['value']:.1f}×", float(np.clip(row["value"] / 4, 0, 1)))
        for name, row in rows.iterrows()
        if np.isfinite(row["value"])
    ]


def _examples(rows: pd.DataFrame, titled: Mapping[str, str]) -> list[Examples]:
    """Where a head is surest of what its label says, or of anything, and at random."""
    first = rows.iloc[0]
    count = f"{number(int(first['asked']))} %s in {counted(int(first['read']), 'passage')} that were read"
    if not isinstance(first["measure"], str):
        surest = "No label of this head is about words of this text. Of any words, those where it is surest:"
        drawn = f"Any words, drawn at random among {count % 'words'}:"
    else:
        asked = plain_words.asked(first["label"], first["measure"], titled.get(first["measure"], ""))
        surest = f"{asked.words[0].upper()}{asked.words[1:]} whose {asked.whose}, the surest first:"
        if "best" not in {*rows["choice"]}:
            surest = f"Of {count % asked.words} there is none whose {asked.whose}."
        among = f"Drawn at random among {count % asked.words}"
        drawn = f"{among}: ✓ where the {asked.whose}, ✗ where it is not:"
    best, random = ([*_sentences(rows.loc[rows["choice"] == choice])] for choice in ("best", "random"))
    return [Examples(surest, [replace(each, right=None) for each in best]), Examples(drawn, random)]


def _sentences(rows: pd.DataFrame) -> Iterator[Example]:
    """Sentences with the word that asks and the word attended to."""
    for row in rows.to_dict("records"):
        words = [(word, _part(at, row)) for at, word in enumerate(str(row["sentence"]).split(" "))]
        right = bool(row["right"]) if isinstance(row["measure"], str) else None
        yield Example(words, percent(float(row["weight"])), right)


def _part(at: int, row: Mapping[str, Any]) -> str:
    asks, seen = at == row["asks"], at == row["seen"]
    return "both" if asks and seen else "asks" if asks else "seen" if seen else ""


def _rest(measured: pd.DataFrame) -> Table:
    """Everything that was measured of a head's attention."""
    columns = ["measure", "value", "baseline", "which", "gain", "95% interval", "q", "n"]
    rows = [
        [
            measure_name(str(row["measure"])),
            number(row["value"]),
            number(row["baseline"]),
            measure_name(str(row["baseline_name"])),
            number(row["gain"], sign=True),
            interval(row["ci_low"], row["ci_high"], sign=True),
            false_discovery_rate(row["q"]) if np.isfinite(row["q"]) else "–",
            number(row["n"]),
        ]
        for row in measured.to_dict("records")
    ]
    return Table(columns, rows, "lrrlrrrr", _REST)


def _cited(fact: Fact) -> str:
    """A fact's rows with its numbers, to copy."""
    said = "; ".join(filter(None, [*map(_told, fact.sizes), _note(fact)]))
    return "\n".join([f"{fact.words.said}: {said}", *(f"    tables/{row}" for row in fact.rows)])
