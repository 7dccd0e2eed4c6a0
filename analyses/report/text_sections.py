"""What does a page say of each text by itself? What explains attention on it, and how heads score as its paper does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from analyses import figures
from analyses.corpora import Corpus
from analyses.explanations import ALL, AS_UNIFORM, UNIFORM, explain
from analyses.figures import measure_name
from analyses.measures.findings import NOTABLE
from analyses.measures.head_tables import Heads
from analyses.page.schema import SCHEMAS
from analyses.page.sections import Block, Details, Figure, Part, Section, Table, Text, bold, caveat, counts_table, link
from analyses.report import text_alternatives
from analyses.report.behaviour_sections import Result
from analyses.report.coreference_scores import PAPERS, REPORTING, coreference_scores
from analyses.report.scaffold import Run, short_name
from analyses.scoring.named_keys import END, FIRST, GROUPS
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import head_name
from analyses.wording.plain_words import TEXTS, WORDS
from interp import InputError, Model

SINKS = "first position, end token"
_CELL = ["layer", "head"]
_RULES = 3  # that are named of each head
_Made = tuple[list[Block], Text, Mapping[str, int], pd.DataFrame]  # of one text; the text is its line in short
_Reading = tuple[str, str, str, Callable[[], _Made]]  # titles of its section, line and counts, and what makes the rest
_SCORES = "score head value interval rule rule_value gain gain_interval n coverage"


def _by_text(readings: Iterable[_Reading], table: str, id: str, failed: str, counts_title: str) -> Part:
    """A section a text, with a line in short and counts; or why it could not be read."""
    sections, short, counts, tables = [], [], {}, []
    for at, (title, line, name, read) in enumerate(readings):
        try:
            blocks, said, counts[name], rows = read()
        except InputError as error:
            blocks = [caveat(f"{failed}: {error}.")]
        else:
            short.append((link(line, f"{id}-{at}"), said))
            tables.append(rows)
        sections.append(Section(title, blocks, f"{id}-{at}"))
    if not tables:
        return Part(sections)
    read_and_left_out = [Section(counts_title, counts_table([*counts.values()], [*counts]))]
    return Part(sections, short, read_and_left_out, tables={table: pd.concat(tables, ignore_index=True)})


# What explains attention.


def explanations(model: Model, results: Sequence[Result], run: Run) -> Part:
    """Every text that words were measured on, once for each self-attention."""
    several = len(Heads.every(model)) > 1
    asked = [each for each in results if each.behaviour.needs and each.kind.attention == "self" and not each.left_out]
    readings: list[_Reading] = []
    for at, result in enumerate({(each.corpus.name, each.kind): each for each in asked}.values()):
        where = ", ".join([short_name(result.corpus.name), *([result.kind.title] if several else [])])
        figure = f"{result.kind.called}-explained-{at}" if several else f"explained-{at}"
        title, line = f"What explains the attention of each head on {where}?", f"What explains attention on {where}"
        readings.append((title, line, where, partial(_explained, model, result, run, figure)))
    part = _by_text(readings, "explained", "explained", "Not fitted", "For what explains attention")
    return replace(part, definitions=[*WORDS["explained_terms"].items()] if part.tables else ())


def _explained(model: Model, result: Result, run: Run, figure: str) -> _Made:
    say = partial(run.say, f"what explains attention on {result.corpus.name}: reading")
    explained = explain(model, result.corpus, heads=result.kind, seed=run.seed, progress=say)
    table, parts = explained.table, by_group(explained.table)
    rows = [_row(rows) for _, rows in table.groupby(_CELL)]
    columns = ["head", "not uniform", "explained", *GROUPS, "made of"]
    documents, n = table[["documents", "n"]].iloc[0]
    read = f"Reported on {counted(int(n), 'word')} of {counted(int(documents), 'group')} of documents."
    caption = TEXTS["explained bars"].format(uniform=AS_UNIFORM)
    blocks: list[Block] = [
        f"{TEXTS['explained method']} {read}",
        Figure(figure, figures.explained_bars(parts), caption, text_alternatives.shares(parts)),
        Details("Head by head", [Table(columns, rows, "lrrrrrrw", TEXTS["explained caption"])]),
    ]
    return blocks, _short(table), explained.counts, table


def by_group(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of each head's attention the parts that groups of rules have, layer x head; sinks first, uniform last."""
    rows = table.loc[(table["kind"] == "mixture") & (table["part"] != ALL)]
    group = rows["group"].where(~rows["part"].isin([FIRST, END]), SINKS)
    sums = rows.assign(group=group).groupby(["group", *_CELL])["share"].sum(min_count=1).unstack("head")
    return {name: sums.loc[name] for name in (SINKS, *GROUPS, UNIFORM) if name in sums.index.get_level_values(0)}


def _row(rows: pd.DataFrame) -> list[Text]:
    mixed = rows.loc[(rows["kind"] == "mixture") & (rows["part"] != ALL)].nlargest(_RULES, "share")
    made = [f"{measure_name(part)} {number(share)}" for part, share in zip(mixed["part"], mixed["share"], strict=True)]
    shapley = rows.loc[rows["kind"] == "shapley"].set_index("part")["share"]
    every = rows.loc[(rows["kind"] == "nested") & (rows["part"] == ALL), "share"].item()
    first = rows.iloc[0]
    values = [float(first["kl"]), every, *(shapley[group] for group in GROUPS)]
    name = bold(head_name(int(first["layer"]), int(first["head"])))
    return [name, *map(number, values), "; ".join(made) or "near uniform"]


def _short(table: pd.DataFrame) -> Text:
    """Which group explains most in how many heads, and where relation and reference add to all others."""
    shapley = table.loc[table["kind"] == "shapley"].pivot(index=_CELL, columns="part", values="share")
    most = shapley.dropna().idxmax(axis=1).value_counts()
    counts = ", ".join(f"{group} in {number(int(most[group]))}" for group in GROUPS if group in most)
    unique = table.loc[(table["kind"] == "unique") & (table["part"] == GROUPS[-1])]
    beyond = unique.loc[(unique["share"] >= NOTABLE) & (unique["ci_low"] > 0)].nlargest(_RULES, "share")
    heads = [f"{head_name(row['layer'], row['head'])} ({percent(row['share'])})" for row in beyond.to_dict("records")]
    adds = f"add at least {percent(NOTABLE)} of what is not uniform in {', '.join(heads) or 'no head'}"
    of = f"Of {counted(len(shapley), 'head')}, what explains most is: {counts}." if counts else "No head is explained."
    return f"{of} Beyond all simpler rules, relation and reference {adds}."


# The score of a corpus's own paper.


def scores(model: Model, corpora: Sequence[Corpus], run: Run) -> Part:
    """Every corpus that has scores of its own, in every self-attention."""
    kinds = [kind for kind in Heads.every(model) if kind.attention == "self"]
    readings: list[_Reading] = []
    for corpus, kind in product((corpus for corpus in corpora if corpus.kind in PAPERS), kinds):
        title = f"{PAPERS[corpus.kind]['title']} as its paper scores it" + f", {kind.title}" * (len(kinds) > 1)
        readings.append((title, title, title, partial(_scored, model, corpus, kind, run)))
    return _by_text(readings, "coreference_scores", "scores", "Not scored", "For the scores of papers")


def _scored(model: Model, corpus: Corpus, kind: Heads, run: Run) -> _Made:
    say = partial(run.say, f"{PAPERS[corpus.kind]['title']}: reading")
    scores = coreference_scores(model, corpus, heads=kind, seed=run.seed, progress=say)
    rows = _chosen(scores.table)
    measured = f"Measured on {corpus.title}, {counted(scores.clusters, 'cluster')} of items."
    table = SCHEMAS["coreference_scores"].page(rows, _SCORES, TEXTS["papers caption"])
    value, rival = percent(rows[0]["value"]), percent(rows[0]["rule_value"])
    said = f" has {rows[0]['score']} {value}, the rule “{rows[0]['rule']}” {rival}."
    blocks: list[Block] = [f"{WORDS['papers'][corpus.kind]} {measured}", table]
    return blocks, [bold(rows[0]["resolver"]), said], scores.counts, scores.table


def _chosen(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The chosen head in each score, beside the chosen rule."""
    shown = table.loc[(table["half"] == REPORTING) & table["chosen"]]
    pairs = [rows.to_dict("records") for _, rows in shown.groupby(["score", "condition"], sort=False)]
    return [
        {
            **head,
            "score": ", ".join(filter(None, (head["score"], head["condition"]))),
            "rule": rule["resolver"],
            "rule_value": rule["value"],
        }
        for head, rule in pairs
    ]
