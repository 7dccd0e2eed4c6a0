"""What do this model's heads do? Runs the analyses of the full report and puts their results on one page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import pandas as pd

from analyses import coreference, experiments, probe
from analyses.behaviours import OURS, select
from analyses.corpora import Corpus
from analyses.corpora.in_memory import of_ids, random_ids
from analyses.execution.progress import FIRST_PAGE, WRITING
from analyses.headlines.fact_examples import fact_examples
from analyses.headlines.facts import Fact, ranked
from analyses.headlines.facts import facts as facts_of
from analyses.headlines.head_cards import overview
from analyses.headlines.sentences import verdicts
from analyses.labels import Labelled, label
from analyses.measures.definitions import Behaviour, Measure
from analyses.over_training.training_runs import Run as TrainingRun
from analyses.over_training.training_runs import forming, when_formed
from analyses.own_measures import as_behaviours
from analyses.page import sections as doc
from analyses.page.sections import Page, Part, Section
from analyses.probe.probe_runs import CHOOSING, FITTING
from analyses.reading.inputs import TokenIds, by_ids
from analyses.report import behaviour_sections, report_parts
from analyses.report.behaviour_sections import Result
from analyses.report.scaffold import UNNAMED, Record, Run, short_name, write
from analyses.report.task_circuits import CIRCUIT_STAGES, circuits
from analyses.viewer import Passage, Viewer
from analyses.viewer.passages import choose_passages, read_texts
from analyses.viewer.training_steps import TrainingSteps, training_steps
from analyses.wording import plain_words
from analyses.wording.formats import counted
from analyses.wording.head_names import Place
from analyses.wording.plain_words import TEXTS
from interp import InputError, Model

_RELATIONS = "; ".join(f"{name} {' to '.join(ends)}" for name, ends in plain_words.RELATIONS.items())
_TERMS = {name: meaning.format(relations=_RELATIONS) for name, meaning in plain_words.WORDS["terms"].items()}
_PARTS = "why", "circuits", "scores", "explanations", "probes", "experiments"  # below the behaviours on the page
_TARGETS = {True: "its own targets", False: "each text as its own target"}  # what a decoder with an encoder reads
_MEANINGS = {column.title: column.meaning for column in doc.SCHEMAS["heads"].columns.values() if column.meaning}
DEFINITIONS = {"finding": _TERMS.pop("finding"), **_MEANINGS, **_TERMS}


def build(
    model: Model,
    corpora: Sequence[Corpus],
    out: str | Path,
    *,
    behaviours: Sequence[str | Behaviour | Measure] | None = None,
    pairs: int | None = None,
    labels: bool = True,
    exact: bool = False,
    probes: bool = True,
    experiments: bool | None = None,
    texts: Sequence[str] = (),
    training: TrainingRun | None = None,
    see: Sequence[str] = (),
    name: str = UNNAMED,
    **record: Unpack[Record],
) -> Path:
    """Write the full report: measure, test, label, probe and draw.

    Raises an `InputError` for an unknown behaviour, a text that the model cannot read, an empty or damaged corpus, a
    training run of another model, or a model of which nothing can be measured.

    Args:
        model: a transformer with a tokenizer.
        corpora: annotated texts; the first that annotates a behaviour serves it, else generated tales do.
        out: the output directory.
        behaviours: names of ours (by default all), and a user's own behaviours and measures.
        pairs: minimal pairs of each causal test; by default 200, and 40 for copying.
        labels: whether to label heads (`analyses.labels`).
        exact: whether to measure every effect of hiding keys, not only those that can change a label.
        probes: whether to probe every layer (`analyses.probe`).
        experiments: whether to run the articles' small experiments (`analyses.experiments`); by default if
            `behaviours` is not given.
        texts: passages for the viewer; by default beginnings of texts that were read.
        training: the run that trained the model (`analyses.over_training.training_runs.read_run`), which shows when
            heads formed.
        see: pages of other models to link to, below `out`: "default/report.html".
        name: the model's, for the record.
        record: the options of all commands (`analyses.report.builders`).
    """

    others = [("See also", doc.joined([*map(doc.page_link, see)]))] if see else []

    def measure(run: Run) -> Page:
        group, reader, sources = select(as_behaviours(behaviours) if behaviours else None), model, corpora
        if model.tokenizer is None:  # then we measure only what needs no words, on texts of ids
            rest = {name: behaviour for name, behaviour in group.items() if not behaviour.needs}
            if not rest:
                raise InputError(f"this model has no tokenizer, and {', '.join(group)} is about words: give it one")
            sources = [each for each in corpora if of_ids(model, each)] or [random_ids(model, run.seed)]
            group, reader = rest, by_ids(model)
        passages = read_texts(model, texts)  # before the long work: a text may be too long
        parts = {} if training is None else {"training": _training(training, model)}
        with_experiments = behaviours is None if experiments is None else experiments
        run.say.plan(_stages(group, labels=labels, probes=probes, experimenting=with_experiments))
        measured = behaviour_sections.measure(run, reader, group, sources, pairs)
        if all(result.left_out for result in measured):
            reasons = dict.fromkeys(str(result.left_out) for result in measured)
            names = {why: [each.behaviour.name for each in measured if each.left_out == why] for why in reasons}
            raise InputError("; ".join(f"{', '.join(group)}: {why}" for why, group in names.items()))
        run.say("comparing with rules", 0)
        results = behaviour_sections.with_rules(behaviour_sections.corrected(measured))
        complete = [result for result in results if not result.left_out]
        if not passages:
            measures = [measure for behaviour in group.values() for measure in behaviour.measures]
            passages = choose_passages(model, complete[0].corpus, measures)
        steps = training_steps(training.folder, passages[0], model) if training and passages else None
        page = partial(_page, run, reader, sources, group, pairs, results, passages, steps, others)
        to_come = (labels, "labels and the effects behind them"), (probes, "what probes read")
        if unfinished := ", ".join(name for wanted, name in (*to_come, (with_experiments, "experiments")) if wanted):
            run.show(replace(page(parts), unfinished=unfinished))
        with report_parts.explanations(reader, results, run) as explanations:
            labelled = _labelled(run, reader, group, results, exact=exact) if labels else None
            tables = behaviour_sections.tables(results)
            if labelled:
                listed = report_parts.labels(labelled, reader, group)
                parts |= {"labels": listed, "why": report_parts.why(labelled, reader, results, run)}
                parts["circuits"], tables = circuits(model, results, run), tables | dict(listed.tables)
            facts = {place: ranked(head_facts) for place, head_facts in facts_of(tables, group).items()}
            run.say("reading sentences", 0)
            texts_of = {each.behaviour.name: each.corpus for each in complete}
            parts["examples"] = Part(
                tables={"examples": fact_examples(model, texts_of, facts, group, tables, seed=run.seed)}
            )
            if coreference.BEHAVIOUR.name in group:
                parts["scores"] = report_parts.scores(model, sources, run)
            if probes:
                parts["probes"] = _probes(model, sources, run)
            run.say("what explains attention", 0)
            parts["explanations"] = explanations()
        if with_experiments:
            parts["experiments"] = _experiments(run, model)
        return page(parts, facts)

    return write(out, measure, {name: model}, **record)


def _stages(names: Collection[str], *, labels: bool, probes: bool, experimenting: bool) -> list[str]:
    """The stages after measuring, in order; some may turn out to be unnecessary."""
    labelling = ["reading with untrained heads", *(f"{name}: knocking out" for name in names)]
    labelling += ["hiding keys from all heads of a label", *(f"{name}: looking for sets" for name in names)]
    labelling += [*report_parts.WHY.values(), *CIRCUIT_STAGES]
    stages = ["comparing with rules", FIRST_PAGE, *labelling * labels, "reading sentences", "scores of papers"]
    stages += [*[CHOOSING, FITTING] * probes, "what explains attention"]
    return [*stages, *[experiments.STAGE] * experimenting, WRITING]


def _labelled(
    run: Run, model: Model, behaviours: Mapping[str, Behaviour], results: Sequence[Result], *, exact: bool
) -> Labelled:
    corpora = {result.behaviour.name: result.corpus for result in results if result.collected}
    effects = pd.concat([result.tested.table for result in results], ignore_index=True)
    options: dict[str, Any] = {"exact": exact, "seed": run.seed, "progress": run.say}
    collected = [result.collected for result in results if result.collected]
    return label(model, corpora, behaviours=[*behaviours.values()], collected=collected, effects=effects, **options)


# fewer items than `interp probes` trains on, and as many to test on
_PROBED: Mapping[str, Any] = {"words": 8_000, "edges": 3_000, "test": 1.0}


def _probes(model: Model, corpora: Sequence[Corpus], run: Run) -> Part:
    try:
        part = probe.section(model, corpora, seed=run.seed, progress=run.say, **_PROBED)
    except InputError as error:
        return Part(counted=[doc.caveat(f"No probes: {error}.")], facts={"probes": {"left_out": str(error)}})
    lines: list[Any] = [[name, ": ", text] for name, text in part.short]
    folds = [doc.Details("Layer by layer", each.blocks) for each in part.sections]
    section = Section("Probes of every layer", [doc.Bullets(lines), doc.remark(TEXTS["probes"]), *folds], "probes")
    counts = [Section("By probes", part.counted)]
    return replace(part, sections=[section], short=part.short[-1:], counted=counts, facts={"probes": part.facts})


def _experiments(run: Run, model: Model) -> Part:
    part = experiments.section(model, seed=run.seed, progress=run.say)
    titles: Any = [link for link, _ in part.short]
    links = doc.joined(titles) or ["None can run on this model."]
    folds = [doc.Details("One by one", [*part.sections, *part.counted])]
    section = Section("Experiments", [[TEXTS["experiments"], " ", *links], *folds], "experiments")
    return replace(part, sections=[section], short=(), counted=())


def _training(training: TrainingRun, model: Model) -> Part:
    curves = forming(training, model)
    folder = training.folder.resolve()
    near = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder  # a page may be published
    record = {"directory": str(near), "sha256": training.digest, "heads": training.source}
    record |= {"looks": training.looks, "left_out": dict(training.left_out)}
    line = [("training", (doc.code(str(near)), f": {counted(training.looks, 'look')} at heads, {training.source}"))]
    tables = {"forming": curves, "when_formed": when_formed(curves)}
    return Part(definitions=line, tables=tables, facts={"training": record})


def _page(
    run: Run,
    model: Model,
    corpora: Sequence[Corpus],
    behaviours: Mapping[str, Behaviour],
    pairs: int | None,
    results: Sequence[Result],
    passages: Sequence[Passage],
    steps: TrainingSteps | None,
    others: doc.Terms,
    parts: Mapping[str, Part],
    facts: Mapping[Place, Sequence[Fact]] = MappingProxyType({}),
) -> Page:
    """The page as known so far; `facts` are every head's, ranked, once everything behind them is measured."""
    by_kind = len(model.config.stacks) > 1
    training, labels, *rest = (parts.get(name, Part()) for name in ("training", "labels", *_PARTS))
    sections = [behaviour_sections.section(each, by_kind, labels.tables.get("evidence")) for each in results]
    tables = behaviour_sections.tables(results)
    for part in parts.values():
        tables |= part.tables
    name = short_name(run.models[0]["name"])
    line, first = overview(tables, behaviours, passages, facts, f"{name[:1].upper()}{name[1:]}", steps)
    viewers = [block for fold in first.below if isinstance(fold, doc.Details) for block in fold.blocks]
    if patterns := [row for each in viewers if isinstance(each, Viewer) for row in each.kept]:
        tables["patterns"] = pd.DataFrame(patterns)
    titles = [each.name(by_kind) for each in results]
    counts = doc.counts_table([each.counts for each in results], titles, ["unknown tokens"])
    ids = [doc.caveat(TEXTS["by ids"])] if isinstance(model.tokenizer, TokenIds) else []
    sizes = sorted({task["n"] for result in results for task in result.tested.tasks if task.get("n")})
    n_pairs = " to ".join(map(str, dict.fromkeys([*sizes[:1], *sizes[-1:]])))
    short = doc.Definitions([*(line for part in (*sections, labels, *rest) for line in part.short), *others])
    coverage = [*counts, *(block for part in rest for block in part.counted)]
    custom = (behaviour for name, behaviour in behaviours.items() if behaviour is not OURS.get(name))
    own_measures = [measure for behaviour in custom for measure in behaviour.measures]
    scored = tables.get("coreference_scores", pd.DataFrame({"corpus": []}))["corpus"]
    return Page(
        title=line,
        overview=[first],
        summary=[short, doc.remark(TEXTS["kept apart"].format(also="labels and " if labels.sections else ""))],
        sections=[
            *(section for part in (labels, *sections, *rest) for section in part.sections),
            Section("What was read and what was left out", [*ids, doc.Details("Counts by analysis", coverage)]),
        ],
        corpora=_sources(corpora, results, {*scored}),
        method=[("minimal pairs", f"{n_pairs} a task" if n_pairs else "none"), *training.definitions],
        definitions=[
            *DEFINITIONS.items(),
            *((each.name, f"A measure of your own: {each.title or each.name}.") for each in own_measures),
            *(term for part in (labels, *rest) for term in part.definitions),
        ],
        tables=tables,
        facts={
            "headline": f"{line}. {verdicts(first.sentences)}",
            "first_head": next((card.id for card in first.cards if card.facts), None),
            "sentences": {each.behaviour: each.text for each in first.sentences},
            "pairs": pairs,
            **_left_out(by_kind, results),
            "labels_left_out": None,
            "probes": {"left_out": None},
            **{name: fact for part in parts.values() for name, fact in part.facts.items()},
        },
    )


def _sources(corpora: Sequence[Corpus], results: Sequence[Result], scored: Collection[str]) -> list[doc.Source]:
    sources = []
    for name, corpus in {each.name: each for each in (*corpora, *(result.corpus for result in results))}.items():
        readable = (each.behaviour.name for each in results if each.corpus.name == name and each.readable)
        measured = [*dict.fromkeys(readable), *["the score of its paper"] * (name in scored)]
        purpose = f"for {', '.join(measured)}" if measured else doc.UNUSED
        sources.append(doc.Source(corpus, purpose, {"measured": measured}))
    return sources


def _left_out(by_kind: bool, results: Sequence[Result]) -> dict[str, Any]:
    named = {result.behaviour.name + (f": {result.kind.title}" if by_kind else ""): result for result in results}
    paired = {result.corpus.name: "targets" in result.corpus.annotates for result in results}
    return {
        "on_generated_text": list(dict.fromkeys(result.behaviour.name for result in results if result.generated)),
        "left_out": {name: result.counts for name, result in named.items()},
        "not_measured": {name: each.left_out for name, each in named.items() if each.left_out},
        "measures_without_items": {name: each.measured.absent for name, each in named.items() if each.measured.absent},
        "targets": {name: _TARGETS[known] for name, known in paired.items()} if by_kind else None,
        "causal_test_left_out": {each.behaviour.name: why for each in results if (why := each.tested.left_out)},
    }
