"""What do this model's heads do? Runs the analyses of the full report, and puts what they say on one page."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analyses import coreference, probe
from analyses.behaviours import OURS, chosen
from analyses.corpora import Corpus
from analyses.execution.side_by_side import meanwhile
from analyses.experiments import experiments_section
from analyses.headlines import ranking
from analyses.headlines.example_sentences import example_sentences
from analyses.headlines.facts import Fact
from analyses.headlines.facts import facts as facts_of
from analyses.headlines.head_cards import overview
from analyses.labels import Labelled, label
from analyses.measures import Behaviour, Measure
from analyses.over_training.training_runs import Run as TrainingRun
from analyses.over_training.when_formed import forming, when_formed
from analyses.own_measures import as_behaviours
from analyses.page.sections import (
    UNUSED,
    Block,
    Definitions,
    Page,
    Part,
    Section,
    Source,
    caveat,
    code,
    counts_table,
    joined,
    link,
    remark,
)
from analyses.reading.token_ids import TokenIds, by_ids, of_ids, random_ids
from analyses.report import (
    behaviour_results,
    behaviour_sections,
    coreference_section,
    explanation_section,
    label_section,
)
from analyses.report.behaviour_sections import Result
from analyses.report.illustrations import effect_figures, illustrate
from analyses.report.scaffold import Run, Stages, short_name
from analyses.tables.head_tables import Heads
from analyses.tables.schema import meanings
from analyses.viewer import Passage, corpus_passages
from analyses.wording import plain_words
from analyses.wording.formats import counted
from analyses.wording.head_names import Place
from analyses.wording.plain_words import TEXTS
from interp import InputError, Model

_COREFERENCE = coreference.BEHAVIOUR.name
_UNKNOWN = ["unknown tokens"]  # are counted though there be none
_RELATIONS = "; ".join(f"{name} {' to '.join(ends)}" for name, ends in plain_words.RELATIONS.items())
_TERMS = {name: meaning.format(relations=_RELATIONS) for name, meaning in plain_words.WORDS["terms"].items()}
DEFINITIONS = {"finding": _TERMS.pop("finding"), **meanings("heads"), **_TERMS}


@dataclass(frozen=True)
class Found:
    """What is known so far: behaviours first, the rest as it is done.

    results    every behaviour in every kind of attention
    passages   texts to look at, word by word
    facts      every head's, the first to be told first, as soon as all that they rest on is measured
    beside     when heads formed, and sentences that they look around in
    parts      labels, the papers' scores, what explains attention, and what probes read, as far as they are done
    asked      the experiments
    """

    results: Sequence[Result]
    passages: Sequence[Passage]
    facts: Mapping[Place, Sequence[Fact]] = field(default_factory=dict)
    beside: Part = field(default_factory=Part)
    parts: Mapping[str, Part] = field(default_factory=dict)
    asked: Part = field(default_factory=Part)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table, by name."""
        more = (part.tables for part in (self.beside, *self.parts.values(), self.asked))
        return behaviour_results.tables(self.results) | {name: each for some in more for name, each in some.items()}


def find(
    run: Run,
    model: Model,
    corpora: Sequence[Corpus],
    *,
    behaviours: Sequence[str | Behaviour | Measure] | None,
    pairs: int | None,
    labels: bool,
    exact: bool,
    probes: bool,
    experiments: bool,
    texts: Sequence[str] = (),
    training: TrainingRun | None = None,
) -> Page:
    """Measure, test, label, probe and draw; arguments, and what is raised, as of `report.build`."""
    known, given = chosen(as_behaviours(behaviours) if behaviours else None), model
    if model.tokenizer is None:
        known, model, corpora = _without_words(known, model, corpora, run.seed)
    passages = corpus_passages.read_texts(given, texts)  # before the long work: a text may be too long
    beside = Part() if training is None else _trained(training, given)
    measured = behaviour_results.measure(run, model, known, corpora, pairs)
    if all(result.left_out for result in measured):
        raise InputError(_reasons(measured))
    results = _drawn(run, model, behaviour_results.corrected(measured))
    if not passages:
        measures = [measure for behaviour in known.values() for measure in behaviour.measures]
        passages = corpus_passages.choose(given, next(each.corpus for each in results if not each.left_out), measures)
    found = Found(results, passages, beside=beside)
    page = partial(_page, run, model, corpora, known, pairs)
    rest = {"labels and the effects behind them": labels, "what probes read": probes, "experiments": experiments}
    if any(rest.values()):
        run.show(replace(page(found), unfinished=", ".join(name for name, asked in rest.items() if asked)))
    meant: dict[str, Callable[[Run], Part]] = {
        **({"scores": partial(coreference_section.section, given, corpora)} if _COREFERENCE in known else {}),
        "explanations": partial(explanation_section.section, model, results),
        **({"probes": partial(_probes, given, corpora)} if probes else {}),
    }
    parts: dict[str, Part] = {}
    with meanwhile([partial(_timed, part, run) for part in meant.values()], crowded=True) as ended:
        if labels:
            labelled = _labelled(run, model, known, results, exact=exact)
            evidence = {"labels": labelled.labels, "evidence": labelled.evidence}
            facts = _facts({**behaviour_results.tables(results), **evidence}, known)
            parts["labels"] = label_section.section(labelled, model, known, facts)
        else:
            facts = _facts(behaviour_results.tables(results), known)
        run.say("reading sentences", 0)
        beside = replace(beside, tables={**beside.tables, **_sentences(run, given, known, results, facts)})
        run.say(f"the rest of {', '.join(meant)}", 0)
        for name, (part, seconds) in zip(meant, ended(), strict=True):
            parts[name] = part
            run.say.add(seconds)
    asked = experiments_section.section(given, seed=run.seed, progress=run.say) if experiments else Part()
    return page(replace(found, facts=facts, beside=beside, parts=parts, asked=asked))


def _without_words(
    behaviours: Mapping[str, Behaviour], model: Model, corpora: Sequence[Corpus], seed: int
) -> tuple[dict[str, Behaviour], Model, list[Corpus]]:
    """What can be asked of a model without a tokenizer, the model reading ids, and texts of ids that it can read.

    Raises:
        InputError: nothing can.
    """
    rest = {name: behaviour for name, behaviour in behaviours.items() if not behaviour.needs}
    if not rest:
        raise InputError(f"this model has no tokenizer, and {', '.join(behaviours)} is about words: give it one")
    return rest, by_ids(model), [each for each in corpora if of_ids(model, each)] or [random_ids(model, seed)]


def _reasons(results: Sequence[Result]) -> str:
    """Why nothing was measured, each reason once."""
    reasons = dict.fromkeys(result.left_out for result in results)
    of = {why: ", ".join(result.behaviour.name for result in results if result.left_out == why) for why in reasons}
    return "; ".join(f"{behaviours}: {why}" for why, behaviours in of.items())


def _timed(part: Callable[[Run], Part], run: Run) -> tuple[Part, dict[str, float]]:
    """A part of the report, and how long its own stages took."""
    stages = Stages(lambda stage, count: None)
    return part(replace(run, say=stages)), stages.seconds()


def _labelled(
    run: Run, model: Model, behaviours: Mapping[str, Behaviour], results: Sequence[Result], *, exact: bool
) -> Labelled:
    """The labels of all behaviours that were measured, each on its corpus."""
    corpora = {result.behaviour.name: result.corpus for result in results if result.collected}
    effects = pd.concat([result.tested.table for result in results], ignore_index=True)
    how: dict[str, Any] = {"exact": exact, "seed": run.seed, "shards": run.shards, "progress": run.say}
    collected = [result.collected for result in results if result.collected]
    return label(model, corpora, behaviours=[*behaviours.values()], collected=collected, effects=effects, **how)


def _facts(tables: Mapping[str, pd.DataFrame], behaviours: Mapping[str, Behaviour]) -> dict[Place, list[Fact]]:
    """Every head's facts, the first to be told first."""
    return {place: ranking.ranked(several) for place, several in facts_of(tables, behaviours).items()}


def _probes(model: Model, corpora: Sequence[Corpus], run: Run) -> Part:
    """What probes read from every layer, or why they could not."""
    try:
        part = probe.section(model, corpora, seed=run.seed, progress=run.say)
        return replace(part, counted=[Section("By probes", part.counted)])
    except InputError as error:
        return Part(counted=[caveat(f"No probes: {error}.")], facts={"left_out": str(error)})


def _trained(training: TrainingRun, model: Model) -> Part:
    """When heads formed, by the run that trained the model."""
    curves = forming(training, model)
    folder = training.folder.resolve()
    near = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder  # a page may be published
    about = {"directory": str(near), "sha256": training.digest, "heads": training.source}
    about |= {"looks": training.looks, "left_out": dict(training.left_out)}
    return Part(tables={"forming": curves, "when_formed": when_formed(curves)}, facts={"training": about})


def _sentences(
    run: Run,
    model: Model,
    behaviours: Mapping[str, Behaviour],
    results: Sequence[Result],
    facts: Mapping[Place, Sequence[Fact]],
) -> dict[str, pd.DataFrame]:
    """Where each head looks in sentences, at words of its label."""
    kind = Heads.every(model)[0]
    corpora = {each.behaviour.name: each.corpus for each in results if not each.left_out and each.kind == kind}
    read = example_sentences(model, corpora, facts, behaviours, seed=run.seed)
    return {"example_sentences": read} if len(read) else {}


def _drawn(run: Run, model: Model, results: Sequence[Result]) -> list[Result]:
    """The results with their figures. Meanwhile other processes compare heads with rules."""
    compared = [result.measured.followed for result in results if behaviour_results.has_rules(result)]
    with meanwhile(compared) as ended:
        drawn = [_draw(run, model, result) for result in results]
        run.say("comparing with rules", 0)
        rules = ended()
    return behaviour_results.with_rules(drawn, rules)


def _draw(run: Run, model: Model, result: Result) -> Result:
    if result.left_out:
        return result
    run.say(f"{result.behaviour.name}: drawing", 0)
    drawn = illustrate(model, result.behaviour, result.corpus, heads=result.measured.heads, seed=run.seed)
    questions = {task["task"]: task.get("question") for task in result.tested.tasks}
    caused = effect_figures(result.behaviour.name, result.tested.table, questions)
    before = f"{result.kind.called}-" if len(model.config.stacks) > 1 else ""
    return replace(
        result,
        drawn=[replace(each, name=before + each.name) for each in drawn],
        caused={task: replace(each.drawn(), name=before + each.name) for task, each in caused.items()},
    )


# The page.


def _page(
    run: Run,
    model: Model,
    corpora: Sequence[Corpus],
    behaviours: Mapping[str, Behaviour],
    pairs: int | None,
    found: Found,
) -> Page:
    several, results, beside, asked = len(model.config.stacks) > 1, found.results, found.beside, found.asked
    parts = {name: found.parts.get(name, Part()) for name in ("labels", "scores", "explanations", "probes")}
    labels, *rest = parts.values()
    evidence = labels.tables.get("evidence")
    told = [behaviour_sections.section(result, several=several, evidence=evidence) for result in results]
    apart = f"Apart from {'labels and ' if labels.sections else ''}minimal pairs, heads"
    chosen = "are chosen and reported on the same text, so the best of them look a little better"
    short = [line for part in (*told, *parts.values()) for line in part.short]
    small = [TEXTS["experiments"], *asked.sections, *asked.counted] if asked.facts else []
    tables = found.tables()
    line, first, said = overview(tables, behaviours, found.passages, found.facts)
    counts = counts_table([result.counts for result in results], [each.name(several) for each in results], _UNKNOWN)
    by_ids = [caveat(TEXTS["by ids"])] if isinstance(model.tokenizer, TokenIds) else []
    counted = [block for name in ("probes", "scores", "explanations") for block in parts[name].counted]
    return Page(
        title=f"{line}: {short_name(run.models[0]['name'])}",
        overview=[first],
        summary=[
            Definitions([*short, *([_experiments_short(asked)] if small else [])]),
            remark(f"{TEXTS['kept apart']} {apart} {chosen} than they are."),
        ],
        sections=[
            *(section for part in (labels, *told, *rest) for section in part.sections),
            *([Section("Experiments", small, "experiments")] if small else []),
            Section("What was read and what was left out", [*by_ids, *counts, *counted]),
        ],
        corpora=_sources(corpora, results, {*parts["scores"].facts.get("scored", ())}),
        made=[("minimal pairs", _pairs_read(results)), *_training_lines(beside)],
        definitions=[
            *DEFINITIONS.items(),
            *_own_terms(behaviours),
            *(term for part in parts.values() for term in part.definitions),
        ],
        tables=tables,
        facts={
            "headline": line,
            "sentences": {each.behaviour: each.text for each in said},
            "pairs": pairs,
            **_left_out(model, results),
            **beside.facts,
            "labels_left_out": None,
            **labels.facts,
            "probes": parts["probes"].facts or {"left_out": None},
            **asked.facts,
        },
    )


def _pairs_read(results: Sequence[Result]) -> str:
    """How many minimal pairs tasks have."""
    read = sorted({task["n"] for result in results for task in result.tested.tasks if task.get("n")})
    return f"{' to '.join(map(str, read[:: max(1, len(read) - 1)]))} a task" if read else "none"


def _own_terms(behaviours: Mapping[str, Behaviour]) -> list[tuple[str, str]]:
    """What measures of a user's own mean: their titles."""
    own = (behaviour for name, behaviour in behaviours.items() if behaviour is not OURS.get(name))
    measures = (measure for behaviour in own for measure in behaviour.measures)
    return [(each.name, f"A measure of your own: {each.title or each.name}.") for each in measures]


def _training_lines(beside: Part) -> list[tuple[Block, ...]]:
    """Which run tells when heads formed."""
    if (about := beside.facts.get("training")) is None:
        return []
    looks = counted(about["looks"], "look")
    return [("training", (code(about["directory"]), f": {looks} at heads, {about['heads']}"))]


def _experiments_short(asked: Part) -> tuple[Block, ...]:
    titles = joined([link(section.title, section.id) for section in asked.sections], "; ")
    return link("Experiments", "experiments"), [*titles, "."] if titles else "None can be asked of this model."


def _sources(corpora: Sequence[Corpus], results: Sequence[Result], scored: Collection[str]) -> list[Source]:
    """All texts that were given or stood in, with what was measured on each; those in `scored` as their papers do."""
    known = {corpus.name: corpus for corpus in (*corpora, *(result.corpus for result in results))}
    measured = {
        name: list(dict.fromkeys(each.behaviour.name for each in results if each.corpus.name == name and each.readable))
        for name in known
    }
    for name in scored:
        measured[name].append("the score of its paper")
    return [
        Source(corpus, f"for {', '.join(measured[name])}" if measured[name] else UNUSED, {"measured": measured[name]})
        for name, corpus in known.items()
    ]


def _left_out(model: Model, results: Sequence[Result]) -> dict[str, Any]:
    """What was left out, and why."""
    several = len(model.config.stacks) > 1
    named = {result.behaviour.name + (f": {result.kind.title}" if several else ""): result for result in results}
    return {
        "on_generated_text": list(dict.fromkeys(result.behaviour.name for result in results if result.generated)),
        "left_out": {name: result.counts for name, result in named.items()},
        "not_measured": {name: result.left_out for name, result in named.items() if result.left_out},
        "measures_without_items": {
            name: result.measured.absent for name, result in named.items() if result.measured.absent
        },
        "targets": _targets(model, results),
        "causal_test_left_out": {each.behaviour.name: why for each in results if (why := each.tested.left_out)},
    }


def _targets(model: Model, results: Sequence[Result]) -> dict[str, str] | None:
    """What a decoder with an encoder read, by corpus."""
    if len(model.config.stacks) == 1:
        return None
    known = {result.corpus.name: "targets" in result.corpus.annotates for result in results}
    return {name: "its own targets" if own else "each text as its own target" for name, own in known.items()}
