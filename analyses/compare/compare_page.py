"""What does the comparison say? Two atlases whose matching heads mark each other, and its tables as sections."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from analyses import figures
from analyses.behaviours import OURS, vocabulary
from analyses.compare.comparison import HEADLINE, Comparison, Usage
from analyses.measures.findings import DISCOVERY, FEW_DOCUMENTS, NOTABLE, UNKNOWN
from analyses.page import sections as doc
from analyses.page.grids import Cell, Grid, Grids
from analyses.page.sections import Page, Section, Source
from analyses.viewer.passages import Called, HeadName
from analyses.wording import plain_words
from analyses.wording.formats import counted, number
from analyses.wording.head_names import Place
from analyses.wording.plain_words import breakable, listed, worded

_NAMES = 4  # measures in a sentence, and heads in a cell's name
_WIDEST = 9  # heads in a layer that still leave room for words
_SIGNS = {"position": "●", "part-of-speech": "■", "coreference": "▲"}  # in place of words
_WORDS = vocabulary(OURS)
Names = Mapping[HeadName, Called]
_TEXTS: Mapping[str, Any] = plain_words.WORDS["compare"]
_SENTENCES: Mapping[str, str] = _TEXTS["sentences"]


def page(comparison: Comparison, models: Sequence[Mapping[str, Any]], called: Mapping[str, Names]) -> Page:
    """The comparison as a page; `models` are run.json's descriptions, `called` their heads' names by first facts."""
    names, table = [each.name for each in comparison.reads], headline(comparison.table)
    described = [{**model, "tokenizer": None} for model in models] if comparison.by_ids else models
    sources = []
    for each in comparison.used:
        read = {"documents": len(each.documents), "reporting_documents": each.reporting}
        read |= {"measured": list(each.questions), "stood_in": each.stands_in}
        sources.append(Source(each.corpus, f"for {', '.join(each.questions)}", read))
    gains = doc.drawing("compare-gains", figures.compared_gains(table))
    return Page(
        title=f"How do the heads of {listed(names)} compare?",
        overview=[_atlases(comparison, called)],
        summary=[
            doc.Definitions([(f"{name}, beside {names[0]}", *summary(comparison.table, name)) for name in names[1:]]),
            *map(doc.caveat, comparability(described)),
            *(doc.caveat(f"Not compared by {OURS[name].title}: {why}.") for name, why in comparison.unserved.items()),
        ],
        sections=[
            Section("The best head of each model", [_SENTENCES["best"].format(names[0]), gains], "best"),
            _read(comparison),
        ],
        corpora=[*sources, *(Source(corpus, doc.UNUSED, {"measured": []}) for corpus in comparison.unused)],
        models={each.name: {"left_out": each.counts, "not_measured": dict(each.left_out)} for each in comparison.reads},
        definitions=[*_TEXTS["definitions"].items()],
        tables={"compare": comparison.table, "heads": comparison.heads},
        facts={"reference": names[0]},
    )


def _atlases(comparison: Comparison, called: Mapping[str, Names]) -> Grids:
    """Every model's heads, each named by its first fact; a head marks heads of other models that do the same."""
    reads = {each.name: each for each in comparison.reads if each.collected}
    ids = {name: f"model-{number}/" for number, name in enumerate(reads, 1)}
    rows = comparison.heads.loc[comparison.heads["shows"].astype(bool)].sort_values("gain", ascending=False)
    gains: dict[tuple[str, str], dict[Place, float]] = {}  # by model and measure, the best head first
    for row in rows.to_dict("records"):
        gains.setdefault((row["model"], row["measure"]), {})[Place.from_row(row)] = row["gain"]

    def cell(name: str, place: Place, has_room: bool) -> Cell:
        label, head, room = called[name].get(place), place.named(prefix=False), "word " * has_room
        if label is None:
            return Cell(f"{head}: nothing found", kind=room.strip(), id=ids[name] + head)
        texts, marks = [f"{head}, {label.words}, gain {number(gains.get((name, label.asks), {}).get(place))}"], []
        for other in [each for each in reads if each != name]:
            showing = gains.get((other, label.asks), {})
            same = {each for each, known in called[other].items() if known.words == label.words}
            alike = [each for each in showing if each in same] or [*showing][:1]
            marks += [ids[other] + each.named(prefix=False) for each in alike]
            names = [f"{each.named(prefix=False)} (gain {number(showing[each])})" for each in alike]
            texts.append(f"{other}: {', '.join(names[:_NAMES]) or 'none'}")
        text = breakable(label.words) if has_room else _SIGNS.get(label.behaviour, "◆")
        to, id = "".join(marks[:1]), ids[name] + head
        return Cell("; ".join(texts), text, kind=room + label.behaviour, to=to, id=id, marks=marks)

    grids = []
    for name, read in reads.items():
        heads = next(iter(read.collected.values())).heads
        columns, kind = range(heads.n_heads), (heads.stack, heads.attention)
        cells = [
            (f"L{layer}", [cell(name, Place(*kind, layer, head), heads.n_heads <= _WIDEST) for head in columns])
            for layer in reversed(range(heads.n_layers))
        ]
        small = "reference" * (read is comparison.reads[0])
        grids.append(Grid(name, small, [f"H{head}" for head in columns], cells))
    return Grids(grids, _SENTENCES["atlases"])


def headline(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `tables/compare` that the page and its figures show."""
    return table.loc[table["measure"].isin([measure for names in HEADLINE.values() for measure in names])]


def is_clear(row: Mapping[str, Any]) -> bool:
    """Whether a difference is beyond chance: its interval excludes 0 and its q is below 0.05."""
    low, high = row["difference_low"], row["difference_high"]
    return bool((low > 0 or high < 0) and row["q"] < DISCOVERY)


def summary(table: pd.DataFrame, name: str) -> list[str]:
    """What a model has and the reference lacks, the reverse, and how their best heads compare.

    If only one has heads for a measure, their best heads must also differ clearly; otherwise that is unsure.
    """
    rows = headline(table)
    counts = rows.loc[rows["model"] == rows["reference"]].set_index("measure")["n_heads"]
    compared = rows.loc[(rows["model"] == name) & rows["difference"].notna()]
    records = compared.assign(theirs=compared["measure"].map(counts)).to_dict("records")
    if not records:
        return [_SENTENCES["nothing"]]
    kinds: dict[str, list[str]] = {"lacks": [], "adds": [], "unsure": []}
    for row in records:
        if bool(row["n_heads"]) != bool(row["theirs"]):
            sure = is_clear(row) and (row["difference"] > 0) == bool(row["n_heads"])
            kinds["unsure" if not sure else "adds" if row["n_heads"] else "lacks"].append(
                worded(row["measure"], _WORDS).short
            )
    reference, either = records[0]["reference"], [row for row in records if row["n_heads"] or row["theirs"]]
    named = {kind: ", ".join(names) for kind, names in kinds.items() if names}
    texts = [_SENTENCES[kind].format(reference=reference, model=name, measures=text) for kind, text in named.items()]
    texts += [_sizes(either)] if either else []
    return texts or [_SENTENCES["none"]]


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    clear = [row for row in rows if is_clear(row) and abs(row["difference"]) >= NOTABLE]
    clear, parts, model = sorted(clear, key=lambda row: -abs(row["difference"])), [], rows[0]["model"]
    for way in ("less", "more"):
        group = [row for row in clear if (row["difference"] < 0) == (way == "less")]
        names = [f"{worded(row['measure'], _WORDS).short} {number(row['difference'], sign=True)}" for row in group]
        listing = ", ".join([*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])])
        parts += [f"gains clearly {way} on {len(names)} ({listing})"] if names else []
    if len(rows) > len(clear):
        parts.append(f"differs by less than {NOTABLE}, or no more than by chance, on {len(rows) - len(clear)}")
    return f"Of {counted(len(rows), 'measure')} that either model shows, {model}’s best head {' and '.join(parts)}."


def comparability(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the models do not share, so that their numbers are not of exactly the same rows."""
    first, *rest = models
    tokenizer, context, causal = (
        [model["name"] for model in rest if model[key] != first[key]] for key in ("tokenizer", "context", "causal")
    )
    equal = [model["name"] for model in rest if model["fingerprint"] and model["fingerprint"] == first["fingerprint"]]
    windows = [name for name in context if name not in tokenizer]  # with another tokenizer they differ anyway
    kinds = {
        "same": equal,
        "tokenizer": tokenizer,
        "windows": windows,
        "before" if first["causal"] else "after": causal,
    }
    texts = _TEXTS["unlike"]
    return [f"{listed(names)}: {texts[kind].format(first['name'])}." for kind, names in kinds.items() if names]


def _read(comparison: Comparison) -> Section:
    """For each text: what it was read for, caveats about its numbers, and what was left out."""
    reads, blocks = comparison.reads, list[doc.Block]()
    for usage in comparison.used:
        total = len(usage.documents)
        counts = map(number, (total, total - usage.reporting, usage.reporting))
        titles = ", ".join(OURS[behaviour].title for behaviour in usage.questions)
        blocks.append([doc.bold(titles), ": ", _SENTENCES["text"].format(usage.corpus.title, *counts)])
        blocks += map(doc.caveat, dict.fromkeys(_caveats(comparison, usage)))
        for behaviour in usage.questions:
            if tables := doc.counts_table(
                [each.counts.get(behaviour, {}) for each in reads], [each.name for each in reads]
            ):
                blocks.append(doc.Details(f"{OURS[behaviour].title}: what was read and left out", tables))
    return Section("What was read", blocks, "read")


def _caveats(comparison: Comparison, usage: Usage) -> list[str]:
    texts = [_SENTENCES["stands in"]] * usage.stands_in + [_SENTENCES["few"]] * (usage.reporting < FEW_DOCUMENTS)
    for behaviour, result in product(usage.questions, comparison.reads):
        counts = result.counts.get(behaviour, {})
        tokens, unknown = counts.get("tokens", 0), counts.get("unknown tokens", 0)
        if unknown > UNKNOWN * tokens:
            texts.append(f"{unknown / tokens:.0%} of the tokens of this text are unknown to {result.name}.")
        if why := result.left_out.get(behaviour):
            texts.append(f"Not measured in {result.name}: {why}.")
    return texts
