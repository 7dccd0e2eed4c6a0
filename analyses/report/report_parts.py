"""What does a report say besides its behaviours? Labels; what explains attention on each text; the scores of papers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby, product
from typing import Any

import pandas as pd

from analyses import figures
from analyses.behaviours import vocabulary
from analyses.corpora import Corpus
from analyses.execution import lots
from analyses.explanations import ALL_GROUPS, UNIFORM, Explained, fit_sample, sample
from analyses.headlines.head_cards import strongest_readers
from analyses.headlines.sentences import set_clause
from analyses.labels import Labelled, head_readers, key_writers
from analyses.labels.evidence import N_COPIES
from analyses.measures.definitions import Behaviour
from analyses.measures.findings import NOTABLE
from analyses.measures.head_tables import Heads
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, Part, Text
from analyses.report.behaviour_sections import Result
from analyses.report.coreference_scores import PAPERS, REPORTING, coreference_scores
from analyses.report.scaffold import Run, short_name
from analyses.scoring.named_keys import END, FIRST, GROUPS
from analyses.wording import plain_words
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import HEAD, Place, head_name, kinds
from analyses.wording.plain_words import TEXTS, WORDS, listed, worded
from interp import InputError, Model, Transformer

_EVIDENCE = WORDS["label_evidence"]  # titles by evidence
SINKS = "first position, end token"
_CELL = ["layer", "head"]
WHY = {"writers": "who writes what heads find", "readers": "who reads heads"}  # names of progress stages
_WHY = {"writers": "head measure writer advantage before without others_without others"}
_WHY |= {"readers": "head task reader effect interval q"}
_RULES = 3  # rules named for each head
_SCORES = "score head value interval rule rule_value gain gain_interval n coverage"
_SETS = "measure heads effect all others others_best difference q"


def labels(labelled: Labelled, model: Model, behaviours: Mapping[str, Behaviour]) -> Part:
    """The labels on the page: a table for each kind of evidence, and a fold on how they were made."""
    rows, words = labelled.labels, vocabulary(behaviours)
    readouts = " or ".join(plain_words.readout(name) for name in map(str, rows["readout"].dropna().unique()))
    copies = f", every one of {N_COPIES} copies of these heads with shuffled weights" * isinstance(model, Transformer)
    sets = labelled.sets.to_dict("records")
    together = [set_clause(row, worded(row["label"], words)) for row in sets if isinstance(row["label"], str)]
    blocks: list[doc.Block] = [TEXTS["labels"], *([doc.Bullets([f"{each}." for each in together])] if together else [])]
    single = rows.loc[~rows["label"].str.startswith(plain_words.SET)]
    for evidence, title in _EVIDENCE.items():
        group = _with_names(single.loc[single["evidence"] == evidence], kinds(rows) > 1).to_dict("records")
        has_rules = any(SCHEMAS["labels"].columns["rule"].show(row) for row in group)
        table = SCHEMAS["labels"].page(group, "head label gain effect q n" + " rule" * has_rules)
        strongest = evidence == "both"
        fold = doc.Details(f"{title}: {counted(len(group), 'label')}", [table], open=strongest, printed=strongest)
        blocks.append(fold if group else f"{title}: no head.")
    method: list[doc.Block] = [
        TEXTS["labels method"].format(copies=copies, readout=readouts or "the model’s own output")
    ]
    method += [table] if (table := joint_effects(rows)) else []
    method += [SCHEMAS["sets"].page(sets, _SETS, TEXTS["sets"])] if sets else []
    if labelled.nameless:
        method.append(TEXTS["nameless"].format(counted(labelled.nameless, "candidate")))
    screened = {name: {**asdict(each), "most_missed": each.most_missed} for name, each in labelled.screened.items()}
    for behaviour, counts in screened.items():
        scope = "all measured" if counts["measured"] == counts["cells"] else "screened"
        numbers = {name: number(each) for name, each in counts.items()}
        method.append(TEXTS[scope].format(behaviour=behaviour.replace("-", " ").capitalize(), **numbers))
    by_reason = groupby(sorted(labelled.left_out, key=labelled.left_out.__getitem__), labelled.left_out.__getitem__)
    blocks += [doc.caveat(f"Not labelled ({listed([*names])}): {why}.") for why, names in by_reason]
    blocks.append(doc.Details("How labels are made, and heads that are needed together", method))
    line = label_counts(single)
    return Part(
        sections=[doc.Section("Labels", blocks, "labels")],
        short=[(doc.link("Labels", "labels"), line)],
        definitions=[*WORDS["label_terms"].items()],
        tables={"labels": rows, "evidence": labelled.evidence, "sets": labelled.sets},
        facts={"labels_left_out": labelled.left_out, "effects_screened": screened},
    )


def why(labelled: Labelled, model: Model, results: Sequence[Result], run: Run) -> Part:
    """Who wrote the keys that labelled heads find, and who reads heads that carry an answer."""
    options: dict[str, Any] = {"behaviours": [each.behaviour for each in results], "seed": run.seed}
    corpora = {each.behaviour.name: each.corpus for each in results if each.collected}
    effects = pd.concat([each.tested.table for each in results], ignore_index=True)
    blocks, tables, left_out = list[doc.Block](), dict[str, pd.DataFrame](), dict[str, str]()
    measures = {"writers": partial(key_writers.measure, model, labelled.labels, corpora)}
    measures["readers"] = partial(head_readers.measure, model, labelled.labels, effects)
    for name, measure in measures.items():
        try:
            table = tables[name] = measure(progress=partial(run.say, WHY[name]), **options)
        except InputError as error:
            left_out[name] = str(error)
            blocks.append(doc.caveat(f"{WHY[name].capitalize()} was not tested: {error}."))
            continue
        rows = table.loc[table["kind"] == "family"] if name == "writers" else strongest_readers(table)
        if len(rows):
            blocks.append(SCHEMAS[name].page(rows.to_dict("records"), _WHY[name], TEXTS[name]))
    sections = [doc.Section(TEXTS["why"], [doc.Details("The numbers", blocks)], "why")] if blocks else []
    return Part(sections, tables=tables, facts={"why_left_out": left_out})


def joint_effects(labels: pd.DataFrame) -> doc.Table | None:
    """Effects of labels that several heads share: of the head missed most, of all heads, and of all but one."""
    alone = ~labels["label"].str.startswith(plain_words.SET)
    shared = labels.loc[alone & (labels["heads"] > 1) & labels["all_effect"].notna()].sort_values(
        "effect", ascending=False
    )
    if shared.empty:
        return None
    key = [*SCHEMAS["together"].key]
    shared = shared.assign(least_rest=shared.groupby(key)["rest_effect"].transform("min"))
    largest = _with_names(shared, kinds(labels) > 1).drop_duplicates(key).sort_values("all_effect", ascending=False)
    columns = "label heads effect all rest others these"
    return SCHEMAS["together"].page(largest.to_dict("records"), columns, TEXTS["together"])


def _with_names(rows: pd.DataFrame, by_kind: bool) -> pd.DataFrame:
    return rows.assign(name=[Place.from_row(row).named(prefix=by_kind) for row in rows.to_dict("records")])


def label_counts(labels: pd.DataFrame) -> str:
    """The number of labels by kind of evidence, in a sentence."""
    counts = {evidence: labels["evidence"].tolist().count(evidence) for evidence in _EVIDENCE}
    heads = len(labels[HEAD].drop_duplicates())
    if not heads:
        return TEXTS["no labels"]
    carry = f"{counted(heads, 'head')} {'carries' if heads == 1 else 'carry'}"
    numbers = {**{name: number(count) for name, count in counts.items()}, "both": counted(counts["both"], "label")}
    return TEXTS["labels short"].format(carry=carry, **numbers)


_Content = tuple[list[doc.Block], Text, Mapping[str, int], pd.DataFrame]  # blocks, summary line, counts, rows
_Reading = tuple[str, str, Callable[[], _Content]]  # titles of its section and counts; the function that measures it


def _by_text(readings: Iterable[_Reading], table: str, id: str, failed: str, counts_title: str) -> Part:
    sections, short, counts, tables = [], [], {}, []
    for index, (title, name, measure) in enumerate(readings):
        try:
            blocks, text, counts[name], rows = measure()
        except InputError as error:
            blocks = [doc.caveat(f"{failed}: {error}.")]
        else:
            short.append((doc.link(title, f"{id}-{index}"), text))
            tables.append(rows)
        sections.append(doc.Section(title, blocks, f"{id}-{index}"))
    if not tables:
        return Part(sections)
    counted = [doc.Section(counts_title, doc.counts_table([*counts.values()], [*counts]))]
    return Part(sections, short, counted, tables={table: pd.concat(tables, ignore_index=True)})


@contextmanager
def explanations(model: Model, results: Sequence[Result], run: Run) -> Iterator[Callable[[], Part]]:
    """What explains attention: each text with word measures is fitted once for each kind of self-attention.

    Fitting runs in the background; the yielded function waits for it.
    """
    by_kind = len(Heads.kinds_of(model)) > 1
    usable = [each for each in results if each.behaviour.needs and each.kind.attention == "self" and not each.left_out]
    usable = [*{(each.corpus.name, each.kind): each for each in usable}.values()]
    stretches = [sample(each.corpus, causal=each.kind.causal, seed=run.seed) for each in usable]
    texts = [(each.corpus.name, each.kind, part) for each, part in zip(usable, stretches, strict=True)]
    with lots.begun(partial(fit_sample, model, run.seed), texts) as fitted:
        readings: list[_Reading] = []
        for index, (result, explained) in enumerate(zip(usable, fitted, strict=True)):
            scope = ", ".join([short_name(result.corpus.name), *([result.kind.title] if by_kind else [])])
            figure = f"{result.kind.called}-explained-{index}" if by_kind else f"explained-{index}"
            title = f"Which simple rules explain attention on {scope}?"
            readings.append((title, scope, partial(_explained, explained, figure)))

        def finish() -> Part:
            part = _by_text(readings, "explained", "explained", "Not fitted", "For what explains attention")
            return replace(part, definitions=[*WORDS["explained_terms"].items()] if part.tables else ())

        yield finish


def _explained(fitted: Callable[[], Explained], figure: str) -> _Content:
    explained = fitted()
    table, groups = explained.table, by_group(explained.table)
    documents, n = table[["documents", "n"]].iloc[0]
    note = f"Reported on {counted(int(n), 'word')} of {counted(int(documents), 'group')} of documents."
    blocks: list[doc.Block] = [
        f"{TEXTS['explained method']} {note}",
        doc.drawing(figure, figures.explained_bars(groups)),
    ]
    return blocks, _explained_line(table), explained.counts, table


def by_group(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The share of each head's attention that groups of rules explain, layer x head; sinks first, uniform last."""
    rows = table.loc[(table["kind"] == "mixture") & (table["part"] != ALL_GROUPS)]
    group = rows["group"].where(~rows["part"].isin([FIRST, END]), SINKS)
    sums = rows.assign(group=group).groupby(["group", *_CELL])["share"].sum(min_count=1).unstack("head")
    return {name: sums.loc[name] for name in (SINKS, *GROUPS, UNIFORM) if name in sums.index.get_level_values(0)}


def _explained_line(table: pd.DataFrame) -> Text:
    shapley = table.loc[table["kind"] == "shapley"].pivot(index=_CELL, columns="part", values="share")
    leaders = shapley.dropna().idxmax(axis=1).value_counts()
    counts = ", ".join(f"{group} {number(int(leaders[group]))}" for group in GROUPS if group in leaders)
    unique = table.loc[(table["kind"] == "unique") & (table["part"] == GROUPS[-1])]
    beyond = unique.loc[(unique["share"] >= NOTABLE) & (unique["ci_low"] > 0)].nlargest(_RULES, "share")
    heads = [f"{head_name(row['layer'], row['head'])} ({percent(row['share'])})" for row in beyond.to_dict("records")]
    first = f"Rules that explain most, by number of heads: {counts}." if counts else "No head is explained."
    adds = f"in {', '.join(heads)}" if heads else "in no head"
    return f"{first} Relation and reference add at least {percent(NOTABLE)} beyond all simpler rules {adds}."


def scores(model: Model, corpora: Sequence[Corpus], run: Run) -> Part:
    """Scores of corpora whose own paper defines them, for every kind of self-attention."""
    kinds = [kind for kind in Heads.kinds_of(model) if kind.attention == "self"]
    readings: list[_Reading] = []
    for corpus, kind in product((corpus for corpus in corpora if corpus.kind in PAPERS), kinds):
        title = f"{PAPERS[corpus.kind]['title']} as its paper scores it" + f", {kind.title}" * (len(kinds) > 1)
        readings.append((title, title, partial(_scored, model, corpus, kind, run)))
    return _by_text(readings, "coreference_scores", "scores", "Not scored", "For the scores of papers")


def _scored(model: Model, corpus: Corpus, kind: Heads, run: Run) -> _Content:
    say = partial(run.say, "scores of papers")
    scores = coreference_scores(model, corpus, heads=kind, seed=run.seed, progress=say)
    reported = scores.table.loc[(scores.table["half"] == REPORTING) & scores.table["chosen"]]
    rows: list[dict[str, Any]] = []
    for _, pair in reported.groupby(["score", "condition"], sort=False):  # the chosen head, then the chosen rule
        head, rule = pair.to_dict("records")
        score = ", ".join(filter(None, (head["score"], head["condition"])))
        rows.append({**head, "score": score, "rule": rule["resolver"], "rule_value": rule["value"]})
    measured = f"Measured on {corpus.title}, {counted(scores.clusters, 'cluster')} of items."
    table = SCHEMAS["coreference_scores"].page(rows, _SCORES, TEXTS["papers caption"])
    value, rival = percent(rows[0]["value"]), percent(rows[0]["rule_value"])
    line = [doc.bold(rows[0]["resolver"]), f" has {rows[0]['score']} {value}, the rule “{rows[0]['rule']}” {rival}."]
    return [f"{WORDS['papers'][corpus.kind]} {measured}", table], line, scores.counts, scores.table
