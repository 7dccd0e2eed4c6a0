"""What does the comparison say? Turns its tables into the sentences and rows of one HTML page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyses.compare.comparison import HEADLINE, Comparison, Used
from analyses.figures import head_name, measure_name
from analyses.findings import DISCOVERY, FEW_DOCUMENTS, NOTABLE, UNKNOWN, unit
from analyses.report.renderer import false_discovery_rate, interval, number, render

_TITLES = {"position": "Position", "part-of-speech": "Part of speech and syntax", "coreference": "Coreference"}
_NAMED = 4  # measures in a sentence


@dataclass(frozen=True)
class Row:
    """One model's best head in one measure, as the page says it."""

    model: str
    sentence: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Measure:
    """One measure: a row each model that has it, and which models have none."""

    name: str
    rows: Sequence[Row]
    missing: Sequence[str]


@dataclass(frozen=True)
class Section:
    """One behaviour."""

    behaviour: str
    title: str
    read: str
    caveats: Sequence[str]
    measures: Sequence[Measure]
    left_out: Sequence[tuple[str, str]]  # model, why it could not be measured
    counted: Sequence[tuple[str, Sequence[str]]]  # what was read and left out, a number a model


def page(facts: Mapping[str, Any], found: Comparison, images: Mapping[str, dict[str, str]]) -> str:
    """The page as one HTML file; every value is escaped."""
    names = [read.name for read in found.reads]
    return render(
        "compare.html.jinja",
        facts=facts,
        names=names,
        title=f"How do the heads of {_listed(names)} compare?",
        summary=[(name, summary(found.table, name)) for name in names[1:]],
        caveats=comparability(facts["models"]),
        sections=[_section(found, used, behaviour) for used in found.used for behaviour in used.asked],
        showing=_showing(found),
        images=images,
    )


def headline(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `tables/compare` that the page and its figures show."""
    return table.loc[table["measure"].isin([measure for each in HEADLINE.values() for measure in each])]


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def told_apart(row: Mapping[str, Any]) -> bool:
    """Whether a difference is more than chance: its interval excludes 0 and its q is below 0.05."""
    low, high = row["difference_low"], row["difference_high"]
    return bool((low > 0 or high < 0) and row["q"] < DISCOVERY)


def summary(table: pd.DataFrame, name: str) -> list[str]:
    """What a model has and the reference has not, the other way round, and how the best heads of both compare."""
    rows = _beside(headline(table), name)
    if not rows:
        return ["Nothing could be measured both here and in the reference."]
    reference = rows[0]["reference"]
    lacks = [row for row in rows if not row["n_heads"] and row["n_heads_of_reference"]]
    adds = [row for row in rows if row["n_heads"] and not row["n_heads_of_reference"]]
    shown = [row for row in rows if row["n_heads"] or row["n_heads_of_reference"]]
    said = [f"None of its heads shows what some of {reference}’s do: {_measures(lacks)}."] if lacks else []
    said += [f"It has heads for what none of {reference}’s shows: {_measures(adds)}."] if adds else []
    said += [_sizes(shown)] if shown else []
    if neither := len(rows) - len(shown):
        said.append(f"{neither} of the {len(rows)} measures on this page {_are(neither)} shown by no head of either.")
    return said


def _beside(table: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    """The rows of a model that the reference has too, with how many of the reference's heads show each measure."""
    rows = table.loc[(table["model"] == name) & table["difference"].notna()]
    counts = table.loc[table["model"] == table["reference"]].set_index("measure")["n_heads"].to_dict()
    return [row | {"n_heads_of_reference": counts[row["measure"]]} for row in rows.to_dict("records")]


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    """In how many measures a best head gains less or more than the reference's, by at least 0.05 and beyond chance."""
    clear = [row for row in rows if told_apart(row) and abs(row["difference"]) >= NOTABLE]
    small = f"differs by less than {NOTABLE}, or by no more than chance explains"
    if not clear:
        return f"In {_all(len(rows))} that heads of either show, its best head {small}."
    ways = {"less": [row for row in clear if row["difference"] < 0], "more": [r for r in clear if r["difference"] > 0]}
    said = [f"gains clearly {way} in {len(some)} ({_largest(some)})" for way, some in ways.items() if some]
    said += [f"{small}, in {len(rows) - len(clear)}"] if len(rows) > len(clear) else []
    return f"Of {len(rows)} measures that heads of either show, its best head {'; '.join(said)}."


def _all(count: int) -> str:
    return "the one measure" if count == 1 else f"all {count} measures"


def _measures(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(measure_name(row["measure"]) for row in rows)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _largest(rows: Sequence[Mapping[str, Any]]) -> str:
    ranked = sorted(rows, key=lambda row: -abs(row["difference"]))
    some = [f"{measure_name(row['measure'])} {number(row['difference'], sign=True)}" for row in ranked[:_NAMED]]
    return ", ".join([*some, *(["…"] if len(ranked) > _NAMED else [])])


def comparability(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the models do not share, so that their numbers are not of exactly the same rows."""
    first, others = models[0], models[1:]
    alike = {key: [model["name"] for model in others if model[key] == first[key]] for key in ("sha256", "tokenizer")}
    unlike = {
        key: [model["name"] for model in others if model[key] != first[key]]
        for key in ("tokenizer", "context", "causal")
    }
    # with another tokenizer the windows differ anyway
    windows = [name for name in unlike["context"] if name in alike["tokenizer"]]
    after, before = "a word sees what comes after it too", "a word sees only what came before it"
    here, there = (after, before) if first["causal"] else (before, after)
    found = {
        f"the same weights as {first['name']}, so the differences are 0": alike["sha256"],
        f"another tokenizer than {first['name']}: the same documents are read in other pieces, so the rows and items "
        "that count differ, and so does what uniform attention reaches": unlike["tokenizer"],
        f"another context than {first['name']}: long texts are cut into other windows": windows,
        f"{here}, in {first['name']} {there}: not the same items can be asked": unlike["causal"],
    }
    return [f"{_listed(names)}: {what}." for what, names in found.items() if names]


def _section(found: Comparison, used: Used, behaviour: str) -> Section:
    names = [read.name for read in found.reads]
    rows = found.table.loc[found.table["behaviour"] == behaviour]
    n_heads = {read.name: each.heads.count for read in found.reads for each in read.collected.values()}
    measures = [
        Measure(
            measure_name(measure),
            [_row(row, n_heads) for row in some.to_dict("records")],
            [name for name in names if name not in set(some["model"])],
        )
        for measure in HEADLINE[behaviour]
        if len(some := rows.loc[rows["measure"] == measure])
    ]
    return Section(
        behaviour=behaviour,
        title=_TITLES[behaviour],
        read=_read(used),
        caveats=_caveats(found, used, behaviour),
        measures=measures,
        left_out=[(read.name, read.left_out[behaviour]) for read in found.reads if behaviour in read.left_out],
        counted=_counted(found, behaviour),
    )


def _read(used: Used) -> str:
    """Which text, how long, and how it was halved."""
    total, reporting = len(used.documents), used.reporting
    chosen = f"heads were chosen on {number(total - reporting)} of them and are reported on the others"
    return f"{used.corpus.title}, {number(total)} documents: {chosen}, {number(reporting)}"


def _caveats(found: Comparison, used: Used, behaviour: str) -> list[str]:
    said = []
    if used.stands_in:
        said.append("No given corpus has the annotations that this needs, so it was measured on generated stories.")
    if used.reporting < FEW_DOCUMENTS:
        said.append("Fewer than 20 documents report: intervals are rough, and a difference may be this text’s own.")
    for read in found.reads:
        counts = read.counts.get(behaviour, {})
        tokens, unknown = counts.get("tokens", 0), counts.get("unknown tokens", 0)
        if unknown > UNKNOWN * tokens:
            said.append(f"{unknown / tokens:.0%} of the tokens of this text are unknown to {read.name}.")
    return said


def _row(row: Mapping[str, Any], n_heads: Mapping[str, int]) -> Row:
    cells = {
        "head": head_name(row["layer"], row["head"]),
        "depth": f"{row['depth']:.2f}",
        "value": number(row["value"]),
        "baseline": f"{number(row['baseline'])} ({row['baseline_name']})",
        "gain": number(row["gain"], sign=True),
        "difference": number(row["difference"], sign=True),
        "value_difference": number(row["value_difference"], sign=True),
        "q": "–" if math.isnan(row["q"]) else false_discovery_rate(row["q"]),
        "n": number(row["n"]),
    }
    said = f"{_gain(row)}; {_shown_by(row['n_heads'], n_heads[row['model']])}. {_difference(row)}"
    return Row(row["model"], said.strip(), cells)


def _gain(row: Mapping[str, Any]) -> str:
    head, rule = head_name(row["layer"], row["head"]), row["baseline_name"]
    lift = " in lift" if unit(row["measure"]) == "lift" else ""
    if row["gain"] <= -0.0005:
        sure = interval(-row["ci_high"], -row["ci_low"])
        return f"even its best head, {head}, stays {number(-row['gain'])}{lift} below {rule} (95% {sure})"
    sure = interval(row["ci_low"], row["ci_high"])
    return f"its best head, {head}, gains {number(row['gain'])}{lift} over {rule} (95% {sure})"


def _shown_by(count: int, of: int) -> str:
    return (
        f"{count} of its {of} heads show{'s' if count == 1 else ''} it" if count else f"none of its {of} heads shows it"
    )


def _difference(row: Mapping[str, Any]) -> str:
    """The second sentence, of a model that is not the reference."""
    difference, low, high, reference = (row[name] for name in _DIFFERENCE)
    if row["model"] == reference:
        return ""
    if math.isnan(difference):
        return f"{reference} has no such number to compare with."
    if difference == low == high == 0:
        return f"Exactly as much as {reference}’s."
    if math.isnan(low):
        return f"{number(difference, sign=True)} beside {reference}’s, on too few documents for an interval."
    bounds = interval(low, high, sign=True)
    if not told_apart(row):
        why = f", q {number(row['q'])}" if low > 0 or high < 0 else ""
        return f"Cannot be told apart from {reference}’s: {number(difference, sign=True)} (95% {bounds}{why})."
    way, bounds = ("more", interval(low, high)) if difference > 0 else ("less", interval(-high, -low))
    q = false_discovery_rate(row["q"])
    return f"{number(abs(difference))} {way} than {reference}’s (95% {bounds}; q {q})."


_DIFFERENCE = ("difference", "difference_low", "difference_high", "reference")


def _showing(found: Comparison) -> list[tuple[str, list[str]]]:
    """How many heads of each model show each headline measure, and how deep they sit on average."""
    rows = found.table.set_index(["measure", "model"])
    said = []
    for measure in dict.fromkeys(headline(found.table)["measure"]):
        cells = []
        for read in found.reads:
            if (measure, read.name) not in rows.index:
                cells.append("–")
                continue
            row = rows.loc[(measure, read.name)].to_dict()
            cells.append(f"{row['n_heads']} at {row['mean_depth']:.2f}" if row["n_heads"] else "0")
        said.append((measure_name(measure), cells))
    return said


def _counted(found: Comparison, behaviour: str) -> list[tuple[str, list[str]]]:
    """What was read and left out: a row a count, a column a model; what is nothing everywhere is not shown."""
    counts = [read.counts.get(behaviour, {}) for read in found.reads]
    whats = dict.fromkeys(what for each in counts for what in each)
    rows = [(what, [each.get(what) for each in counts]) for what in whats]
    return [(what, [*map(number, values)]) for what, values in rows if any(values)]


def gains_alt(table: pd.DataFrame) -> str:
    """What the figure of gains shows, for one who cannot see it."""
    said = []
    for measure, rows in headline(table).groupby("measure", sort=False):
        each = [f"{row['model']} {number(row['gain'], sign=True)}" for row in rows.to_dict("records")]
        said.append(f"{measure_name(str(measure))}: {', '.join(each)}")
    return f"Gain of each model’s best head. {'; '.join(said)}."


def depth_alt(found: Comparison) -> str:
    """What the figure of depths shows, for one who cannot see it."""
    models = [read.name for read in found.reads]
    each = [
        f"{measure}: {', '.join(f'{name} {cell}' for name, cell in zip(models, cells, strict=True))}"
        for measure, cells in _showing(found)
    ]
    return f"Gains of all heads by relative depth. How many show each measure, at which mean depth: {'; '.join(each)}."
