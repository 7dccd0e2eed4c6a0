"""How are the scores of a corpus's own paper told? A line in short and a section for each corpus and attention."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from analyses.coreference_scores import PAPERS, REPORTING, CoreferenceScores, coreference_scores
from analyses.corpora import Corpus
from analyses.head_tables import Heads
from analyses.numerals import counted, interval, number, percent
from analyses.report.scaffold import Run
from analyses.sections import Block, Part, Section, Table, Text, bold, caveat, counts_table, link
from interp import InputError, Model

_READS = {
    "gap": (
        "Each of the two names is a question, does the pronoun stand for it? F1 is over all of them (Webster 2018). "
        "Parallelism, the rule that the paper finds best, needs a parse, so it is not among the rules here: on the "
        "test set it has 66.9 (masculine 69.4, feminine 64.4, bias 0.93; GAP’s README)."
    ),
    "winobias": (
        "The share of pronouns that are linked to the right occupation, where it is filled by the pronoun’s gender "
        "mostly (pro) and where it is not (anti); their difference is the bias. One link is chosen for one pronoun, so "
        "that the paper’s F1 (Zhao 2018) is this accuracy. Type 1 needs knowledge of the world, type 2 only syntax."
    ),
    "winogender": (
        "How often the occupation is chosen, and not the other participant, for each pronoun in the same sentences "
        "(Rudinger 2018). “They” has no part in she - he. Correlations are over occupations, with the share of women "
        "in them (bls_pct_female)."
    ),
}
_CAPTION = (
    "Head and rule were chosen on the other half of the documents. “Gain”: the head less the rule, on the same items. "
    "A name that the model cannot see is a miss; “sees” is the share that it can. All heads: tables/coreference_scores."
)


def told(run: Run, model: Model, corpora: Sequence[Corpus]) -> Part:
    """Every corpus that has scores of its own, in every self-attention."""
    kinds = [kind for kind in Heads.every(model) if kind.attention == "self"]
    sections, short, counts, tables = [], [], {}, []
    for corpus in corpora:
        for kind in kinds if corpus.kind in PAPERS else []:
            title = PAPERS[corpus.kind].title
            name = f"{title} as its paper scores it" + (f", {kind.title}" if len(kinds) > 1 else "")
            id = f"scores-{len(sections)}"
            say = partial(run.say, f"{title}: reading")
            try:
                found = coreference_scores(model, corpus, heads=kind, seed=run.seed, progress=say)
            except InputError as error:
                sections.append(Section(name, [caveat(f"Not scored: {error}.")], id))
                continue
            sections.append(Section(name, _blocks(found, corpus), id))
            short.append((link(name, id), _short(found.table)))
            counts[name] = found.counts
            tables.append(found.table)
    counted_ = [Section("For the scores of papers", counts_table([*counts.values()], [*counts]))] if counts else []
    table = {"coreference_scores": pd.concat(tables, ignore_index=True)} if tables else {}
    facts = {"scored": [*dict.fromkeys(each["corpus"].iloc[0] for each in tables)]} if tables else {}
    return Part(sections, short, counted_, tables=table, facts=facts)


def _blocks(found: CoreferenceScores, corpus: Corpus) -> list[Block]:
    shown = found.table.loc[(found.table["half"] == REPORTING) & found.table["chosen"]]
    columns = ["score", "head", "value", "95% interval", "rule", "value", "gain", "95% interval", "n", "sees"]
    rows = [_row(rows) for _, rows in shown.groupby(["score", "condition"], sort=False)]
    clusters = counted(found.clusters, "cluster")
    return [
        f"{_READS[corpus.kind]} Measured on {corpus.title}, {clusters} of items.",
        Table(columns, rows, "llrrlrrrrr", _CAPTION),
    ]


def _row(rows: pd.DataFrame) -> list[Text]:
    """One score of the chosen head beside the chosen rule."""
    head, rule = rows.to_dict("records")
    return [
        ", ".join(filter(None, (head["score"], head["condition"]))),
        bold(head["resolver"]),
        number(head["value"]),
        interval(head["ci_low"], head["ci_high"]),
        rule["resolver"],
        number(rule["value"]),
        number(head["gain"], sign=True),
        interval(head["gain_low"], head["gain_high"], sign=True),
        number(head["n"]),
        number(head["coverage"]),
    ]


def _short(table: pd.DataFrame) -> Text:
    """The chosen head in the first score (F1 or accuracy), beside the chosen rule."""
    head, rule = table.loc[(table["half"] == REPORTING) & table["chosen"]].head(2).to_dict("records")
    score = ", ".join(filter(None, (head["score"], head["condition"])))
    return [
        bold(head["resolver"]),
        f" has {score} {percent(head['value'])}, the rule “{rule['resolver']}” {percent(rule['value'])}.",
    ]
