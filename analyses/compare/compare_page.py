"""What does the comparison say? Turns its tables into sections."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd

from analyses import figures
from analyses.behaviours import OURS
from analyses.compare.comparison import HEADLINE, Comparison, Used
from analyses.figures import measure_name
from analyses.headlines.facts import vocabulary
from analyses.page.sections import (
    UNUSED,
    Block,
    Bullets,
    Definitions,
    Details,
    Figure,
    Page,
    Section,
    Source,
    Table,
    Text,
    bold,
    caveat,
    counts_table,
    remark,
)
from analyses.tables.findings import DISCOVERY, FEW_DOCUMENTS, NOTABLE, UNKNOWN
from analyses.wording.formats import false_discovery_rate, interval, number
from analyses.wording.head_names import head_name
from analyses.wording.plain_words import worded

_NAMED = 4  # measures in a sentence
_WORDS = vocabulary(OURS)
_COLUMNS = [
    *("model", "head", "depth", "value", "baseline", "gain"),
    *("difference of gains", "q", "difference of values", "n"),
]
_ABOVE = "Intervals stand above, and in tables/compare."
_TEXTS: dict[str, Any] = tomllib.loads(files("analyses.compare").joinpath("words.toml").read_text("utf-8"))


def page(comparison: Comparison, models: Sequence[Mapping[str, Any]]) -> Page:
    """What the comparison says and shows; `models` are as run.json has them, the reference first."""
    names = [read.name for read in comparison.reads]
    reference = names[0]
    return Page(
        title=f"How do the heads of {_listed(names)} compare?",
        summary=[
            Definitions([(f"{name}, beside {reference}", *summary(comparison.table, name)) for name in names[1:]]),
            *map(
                caveat, comparability([{**each, "tokenizer": None} for each in models] if comparison.by_ids else models)
            ),
            *(
                caveat(f"Not compared by {OURS[behaviour].title}: {why}.")
                for behaviour, why in comparison.unserved.items()
            ),
        ],
        sections=[
            _best(comparison, reference),
            _depths(comparison, names),
            *(_behaviour(comparison, used, behaviour) for used in comparison.used for behaviour in used.asked),
        ],
        corpora=[
            *map(_source, comparison.used),
            *(Source(corpus, UNUSED, {"measured": []}) for corpus in comparison.unused),
        ],
        models={read.name: {"left_out": read.counts, "not_measured": dict(read.left_out)} for read in comparison.reads},
        definitions=[*_TEXTS["definitions"].items()],
        tables={"compare": comparison.table, "heads": comparison.heads},
        facts={
            "reference": reference,
            "corpora_not_used": [
                {"name": corpus.name, "kind": corpus.kind, "sha256": corpus.digest} for corpus in comparison.unused
            ],
        },
    )


def _source(used: Used) -> Source:
    facts = {
        "measured": list(used.asked),
        "stood_in": used.stands_in,
        "documents": len(used.documents),
        "reporting_documents": used.reporting,
    }
    return Source(used.corpus, f"for {', '.join(used.asked)}", facts)


def _best(comparison: Comparison, reference: str) -> Section:
    figure = figures.compared_gains(headline(comparison.table))
    return Section(
        "The best head of each model",
        [
            "For each measure, the head of a model that gains most over the strictest baseline on one half of the "
            "documents; all its numbers are from the other half. Differences are from "
            f"{reference}, over the same groups of documents.",
            Figure("compare-gains", figure, _TEXTS["gains"], gains_alt(comparison.table)),
        ],
        "best",
    )


def _depths(comparison: Comparison, names: Sequence[str]) -> Section:
    shown = headline(comparison.table)
    figure = figures.gains_by_depth(comparison.heads, list(dict.fromkeys(shown["measure"])))
    return Section(
        "How many heads, and how deep?",
        [
            "How many heads of each model show a measure on the whole text, and their mean depth, where 1 is the last "
            "layer. Each model’s findings are held to their own false discovery rate, as in its own report.",
            Table(["measure", *names], [[measure, *cells] for measure, cells in _showing(comparison)]),
            Figure("compare-depth", figure, _TEXTS["depth"], depth_alt(comparison)),
        ],
        "showing",
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
    """What a model has and the reference has not, the other way round, and how the best heads of both compare.

    That only one of them has heads for a measure is said to be so where their best heads can be told apart.
    """
    rows = _beside(headline(table), name)
    if not rows:
        return ["Nothing could be measured both here and in the reference."]
    reference = rows[0]["reference"]
    one_sided = [row for row in rows if bool(row["n_heads"]) != bool(row["n_heads_of_reference"])]
    lacks = [row for row in one_sided if not row["n_heads"] and told_apart(row) and row["difference"] < 0]
    adds = [row for row in one_sided if row["n_heads"] and told_apart(row) and row["difference"] > 0]
    unsure = [row for row in one_sided if row not in lacks and row not in adds]
    shown = [row for row in rows if row["n_heads"] or row["n_heads_of_reference"]]
    said = [f"None of its heads shows what some of {reference}’s do: {_measures(lacks)}."] if lacks else []
    said += [f"It has heads for what none of {reference}’s shows: {_measures(adds)}."] if adds else []
    said += (
        [f"Heads of one of the two alone show {_measures(unsure)}; their best heads cannot be told apart."]
        if unsure
        else []
    )
    said += [_sizes(shown)] if shown else []
    if neither := len(rows) - len(shown):
        are = "is" if neither == 1 else "are"
        said.append(f"{neither} of the {len(rows)} measures on this page {are} shown by no head of either.")
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
        every = "the one measure" if len(rows) == 1 else f"all {len(rows)} measures"
        return f"In {every} that heads of either show, its best head {small}."
    ways = {"less": [row for row in clear if row["difference"] < 0], "more": [r for r in clear if r["difference"] > 0]}
    if len(rows) == 1:
        (way,) = (way for way, some in ways.items() if some)
        return f"In the one measure that heads of either show, its best head gains clearly {way} ({_largest(clear)})."
    said = [f"gains clearly {way} in {len(some)} ({_largest(some)})" for way, some in ways.items() if some]
    said += [f"{small}, in {len(rows) - len(clear)}"] if len(rows) > len(clear) else []
    return f"Of {len(rows)} measures that heads of either show, its best head {'; '.join(said)}."


def _measures(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(_words(row["measure"]) for row in rows)


def _words(measure: str) -> str:
    """A measure as the first sentences tell it, without notation."""
    return worded(measure, _WORDS).short


def _largest(rows: Sequence[Mapping[str, Any]]) -> str:
    ranked = sorted(rows, key=lambda row: -abs(row["difference"]))
    some = [f"{_words(row['measure'])} {number(row['difference'], sign=True)}" for row in ranked[:_NAMED]]
    return ", ".join([*some, *(["…"] if len(ranked) > _NAMED else [])])


def comparability(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the models do not share, so that their numbers are not of exactly the same rows."""
    first, others = models[0], models[1:]
    keys = ("tokenizer", "context", "causal")
    unlike = {key: [model["name"] for model in others if model[key] != first[key]] for key in keys}
    same = [model["name"] for model in others if model["fingerprint"] and model["fingerprint"] == first["fingerprint"]]
    # with another tokenizer the windows differ anyway
    windows = [name for name in unlike["context"] if name not in unlike["tokenizer"]]
    after, before = "a word sees what comes after it too", "a word sees only what came before it"
    here, there = (after, before) if first["causal"] else (before, after)
    notes = {
        f"the same model as {first['name']}, so the differences are 0": same,
        f"another tokenizer than {first['name']}: the same documents are read in other pieces, so the rows and items "
        "that count differ, and so does what uniform attention reaches": unlike["tokenizer"],
        f"another context than {first['name']}: long texts are cut into other windows": windows,
        f"{here}, in {first['name']} {there}: not the same items can be asked": unlike["causal"],
    }
    return [f"{_listed(names)}: {what}." for what, names in notes.items() if names]


def _behaviour(comparison: Comparison, used: Used, behaviour: str) -> Section:
    """One behaviour: a list and a table of the best heads, measure by measure."""
    names = [read.name for read in comparison.reads]
    rows = comparison.table.loc[comparison.table["behaviour"] == behaviour]
    n_heads = {read.name: each.heads.count for read in comparison.reads for each in read.collected.values()}
    blocks: list[Block] = [f"On {_read(used)}.", *map(caveat, _caveats(comparison, used, behaviour))]
    blocks += [
        caveat(f"Not measured in {read.name}: {read.left_out[behaviour]}.")
        for read in comparison.reads
        if behaviour in read.left_out
    ]
    cells: list[Sequence[Text] | str] = []
    for measure in HEADLINE[behaviour]:
        group = rows.loc[rows["measure"] == measure].to_dict("records")
        if not group:
            continue
        sentences = [(bold(row["model"]), f": {_sentence(row, n_heads[row['model']])}") for row in group]
        missing = [name for name in names if name not in {row["model"] for row in group}]
        lacks = [remark(f"No such number for {', '.join(missing)}.")] if missing else []
        blocks.append(Section(measure_name(measure), [Bullets(sentences), *lacks]))
        cells += [measure_name(measure), *map(_cells, group)]
    if cells:
        caption = f"The best heads in numbers; differences are from {names[0]}. {_ABOVE}"
        blocks.append(Table(_COLUMNS, cells, "llrrrrrrrr", caption))
    if counted := counts_table([read.counts.get(behaviour, {}) for read in comparison.reads], names):
        blocks.append(Details("What was read and what was left out", counted))
    return Section(OURS[behaviour].title, blocks, behaviour)


def _read(used: Used) -> str:
    """Which text, how long, and how it was halved."""
    total, reporting = len(used.documents), used.reporting
    chosen = f"heads were chosen on {number(total - reporting)} of them and are reported on the others"
    return f"{used.corpus.title}, {number(total)} documents: {chosen}, {number(reporting)}"


def _caveats(comparison: Comparison, used: Used, behaviour: str) -> list[str]:
    said = []
    if used.stands_in:
        said.append("No given corpus has the annotations that this needs, so it was measured on generated tales.")
    if used.reporting < FEW_DOCUMENTS:
        said.append("Fewer than 20 documents report: intervals are rough, and a difference may be this text’s own.")
    for read in comparison.reads:
        counts = read.counts.get(behaviour, {})
        tokens, unknown = counts.get("tokens", 0), counts.get("unknown tokens", 0)
        if unknown > UNKNOWN * tokens:
            said.append(f"{unknown / tokens:.0%} of the tokens of this text are unknown to {read.name}.")
    return said


def _cells(row: Mapping[str, Any]) -> list[Text]:
    """One model's best head in one measure, in numbers."""
    return [
        row["model"],
        bold(head_name(row["layer"], row["head"])),
        f"{row['depth']:.2f}",
        number(row["value"]),
        f"{number(row['baseline'])} ({measure_name(str(row['baseline_name']))})",
        number(row["gain"], sign=True),
        number(row["difference"], sign=True),
        "–" if math.isnan(row["q"]) else false_discovery_rate(row["q"]),
        number(row["value_difference"], sign=True),
        number(row["n"]),
    ]


def _sentence(row: Mapping[str, Any], n_heads: int) -> str:
    """The same in words."""
    return f"{_gain(row)}; {_shown_by(row['n_heads'], n_heads)}. {_difference(row)}".strip()


def _gain(row: Mapping[str, Any]) -> str:
    head, rule = head_name(row["layer"], row["head"]), measure_name(str(row["baseline_name"]))
    lift = " in lift" if row["unit"] == "lift" else ""
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


def _showing(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """How many heads of each model show each headline measure, and how deep they sit on average."""
    rows = comparison.table.set_index(["measure", "model"])
    said = []
    for measure in dict.fromkeys(headline(comparison.table)["measure"]):
        cells = []
        for read in comparison.reads:
            if (measure, read.name) not in rows.index:
                cells.append("–")
                continue
            row = rows.loc[(measure, read.name)].to_dict()
            cells.append(f"{row['n_heads']} at {row['mean_depth']:.2f}" if row["n_heads"] else "0")
        said.append((measure_name(measure), cells))
    return said


def gains_alt(table: pd.DataFrame) -> str:
    """What the figure of gains shows, for one who cannot see it."""
    said = []
    for measure, rows in headline(table).groupby("measure", sort=False):
        each = [f"{row['model']} {number(row['gain'], sign=True)}" for row in rows.to_dict("records")]
        said.append(f"{measure_name(str(measure))}: {', '.join(each)}")
    return f"Gain of each model’s best head. {'; '.join(said)}."


def depth_alt(comparison: Comparison) -> str:
    """What the figure of depths shows, for one who cannot see it."""
    models = [read.name for read in comparison.reads]
    each = [
        f"{measure}: {', '.join(f'{name} {cell}' for name, cell in zip(models, cells, strict=True))}"
        for measure, cells in _showing(comparison)
    ]
    return f"Gains of all heads by relative depth. How many show each measure, at which mean depth: {'; '.join(each)}."
