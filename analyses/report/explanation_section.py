"""What does a page say of what explains each head's attention? A line in short and a section for each text."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from analyses import figures
from analyses.explanations import ALL, AS_UNIFORM, UNIFORM, Explained, explain
from analyses.figures import measure_name
from analyses.page.sections import (
    Block,
    Details,
    Figure,
    Part,
    Section,
    Table,
    Text,
    bold,
    caveat,
    counts_table,
    link,
)
from analyses.report import text_alternatives
from analyses.report.behaviour_sections import Result
from analyses.report.scaffold import Run, short_name
from analyses.rivals.named_keys import END, FIRST, GROUPS
from analyses.tables.findings import NOTABLE
from analyses.tables.head_tables import Heads
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import head_name
from analyses.wording.plain_words import TEXTS, WORDS
from interp import InputError, Model

SINKS = "first position, end token"
_CELL = ["layer", "head"]
_RULES = 3  # that are named of each head
_BARS = (
    "A bar is a head; light grey is uniform attention. No bar: attention that lies within "
    f"{AS_UNIFORM} nats of uniform, of which nothing is said."
)


def section(model: Model, results: Sequence[Result], run: Run) -> Part:
    """Every text that words were measured on, once for each self-attention."""
    several = len(Heads.every(model)) > 1
    sections, short, counts, tables = [], [], {}, []
    texts = {(result.corpus.name, result.kind): result for result in results if _asks(result)}
    for at, ((name, kind), result) in enumerate(texts.items()):
        where = ", ".join([short_name(name), *([kind.title] if several else [])])
        title, id = f"What explains the attention of each head on {where}?", f"explained-{at}"
        try:
            say = partial(run.say, f"what explains attention on {name}: reading")
            explained = explain(model, result.corpus, heads=kind, seed=run.seed, progress=say)
        except InputError as error:
            sections.append(Section(title, [caveat(f"Not fitted: {error}.")], id))
            continue
        figure = f"{kind.called}-explained-{at}" if several else f"explained-{at}"
        sections.append(Section(title, _blocks(explained, figure), id))
        short.append((link(f"What explains attention on {where}", id), _short(explained.table)))
        counts[where] = explained.counts
        tables.append(explained.table)
    read = [Section("For what explains attention", counts_table([*counts.values()], [*counts]))] if counts else []
    table = {"explained": pd.concat(tables, ignore_index=True)} if tables else {}
    return Part(sections, short, read, [*WORDS["explained_terms"].items()] if tables else (), table)


def _asks(result: Result) -> bool:
    """Whether a result is about the words of one text."""
    return bool(result.behaviour.needs) and result.kind.attention == "self" and not result.left_out


def _blocks(explained: Explained, name: str) -> list[Block]:
    table = explained.table
    rows = [_row(own) for _, own in table.groupby(_CELL)]
    columns = ["head", "not uniform", "explained", *GROUPS, "made of"]
    documents, n = table[["documents", "n"]].iloc[0]
    read = f"Reported on {counted(int(n), 'word')} of {counted(int(documents), 'group')} of documents."
    return [
        f"{TEXTS['explained method']} {read}",
        Figure(name, figures.explained_bars(by_group(table)), _BARS, text_alternatives.shares(by_group(table))),
        Details("Head by head", [Table(columns, rows, "lrrrrrrw", TEXTS["explained caption"])]),
    ]


def by_group(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of each head's attention the parts that groups of rules have, layer x head; sinks first, uniform last."""
    rows = table.loc[(table["kind"] == "mixture") & (table["part"] != ALL)]
    group = rows["group"].where(~rows["part"].isin([FIRST, END]), SINKS)
    sums = rows.assign(group=group).groupby(["group", *_CELL])["share"].sum(min_count=1).unstack("head")
    return {name: sums.loc[name] for name in (SINKS, *GROUPS, UNIFORM) if name in sums.index.get_level_values(0)}


def _row(rows: pd.DataFrame) -> list[Text]:
    """One head."""
    mixed = rows.loc[(rows["kind"] == "mixture") & (rows["part"] != ALL)].nlargest(_RULES, "share")
    made = [f"{measure_name(part)} {number(share)}" for part, share in zip(mixed["part"], mixed["share"], strict=True)]
    shapley = rows.loc[rows["kind"] == "shapley"].set_index("part")["share"]
    every = rows.loc[(rows["kind"] == "nested") & (rows["part"] == ALL), "share"].item()
    first = rows.iloc[0]
    values = [float(first["kl"]), every, *(shapley[group] for group in GROUPS)]
    return [
        bold(head_name(int(first["layer"]), int(first["head"]))),
        *map(number, values),
        "; ".join(made) or "near uniform",
    ]


def _short(table: pd.DataFrame) -> Text:
    """Which group explains most in how many heads, and where relation and reference add to all others."""
    shapley = table.loc[table["kind"] == "shapley"].pivot(index=_CELL, columns="part", values="share")
    said = shapley.dropna()
    most = said.idxmax(axis=1).value_counts()
    counts = ", ".join(f"{group} in {number(int(most[group]))}" for group in GROUPS if group in most)
    unique = table.loc[(table["kind"] == "unique") & (table["part"] == GROUPS[-1])]
    beyond = unique.loc[(unique["share"] >= NOTABLE) & (unique["ci_low"] > 0)].nlargest(_RULES, "share")
    heads = [f"{head_name(row['layer'], row['head'])} ({percent(row['share'])})" for row in beyond.to_dict("records")]
    adds = f"add at least {percent(NOTABLE)} of what is not uniform in {', '.join(heads) or 'no head'}"
    of = f"Of {counted(len(shapley), 'head')}, what explains most is: {counts}." if counts else "No head is explained."
    return f"{of} Beyond all simpler rules, relation and reference {adds}."
