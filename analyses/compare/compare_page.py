"""What does the comparison say? Turns its tables into sections."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd

from analyses import figures
from analyses.behaviours import OURS, vocabulary
from analyses.compare.comparison import HEADLINE, Comparison, Used
from analyses.figures import measure_name
from analyses.measures.findings import DISCOVERY, FEW_DOCUMENTS, NOTABLE, UNKNOWN
from analyses.page.schema import SCHEMAS
from analyses.page.sections import (
    UNUSED,
    Block,
    Definitions,
    Details,
    Figure,
    Page,
    Section,
    Source,
    Table,
    Text,
    caveat,
    counts_table,
)
from analyses.wording.formats import counted, number
from analyses.wording.plain_words import listed, worded

_NAMED = 4  # measures in a sentence
_WORDS = vocabulary(OURS)
_COLUMNS = "model head depth value baseline gain_estimate difference q value_difference n"
_TEXTS: dict[str, Any] = tomllib.loads(files("analyses.compare").joinpath("words.toml").read_text("utf-8"))
_SAYS: Mapping[str, str] = _TEXTS["sentences"]


def page(comparison: Comparison, models: Sequence[Mapping[str, Any]]) -> Page:
    """What the comparison says and shows; `models` are as run.json has them, the reference first."""
    names = [read.name for read in comparison.reads]
    reference, shown = names[0], headline(comparison.table)
    read = [{**model, "tokenizer": None} for model in models] if comparison.by_ids else models
    gains = figures.compared_gains(shown)
    depths = figures.gains_by_depth(comparison.heads, list(dict.fromkeys(shown["measure"])))
    showing = _showing(comparison)
    best: list[Block] = [
        _SAYS["best"].format(reference),
        Figure("compare-gains", gains, _TEXTS["gains"], gains_alt(comparison.table)),
    ]
    deep: list[Block] = [
        _SAYS["depths"],
        Table(["measure", *names], [[measure, *cells.values()] for measure, cells in showing.items()]),
        Figure("compare-depth", depths, _TEXTS["depth"], depth_alt(showing)),
    ]
    return Page(
        title=f"How do the heads of {listed(names)} compare?",
        summary=[
            Definitions([(f"{name}, beside {reference}", *summary(comparison.table, name)) for name in names[1:]]),
            *map(caveat, comparability(read)),
            *(caveat(f"Not compared by {OURS[name].title}: {why}.") for name, why in comparison.unserved.items()),
        ],
        sections=[
            Section("The best head of each model", best, "best"),
            Section("How many heads, and how deep?", deep, "showing"),
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
    facts = {"measured": list(used.asked), "stood_in": used.stands_in}
    facts |= {"documents": len(used.documents), "reporting_documents": used.reporting}
    return Source(used.corpus, f"for {', '.join(used.asked)}", facts)


def headline(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `tables/compare` that the page and its figures show."""
    return table.loc[table["measure"].isin([measure for names in HEADLINE.values() for measure in names])]


def told_apart(row: Mapping[str, Any]) -> bool:
    """Whether a difference is more than chance: its interval excludes 0 and its q is below 0.05."""
    low, high = row["difference_low"], row["difference_high"]
    return bool((low > 0 or high < 0) and row["q"] < DISCOVERY)


def summary(table: pd.DataFrame, name: str) -> list[str]:
    """What a model has and the reference has not, the other way round, and how the best heads of both compare.

    That only one of them has heads for a measure is said to be so where their best heads can be told apart.
    """
    shown = headline(table)
    counts = shown.loc[shown["model"] == shown["reference"]].set_index("measure")["n_heads"]
    both = shown.loc[(shown["model"] == name) & shown["difference"].notna()]
    rows = both.assign(theirs=both["measure"].map(counts)).to_dict("records")
    if not rows:
        return [_SAYS["nothing"]]
    kinds: dict[str, list[str]] = {"lacks": [], "adds": [], "unsure": []}
    for row in rows:
        if bool(row["n_heads"]) != bool(row["theirs"]):
            sure = told_apart(row) and (row["difference"] > 0) == bool(row["n_heads"])
            kinds["unsure" if not sure else "adds" if row["n_heads"] else "lacks"].append(_words(row["measure"]))
    reference, either = rows[0]["reference"], [row for row in rows if row["n_heads"] or row["theirs"]]
    said = [_SAYS[kind].format(reference=reference, measures=", ".join(of)) for kind, of in kinds.items() if of]
    said += [_sizes(either)] if either else []
    if neither := len(rows) - len(either):
        are = "is" if neither == 1 else "are"
        said.append(f"{neither} of the {len(rows)} measures on this page {are} shown by no head of either.")
    return said


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    """In how many measures a best head gains less or more than the reference's, by at least 0.05 and beyond chance."""
    clear = [row for row in rows if told_apart(row) and abs(row["difference"]) >= NOTABLE]
    clear = sorted(clear, key=lambda row: -abs(row["difference"]))
    said = []
    for way in ("less", "more"):
        names = [
            f"{_words(row['measure'])} {number(row['difference'], sign=True)}"
            for row in clear
            if (row["difference"] < 0) == (way == "less")
        ]
        listing = ", ".join([*names[:_NAMED], *(["…"] if len(names) > _NAMED else [])])
        said += [f"gains clearly {way} in {len(names)} ({listing})"] if names else []
    if len(rows) > len(clear):
        said.append(f"differs by less than {NOTABLE}, or by no more than chance explains, in {len(rows) - len(clear)}")
    return f"Of {counted(len(rows), 'measure')} that heads of either show, its best head {'; '.join(said)}."


def _words(measure: str) -> str:
    """A measure as the first sentences tell it, without notation."""
    return worded(measure, _WORDS).short


def comparability(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the models do not share, so that their numbers are not of exactly the same rows."""
    first, others = models[0], models[1:]
    keys = ("tokenizer", "context", "causal")
    unlike = {key: [model["name"] for model in others if model[key] != first[key]] for key in keys}
    same = [model["name"] for model in others if model["fingerprint"] and model["fingerprint"] == first["fingerprint"]]
    # with another tokenizer the windows differ anyway
    windows = [name for name in unlike["context"] if name not in unlike["tokenizer"]]
    kinds = {"same": same, "tokenizer": unlike["tokenizer"], "windows": windows}
    kinds["before" if first["causal"] else "after"] = unlike["causal"]
    return [
        f"{listed(names)}: {_TEXTS['unlike'][kind].format(first['name'])}." for kind, names in kinds.items() if names
    ]


def _behaviour(comparison: Comparison, used: Used, behaviour: str) -> Section:
    """One behaviour: a table of the best heads, measure by measure."""
    reads, total = comparison.reads, len(used.documents)
    names, schema = [read.name for read in reads], SCHEMAS["compare"]
    rows = comparison.table.loc[comparison.table["behaviour"] == behaviour]
    text = _SAYS["text"].format(
        used.corpus.title, number(total), number(total - used.reporting), number(used.reporting)
    )
    blocks: list[Block] = [text, *map(caveat, _caveats(comparison, used, behaviour))]
    cells: list[Sequence[Text] | str] = []
    for measure in HEADLINE[behaviour]:
        if group := rows.loc[rows["measure"] == measure].to_dict("records"):
            cells += [measure_name(measure), *schema.page(group, _COLUMNS).rows]
    if cells:
        head = schema.page([], _COLUMNS)
        blocks.append(Table(head.columns, cells, head.align, _SAYS["table"].format(names[0])))
    if counts := counts_table([read.counts.get(behaviour, {}) for read in reads], names):
        blocks.append(Details("What was read and what was left out", counts))
    return Section(OURS[behaviour].title, blocks, behaviour)


def _caveats(comparison: Comparison, used: Used, behaviour: str) -> list[str]:
    said = [_SAYS["stands in"]] if used.stands_in else []
    said += [_SAYS["few"]] if used.reporting < FEW_DOCUMENTS else []
    for read in comparison.reads:
        counts = read.counts.get(behaviour, {})
        tokens, unknown = counts.get("tokens", 0), counts.get("unknown tokens", 0)
        if unknown > UNKNOWN * tokens:
            said.append(f"{unknown / tokens:.0%} of the tokens of this text are unknown to {read.name}.")
    lacking = [read for read in comparison.reads if behaviour in read.left_out]
    return said + [f"Not measured in {read.name}: {read.left_out[behaviour]}." for read in lacking]


def _showing(comparison: Comparison) -> dict[str, dict[str, str]]:
    """By headline measure and model, how many heads show it, and how deep they sit on average."""
    rows = comparison.table.set_index(["measure", "model"])
    cells = {
        key: f"{row['n_heads']} at {row['mean_depth']:.2f}" if row["n_heads"] else "0"
        for key, row in zip(rows.index, rows.to_dict("records"), strict=True)
    }
    measures, names = dict.fromkeys(headline(comparison.table)["measure"]), [read.name for read in comparison.reads]
    return {measure_name(each): {name: cells.get((each, name), "–") for name in names} for each in measures}


def gains_alt(table: pd.DataFrame) -> str:
    """What the figure of gains shows, for one who cannot see it."""
    said = []
    for measure, rows in headline(table).groupby("measure", sort=False):
        gains = [f"{row['model']} {number(row['gain'], sign=True)}" for row in rows.to_dict("records")]
        said.append(f"{measure_name(str(measure))}: {', '.join(gains)}")
    return f"Gain of each model’s best head. {'; '.join(said)}."


def depth_alt(showing: Mapping[str, Mapping[str, str]]) -> str:
    """What the figure of depths shows, for one who cannot see it."""
    said = [f"{measure}: {', '.join(f'{name} {cell}' for name, cell in by.items())}" for measure, by in showing.items()]
    return f"Gains of all heads by relative depth. How many show each measure, at which mean depth: {'; '.join(said)}."
