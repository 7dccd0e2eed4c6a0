"""What do this model's heads do? Runs the analyses of the full report, and puts what they say on one page."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from analyses import coreference, plain_words, probe
from analyses.behaviours import OURS, chosen
from analyses.corpora import Corpus
from analyses.experiments import experiments_section
from analyses.head_names import Place
from analyses.head_tables import Heads
from analyses.headlines import ranking
from analyses.headlines.example_sentences import example_sentences
from analyses.headlines.facts import Fact, facts
from analyses.headlines.head_cards import overview
from analyses.labels import label
from analyses.measures import Behaviour, Measure
from analyses.numerals import counted
from analyses.over_training.training_runs import Run as TrainingRun
from analyses.over_training.when_formed import forming, when_formed
from analyses.own_measures import as_behaviours
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
from analyses.sections import (
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
from analyses.side_by_side import meanwhile
from analyses.viewer import Passage, corpus_passages
from interp import InputError, Model

T = TypeVar("T")
_BY_IDS = (
    "The model has no tokenizer, so it was read by token ids: texts of words, and what is asked of words, are left out."
)
_KEPT_APART = "Attention says where a head looks; only an intervention says what it does: the two are kept apart."
_EXPERIMENTS = (
    "What articles about transformers like to show, asked of this model: on the articles’ own prompts where it can "
    "read them, and on prompts in the words of the generated stories. A sentence and a figure each; no corpus is "
    "needed."
)
_RELATIONS = "; ".join(f"{name} {dependent} to {head}" for name, (dependent, head) in plain_words.RELATIONS.items())
DEFINITIONS = {
    "finding": "A gain of at least 0.05 whose 95% interval lies above 0 and whose q is below 0.05.",
    "gain": "The value minus the strictest baseline, which went through the same scorer on the same items.",
    "95% interval": (
        "Studentised bootstrap of the gain over documents, or over prompts for patching (Efron & Tibshirani 1993)."
    ),
    "q": (
        "False discovery rate (Benjamini & Hochberg 1995) over everything that tables/heads or tables/effects tests: "
        "all heads, measures and readings of all behaviours here, not only the rows shown."
    ),
    "without first position": (
        "Much attention rests on the first position when a head has nothing to say (Xiao 2023), so patterns are also "
        "read without it, the rest renormalised."
    ),
    "by norm": (
        "The same measure of what is written instead of what is attended to: each weight times the norm of the value "
        "that it brings through W_O, as shares of a row (Kobayashi 2020)."
    ),
    "n": (
        "Rows or items that were scored: not padding, not special tokens, and with something that could satisfy the "
        "measure."
    ),
    "previous-token, next-token, first-token, self, duplicate-token": (
        "Mean attention to the token before, to the token after, to the first token, to the token itself, to earlier "
        "copies of the same token (Clark 2019; Xiao 2023 for the first token as a sink)."
    ),
    "offset": (
        "Mean attention to the token at one distance: offset:−2 is two back, offset:2 two ahead. On a card the offsets "
        "of one head, if none has half of its attention, are called nearby."
    ),
    "distance": "Mean distance in tokens between a token and what it attends to; it describes, and makes no finding.",
    "induction": "On random tokens repeated once, mean attention to the token after the earlier copy (Olsson 2022).",
    "positional-head": "Share of rows whose largest attention falls on one offset (Voita 2019).",
    "entropy": "Entropy of a row over the logarithm of its visible keys; 1 is uniform.",
    "monotonicity, diagonal": (
        "In cross-attention: the rank correlation between a token and the place in the source that it attends to most, "
        "and how far attention lies from the same share of the way through the source."
    ),
    "relation": (
        "How often the most attended word from one end of a dependency is the other end (Clark 2019); attention to a "
        "word sums over its pieces, attention from a word averages. Dependents and heads, as Universal Dependencies "
        f"name them: {_RELATIONS}. transposed: of all words that attend to the dependent, its head does most."
    ),
    "tag": (
        "Lift: attention from words of one tag to words of another, as a ratio to what the distances alone would give; "
        "1 is none."
    ),
    "rule": (
        "The label of a head that does no better than a simple rule which predicts its choices: rule:last VERB goes to "
        "the nearest verb before, rule:next NOUN to the nearest noun after, rule:offset −2 to the word two back. "
        "rule:any→NOUN likes nouns whoever asks: words of other tags give them as much."
    ),
    "antecedent": (
        "How often the most attended mention before a pronoun is in its chain; “named” keeps items whose nearest true "
        "antecedent is a name or a noun."
    ),
    "antecedent-mass": "Of the attention on all mentions before a pronoun, the share on those of its chain.",
    "antecedent-predicting": (
        "As antecedent, asked of the token before the pronoun, where a causal model chooses the pronoun; its rules do "
        "not know the pronoun either."
    ),
    "denoise, noise": (
        "Share of the clean-corrupted logit difference that one patched head restores or removes, on the half of the "
        "pairs that did not choose the head; symmetric token replacement (Zhang & Nanda 2024; Heimersheim & Nanda "
        "2024), gender-neutral prompts as zero (Vig 2020)."
    ),
}


@dataclass(frozen=True)
class Found:
    """What is known so far: behaviours first, the rest as it is done.

    results    every behaviour in every kind of attention
    beside     when heads formed, and sentences that they look around in
    passages   texts to look at, word by word
    known      every head's facts, the first to be told first, as soon as all that they rest on is measured
    labelled   the labels, `scored` the papers' scores and `explained` what explains attention
    probed     what probes read, or why they could not
    asked      the experiments
    """

    results: Sequence[Result]
    beside: Part
    passages: Sequence[Passage]
    known: Mapping[Place, Sequence[Fact]] = field(default_factory=dict)
    labelled: Part | None = None
    scored: Part = field(default_factory=Part)
    explained: Part = field(default_factory=Part)
    probed: Part | str | None = None
    asked: Part | None = None


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
    known = chosen(as_behaviours(behaviours) if behaviours else None)
    given = model
    if model.tokenizer is None:
        known, model, corpora = _without_words(known, model, corpora, run.seed)
    passages = corpus_passages.read_texts(given, texts)  # before the long work: a text may be too long
    trained = Part() if training is None else _trained(training, given)
    measured = behaviour_results.measure(run, model, known, corpora, pairs)
    if all(result.left_out for result in measured):
        raise InputError(_reasons(measured))
    results = _drawn(run, model, behaviour_results.corrected(measured))
    if not passages:
        asked_of = [measure for behaviour in known.values() for measure in behaviour.measures]
        corpus = next(each.corpus for each in results if not each.left_out)
        passages = corpus_passages.choose(given, corpus, asked_of)
    found = Found(results, trained, passages)
    rest = {"labels and the effects behind them": labels, "what probes read": probes, "experiments": experiments}
    if any(rest.values()):
        first = _page(run, model, corpora, known, pairs, found)
        run.show(replace(first, unfinished=", ".join(name for name, asked in rest.items() if asked)))
    told = {
        "explanations": partial(_explanations, model, results),
        **({"probes": partial(_probes, given, corpora)} if probes else {}),
        **({"scores": partial(_scores, given, corpora)} if coreference.BEHAVIOUR.name in known else {}),
    }
    with meanwhile([partial(_timed, part, run) for part in told.values()], crowded=True) as ended:
        if labels:
            found = _labelled(run, model, known, found, exact=exact)
        else:
            found = replace(found, known=_known(behaviour_results.tables(results), known))
        run.say("reading sentences", 0)
        found = replace(found, beside=_with_sentences(run, given, known, found))
        run.say(f"the rest of {', '.join(told)}", 0)
        more = {name: _beside(run, *part) for name, part in zip(told, ended(), strict=True)}
    asked = experiments_section.section(given, seed=run.seed, progress=run.say) if experiments else None
    found = replace(found, scored=more.get("scores", Part()), explained=more["explanations"])
    found = replace(found, probed=more.get("probes"), asked=asked)
    return _page(run, model, corpora, known, pairs, found)


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


def _timed(part: Callable[[Run], T], run: Run) -> tuple[T, dict[str, float]]:
    """A part of the report, and how long its own stages took."""
    stages = Stages(lambda stage, count: None)
    return part(replace(run, say=stages)), stages.seconds()


def _beside(run: Run, part: T, seconds: Mapping[str, float]) -> T:
    """A part that was made at the same time as others, its stages among those of the run."""
    run.say.add(seconds)
    return part


def _labelled(run: Run, model: Model, behaviours: Mapping[str, Behaviour], found: Found, *, exact: bool) -> Found:
    """With the labels of all behaviours that were measured, each on its corpus, and what they make known of heads."""
    results = found.results
    corpora = {result.behaviour.name: result.corpus for result in results if result.collected}
    collected = [result.collected for result in results if result.collected]
    effects = pd.concat([result.tested.table for result in results], ignore_index=True)
    given: dict[str, Any] = {"behaviours": [*behaviours.values()], "collected": collected, "effects": effects}
    labelled = label(model, corpora, **given, exact=exact, seed=run.seed, shards=run.shards, progress=run.say)
    tables = {**behaviour_results.tables(results), "labels": labelled.labels, "evidence": labelled.evidence}
    known = _known(tables, behaviours)
    return replace(found, known=known, labelled=label_section.told(labelled, model, behaviours, known))


def _known(tables: Mapping[str, pd.DataFrame], behaviours: Mapping[str, Behaviour]) -> dict[Place, list[Fact]]:
    """Every head's facts, the first to be told first."""
    return {place: ranking.ranked(own) for place, own in facts(tables, behaviours).items()}


def _probes(model: Model, corpora: Sequence[Corpus], run: Run) -> Part | str:
    """What probes read from every layer, or why they could not."""
    try:
        return probe.section(model, corpora, seed=run.seed, progress=run.say)
    except InputError as error:
        return str(error)


def _explanations(model: Model, results: Sequence[Result], run: Run) -> Part:
    return explanation_section.told(run, model, results)


def _scores(model: Model, corpora: Sequence[Corpus], run: Run) -> Part:
    return coreference_section.told(run, model, corpora)


def _trained(training: TrainingRun, model: Model) -> Part:
    """When heads formed, by the run that trained the model."""
    curves = forming(training, model)
    folder = training.folder.resolve()
    near = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder  # a page may be published
    about = {"directory": str(near), "sha256": training.digest, "heads": training.source}
    about |= {"looks": training.looks, "left_out": dict(training.left_out)}
    return Part(tables={"forming": curves, "when_formed": when_formed(curves)}, facts={"training": about})


def _with_sentences(run: Run, model: Model, behaviours: Mapping[str, Behaviour], found: Found) -> Part:
    """What cards say beside facts: when heads formed, and where each looks in sentences, at words of its label."""
    beside, kind = found.beside, Heads.every(model)[0]
    corpora = {each.behaviour.name: each.corpus for each in found.results if not each.left_out and each.kind == kind}
    read = example_sentences(model, corpora, found.known, behaviours, seed=run.seed)
    return replace(beside, tables={**beside.tables, **({"example_sentences": read} if len(read) else {})})


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
    several = len(model.config.stacks) > 1
    results, beside, labelled, asked = found.results, found.beside, found.labelled, found.asked
    scored, explained, probed = found.scored, found.explained, found.probed
    evidence = labelled.tables["evidence"] if labelled else None
    told = [behaviour_sections.told(result, several=several, evidence=evidence) for result in results]
    layers = probed if isinstance(probed, Part) else Part()
    parts = [*([labelled] if labelled else []), scored, explained, layers]
    apart = f"Apart from {'labels and ' if labelled else ''}minimal pairs, heads"
    chosen = "are chosen and reported on the same text, so the best of them look a little better"
    short = [line for part in [*told, *parts] for line in part.short]
    asked_of = [_EXPERIMENTS, *asked.sections, *asked.counted] if asked else []
    small = [Section("Experiments", asked_of, "experiments")] if asked else []
    sections = [section for part in (labelled or Part(), *told, scored, explained, layers) for section in part.sections]
    tables = _tables(found)
    line, first, said = overview(tables, behaviours, found.passages, found.known)
    return Page(
        title=f"{line}: {short_name(run.models[0]['name'])}",
        overview=[first],
        summary=[
            Definitions([*short, *([_experiments_short(asked)] if asked else [])]),
            remark(f"{_KEPT_APART} {apart} {chosen} than they are."),
        ],
        sections=[
            *sections,
            *small,
            Section(
                "What was read and what was left out",
                [
                    *_counted(results, probed, several=several, by_ids=isinstance(model.tokenizer, TokenIds)),
                    *scored.counted,
                    *explained.counted,
                ],
            ),
        ],
        corpora=_sources(corpora, results, {*scored.facts.get("scored", ())}),
        made=[("minimal pairs", _pairs_read(results)), *_training_lines(beside)],
        definitions=[
            *DEFINITIONS.items(),
            *_own_terms(behaviours),
            *(term for part in parts for term in part.definitions),
        ],
        tables=tables,
        facts={
            "headline": line,
            "sentences": {each.behaviour: each.text for each in said},
            "pairs": pairs,
            **_facts(model, results),
            **beside.facts,
            "labels_left_out": None,
            **(labelled.facts if labelled else {}),
            "probes": layers.facts or {"left_out": probed},
            **(asked.facts if asked else {}),
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


def _counted(results: Sequence[Result], probed: Part | str | None, *, several: bool, by_ids: bool) -> list[Block]:
    """What was read and what was left out, behaviour by behaviour and by probes."""
    names = [result.name(several) for result in results]
    blocks: list[Block] = [*counts_table([result.counts for result in results], names, ["unknown tokens"])]
    if by_ids:
        blocks.insert(0, caveat(_BY_IDS))
    if isinstance(probed, Part):
        blocks.append(Section("By probes", probed.counted))
    elif probed:
        blocks.append(caveat(f"No probes: {probed}."))
    return blocks


def _tables(found: Found) -> dict[str, pd.DataFrame]:
    """Every table, by name."""
    parts = [found.beside, found.labelled, found.scored, found.explained, found.probed, found.asked]
    more = (part.tables.items() for part in parts if isinstance(part, Part))
    return behaviour_results.tables(found.results) | dict(each for some in more for each in some)


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


def _facts(model: Model, results: Sequence[Result]) -> dict[str, Any]:
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
