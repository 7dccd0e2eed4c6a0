"""What does a page say of the scores of a corpus's own paper? A line in short and a section for each corpus."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from analyses.corpora import Corpus
from analyses.page.schema import SCHEMAS
from analyses.page.sections import Part, Section, bold, caveat, counts_table, link
from analyses.report.coreference_scores import PAPERS, REPORTING, coreference_scores
from analyses.report.scaffold import Run
from analyses.tables.head_tables import Heads
from analyses.wording.formats import counted, percent
from analyses.wording.plain_words import TEXTS, WORDS
from interp import InputError, Model

_COLUMNS = "score head value interval rule rule_value gain gain_interval n coverage"


def section(model: Model, corpora: Sequence[Corpus], run: Run) -> Part:
    """Every corpus that has scores of its own, in every self-attention."""
    kinds = [kind for kind in Heads.every(model) if kind.attention == "self"]
    sections, short, counts, tables = [], [], {}, []
    for corpus, kind in product((corpus for corpus in corpora if corpus.kind in PAPERS), kinds):
        title, id = PAPERS[corpus.kind].title, f"scores-{len(sections)}"
        name = f"{title} as its paper scores it" + (f", {kind.title}" if len(kinds) > 1 else "")
        say = partial(run.say, f"{title}: reading")
        try:
            scores = coreference_scores(model, corpus, heads=kind, seed=run.seed, progress=say)
        except InputError as error:
            sections.append(Section(name, [caveat(f"Not scored: {error}.")], id))
            continue
        rows = _chosen(scores.table)
        measured = f"Measured on {corpus.title}, {counted(scores.clusters, 'cluster')} of items."
        table = SCHEMAS["coreference_scores"].page(rows, _COLUMNS, TEXTS["papers caption"])
        sections.append(Section(name, [f"{WORDS['papers'][corpus.kind]} {measured}", table], id))
        (first, *_) = rows
        value, rival = percent(first["value"]), percent(first["rule_value"])
        head = bold(first["resolver"])
        short.append((link(name, id), [head, f" has {first['score']} {value}, the rule “{first['rule']}” {rival}."]))
        counts[name] = scores.counts
        tables.append(scores.table)
    read = [Section("For the scores of papers", counts_table([*counts.values()], [*counts]))] if counts else []
    table = {"coreference_scores": pd.concat(tables, ignore_index=True)} if tables else {}
    facts = {"scored": [*dict.fromkeys(each["corpus"].iloc[0] for each in tables)]} if tables else {}
    return Part(sections, short, read, tables=table, facts=facts)


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
