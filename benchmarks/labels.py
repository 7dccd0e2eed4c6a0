"""Are labels right where the truth is known, and absent where there is nothing to find?

    python -m benchmarks.labels --smallest     # one of each on a few short texts, to see that it runs
    python -m benchmarks.labels --quick        # 8 of each
    python -m benchmarks.labels                # 200 of each

Prints one JSON line for every planted model with wrong labels, and one for each of fourteen questions. Then prints all
answers as rows of the table in `docs/labels.md`, with their targets (`label_rows.tsv`):

    planted     models composed at random (`benchmarks.planted.compose`), labelled on texts over their words. `found`:
                share of planted heads that carry their label or a synonym. Heads that rest on the first token do not
                count, because equally sharp shuffled heads also do. `false`: share of labels that are neither.
                `impostors`: coreference or syntax labels for a fixed offset, nearest noun or last same-form pronoun
    rungs       planted models with a head for every rule and for mixtures of rules (`benchmarks.planted.rungs`).
                In their texts only a hidden code tells which words belong together. `right`: share of heads whose
                rule `analyses.scoring.rules` names, and which carry no label of a higher rung.
                `strictest`: how often the best simple rule is right
    strata      planted models with a head for each stratum, while a rule is right elsewhere
                (`benchmarks.planted.strata`). `right`: share of these heads that carry the label of their own stratum;
                `wrong`: false labels of a wider stratum, or of any relation or reference
    sinks       planted decoders of three heads that rest on the first position. They read nothing there, and the
                little that they read elsewhere does harm. `effects`: their labels with evidence of an effect;
                `hiding`: what hiding the position costs over its control, in nats per row, `all_hiding` from all
                three; `all`: the largest effect of all three together
    readers     planted decoders with a head that another head reads. Beside it is a twin that would also do, or a
                head that nothing reads. `right`: models whose single and joint effects tell which head is which
    sets        the same twins, the same heads when only one is read, and models with random weights. `twins`: models
                where both twins and no other head get a set label, and neither gets a label for its own effect;
                `without`: how many of the other models have a set
    untrained   models with random weights, on generated stories. `any`: share of models with any label
    copies      heads of the default with shuffled W_Q and W_K (not those that set the bar), on `--corpus`.
                `named`: share of heads with any label of a tag, a relation or reference
    shuffled    whole such copies of the default and of MiniLM, with minimal pairs. `named`: share of heads with
                more than a label of position by attention; `sentences`: claims on their first screens
    words       the default itself, on the same text with each document's words shuffled: `named` again
    permuted    the default, and planted heads of rungs, on texts with redrawn dependencies, which link words of the
                same two tags at about the same distance (`repaired`). `named`: heads with a relation label
    chains      the default on texts with redrawn chains (`rechained`). `named`: heads with a reference label
    coverage    1,000 corpora of 40 documents (60 with --quick), for every head of a planted model and every measure
                with one baseline: how many 95% intervals contain the mean gain over all corpora
"""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, permutations, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses import coreference, part_of_speech, position
from analyses.behaviours import OURS, select
from analyses.corpora import read
from analyses.corpora.mentions import is_pronoun
from analyses.execution.progress import Stages
from analyses.headlines import sentences
from analyses.headlines.facts import facts
from analyses.labels import Labelled, knockouts, label
from analyses.labels import evidence as label_evidence
from analyses.labels.evidence import CELL, NOTABLE_EFFECT, scrambled
from analyses.labels.hiding import FEWEST
from analyses.measures.head_tables import Collected, Scored
from analyses.reading.windows import Reading
from analyses.report import behaviour_sections
from analyses.report.scaffold import Run
from analyses.scoring.collectors import collect
from analyses.tasks.causal_tests import no_effects
from benchmarks.console import arguments, machine, show
from benchmarks.planted import FORMS, Composed, compose, linked_texts, strata
from benchmarks.planted import planted_texts as texts
from benchmarks.planted.linked_texts import Linked
from benchmarks.planted.rungs import READER, SINK, UNREAD, Rung, compose_readers, compose_rungs, compose_sinks
from benchmarks.planted.strata import compose_strata, false_links
from interp import AnnotatedText, Model, StackConfig, Transformer, TransformerConfig
from interp.annotation import ROOT
from interp.config import LayerNorm, RMSNorm
from interp.patterns.nulls import distance_bin
from interp.patterns.shuffled import Shuffled, shuffled_copy
from models import load
from models.initialisation import initialise
from models.stories import stories

DOCUMENTS = 40  # per half, about
HIDDEN, WORDS = 16, 24  # documents per half, and words per document, that knock-outs read
TARGETS = {"found": 0.99, "false": 0.05, "right": 0.97, "any": 0.05, "named": 0.03, "coverage": (0.93, 0.97)}
_COPIES = 4  # of the default's heads, labelled together
_MEANINGFUL = ("tag:", "relation:", "antecedent")
_PAIRS = no_effects("any").table  # no label here rests on minimal pairs
_ROWS = Path(__file__).with_name("label_rows.tsv")  # kind, what is counted, the text of the result, target
Counts = dict[str, Counter[str]]
KINDS = (
    *("planted", "rungs", "strata", "sinks", "readers", "sets", "untrained", "copies", "shuffled", "words", "permuted"),
    *("permuted rungs", "chains", "coverage"),
)


def corpora_of(composed: Composed, seed: int) -> dict[str, list[AnnotatedText]]:
    """One corpus per behaviour, with accidental patterns balanced."""
    lexicon = composed.lexicon
    return {
        "position": texts.shuffled(lexicon, 3 * DOCUMENTS, seed),
        "part-of-speech": texts.sentences(lexicon, 3 * DOCUMENTS, seed, apart=True),
        "coreference": texts.meetings(lexicon, 3 * DOCUMENTS, seed, episodes=4),
    }


def _added(every: Iterable[Mapping[str, Counter[str]]]) -> Counts:
    """The sum of each count over models."""
    total: Counts = defaultdict(Counter)
    for counts in every:
        for name, count in counts.items():
            total[name] += count
    return total


def _of_head(table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    return table.loc[(table["layer"] == layer) & (table["head"] == head)]


def planted_one(seed: int) -> tuple[Counts, list[dict[str, object]]]:
    """Compose and label one model, and return counts and the heads with wrong labels."""
    composed = compose(seed, form=FORMS[seed % len(FORMS)])
    labels = label(composed.model, corpora_of(composed, seed), documents=HIDDEN, words=WORDS, seed=seed).labels
    counts: Counts = defaultdict(Counter, evidence=Counter(labels["evidence"]))
    mislabelled: list[dict[str, object]] = []
    for place in composed.placed:
        names = _of_head(labels, place.layer, place.head)["label"].tolist()
        planted, false = place.behaviour, [name for name in names if not place.behaviour.is_called(name)]
        counts["heads"]["labels"] += len(names)
        counts["wrong"].update(f"{planted.name}: {name}" for name in false)
        counts["impostors"].update(f"{planted.name}: {name}" for name in place.mistaken(names) if planted.never)
        due = bool(planted.label) and not planted.common
        missed = due and not place.is_named_by(names)
        counts["heads"] += Counter(due=int(due), found=int(due and not missed))
        counts["missed"].update([planted.name] * missed)
        if false or missed:
            mislabelled.append({"name": "mislabelled", "seed": seed, "planted": planted.name, "labels": names})
    return counts, mislabelled


def planted(seeds: range, workers: Executor) -> dict[str, object]:
    """How many planted heads carry their label, and how many labels are false."""
    every = []
    for counts, mislabelled in workers.map(planted_one, seeds):
        every.append(counts)
        for line in mislabelled:
            show(**line)
    counts = _added(every)
    heads = counts["heads"]
    return {
        "models": len(seeds),
        "heads": heads["due"],
        "found": round(heads["found"] / max(heads["due"], 1), 4),
        "labels": heads["labels"],
        "false": round(counts["wrong"].total() / max(heads["labels"], 1), 4),
        "evidence": dict(counts["evidence"]),
        "missed": dict(counts["missed"].most_common()),
        "wrong": dict(counts["wrong"].most_common(12)),
        "impostors": dict(counts["impostors"]),
    }


def linked_corpora(composed: Composed, seed: int) -> dict[str, list[AnnotatedText]]:
    """Texts in which only a hidden code tells which words belong together."""
    assert isinstance(composed.lexicon, Linked)
    return {
        "part-of-speech": linked_texts.clauses(composed.lexicon, 3 * DOCUMENTS, seed),
        "coreference": linked_texts.reports(composed.lexicon, 3 * DOCUMENTS, seed),
    }


def rungs_one(seed: int) -> tuple[Counts, dict[str, float]]:
    """Compose and label one model, compare with the rules named for each head, and measure the best simple rule."""
    composed = compose_rungs(seed, form=FORMS[seed % len(FORMS)])
    corpora = linked_corpora(composed, seed)
    collected = []
    for module in (part_of_speech, coreference):
        reading = Reading(composed.model, corpora[module.BEHAVIOUR.name])
        collected += collect(reading, [module.Collector(composed.model, seed=seed)])
    rules = pd.concat([each.rules(seed=seed) for each in collected], ignore_index=True)
    options = {"documents": FEWEST, "words": HIDDEN, "effects": _PAIRS}
    labels = label(composed.model, corpora, collected=collected, seed=seed, **options).labels
    counts: Counts = defaultdict(Counter)
    for place in composed.placed:
        names = _of_head(labels, place.layer, place.head)["label"].tolist()
        rung, higher = place.behaviour, place.mistaken(names)
        counts["heads"]["labels"] += len(names)
        counts["higher"].update(f"{rung.name}: {name}" for name in higher)
        counts["false"].update(f"{rung.name}: {name}" for name in names if not rung.is_called(name))
        if isinstance(rung, Rung):
            follows = _follows(rung, _of_head(rules, place.layer, place.head))
            right = not higher and follows and rung.label in (None, *names)
            counts["named" if right else "missed"][rung.name] += 1
    measures = {place.behaviour.measure for place in composed.placed if isinstance(place.behaviour, Rung)}
    strictest = rules.loc[rules["measure"].isin(measures) & ~rules["measure"].str.startswith("tag:")]
    return counts, strictest.groupby("measure")["rival_value"].max().round(3).to_dict()


def _follows(rung: Rung, rows: pd.DataFrame) -> bool:
    """Whether the rules name what they should for a head; True if nothing is expected."""
    if not rung.rules:
        return True
    rows = rows.loc[[fnmatchcase(name, rung.measure) for name in rows["measure"]]]
    verdicts = rows["verdict" if rung.measure.startswith("tag:") else "rule"]
    return len(verdicts) > 0 and bool(verdicts.isin(rung.rules).all())


def rungs(seeds: range, workers: Executor) -> dict[str, object]:
    """How many heads get the name of their rule, and which get a higher one."""
    every, strictest = zip(*workers.map(rungs_one, seeds), strict=True)
    counts = _added(every)
    heads, right = counts["named"].total() + counts["missed"].total(), counts["named"].total()
    return {
        "models": len(seeds),
        "heads": heads,
        "right": round(right / heads, 4),
        "missed": dict(counts["missed"]),
        "higher": dict(counts["higher"]),
        "labels": counts["heads"]["labels"],
        "false": dict(counts["false"]),
        "strictest": pd.DataFrame([*strictest]).max().to_dict(),
    }


def strata_one(seed: int) -> Counts:
    """How many specialists carry their own name, and which false links labels claim."""
    composed = compose_strata(seed, form=FORMS[seed % len(FORMS)])
    assert isinstance(composed.lexicon, strata.Sorts)
    corpora = {
        "part-of-speech": strata.clauses(composed.lexicon, 10 * DOCUMENTS, seed),
        "coreference": strata.reports(composed.lexicon, 8 * DOCUMENTS, seed),
    }
    labels = label(composed.model, corpora, documents=FEWEST, words=HIDDEN, effects=_PAIRS, seed=seed).labels
    counts: Counts = defaultdict(Counter)
    for place in composed.placed:
        planted, names = place.behaviour, _of_head(labels, place.layer, place.head)["label"].tolist()
        counts["wrong"].update(f"{planted.label or planted.name}: {name}" for name in false_links(planted, names))
        if planted.label:
            counts["named" if planted.label in names else "missed"][planted.label] += 1
    return counts


def specialists(seeds: range, workers: Executor) -> dict[str, object]:
    """How many specialists are named by their stratum, and how many labels are false."""
    counts = _added(workers.map(strata_one, seeds))
    right, heads = (sum(counts[name].total() for name in names) for names in (["named"], ["named", "missed"]))
    of_kinds = {"missed": dict(counts["missed"]), "wrong": dict(counts["wrong"])}
    return {"models": len(seeds), "heads": heads, "right": round(right / heads, 4), **of_kinds}


def sinks_one(seed: int) -> tuple[list[str], list[float], tuple[float, float]]:
    """Labels of resting heads, costs of hiding the first position from each, and cost and effect for all together."""
    composed = compose_sinks(seed, form=("decoder", "grouped")[seed % 2])
    corpora = linked_corpora(composed, seed) | {"position": texts.shuffled(composed.lexicon, 3 * DOCUMENTS, seed)}
    labelled = label(composed.model, corpora, documents=HIDDEN, words=WORDS, seed=seed)
    places = [(each.layer, each.head) for each in composed.where(SINK)]
    labels, rows = (
        table.merge(pd.DataFrame(places, columns=["layer", "head"])).to_dict("records")
        for table in (labelled.labels, labelled.evidence)
    )
    costs = [row["hiding"] for row in rows if row["measure"] == "first-token"]
    together = knockouts.measure_together(
        composed.model, corpora["position"], [("first-token", places)], behaviours=["position"], texts=HIDDEN, seed=seed
    )
    (joint,) = knockouts.least(together).to_dict("records")
    return [f"{row['evidence']}: {row['label']}" for row in labels], costs, (joint["hiding"], joint["effect"])


def sinks(seeds: range, workers: Executor) -> dict[str, object]:
    """How many resting heads have an effect that is only redistribution."""
    labels, costs, joint = zip(*workers.map(sinks_one, seeds), strict=True)
    names, every = Counter(chain.from_iterable(labels)), [*chain.from_iterable(costs)]
    return {
        "models": len(seeds),
        "heads": len(every),
        "effects": {name: count for name, count in names.items() if not name.startswith("attention")},
        "labels": dict(names),
        "hiding": round(float(np.mean(every)), 3),
        "all_hiding": round(float(np.mean([hiding for hiding, _ in joint])), 3),
        "all": round(max(needed for _, needed in joint), 4),
    }


def _readers(seed: int, *, twins: bool) -> tuple[Composed, Labelled]:
    composed = compose_readers(seed, twins=twins, form=("decoder", "grouped")[seed % 2])
    corpus = repeating_texts(composed.lexicon.vocabulary, 3 * HIDDEN, seed)
    options: dict[str, Any] = {"documents": HIDDEN, "seed": seed, "effects": _PAIRS}
    return composed, label(composed.model, {"position": corpus}, behaviours=["position"], **options)


def readers_one(seed: int) -> dict[str, bool]:
    """Whether effects tell which of two previous-word heads is read, and which two are twins."""
    verdicts = {}
    for twins in (False, True):
        composed, labelled = _readers(seed, twins=twins)
        labels = labelled.labels
        rows = labels.loc[labels["label"] == "previous-token"].set_index(["layer", "head"]).to_dict("index")
        read, unread = ([(each.layer, each.head) for each in composed.where(name)] for name in (READER, UNREAD))
        right = rows.keys() == {*read, *unread} and all(row["all_effect"] > 1 for row in rows.values())
        for place, row in rows.items():
            right &= (row["evidence"] == "both") == (place in read and not twins)
            right &= abs(row["rest_effect"] - (row["all_effect"] if place in unread else 0.0)) < NOTABLE_EFFECT
        verdicts["twins" if twins else "unread beside a reader"] = right
    return verdicts


def repeating_texts(words: Sequence[str], count: int, seed: int) -> list[AnnotatedText]:
    """Documents of nine random words, repeated three times."""
    segments = [random.Random(f"{seed}-{number}").sample([*words], 9) for number in range(count)]
    return [AnnotatedText((*each,) * 3, (True,) * 27, f"document {number}") for number, each in enumerate(segments)]


def readers(seeds: range, workers: Executor) -> dict[str, object]:
    """How many models have the right single and joint effects."""
    every = [*workers.map(readers_one, seeds)]
    return {"models": 2 * len(seeds), "right": {name: sum(each[name] for each in every) for name in every[0]}}


def sets_one(seed: int) -> tuple[bool, list[str]]:
    """Whether twins are labelled as a set only; and which models without twins have sets."""
    composed, twins = _readers(seed, twins=True)
    pair, needed = {(each.layer, each.head) for each in composed.where(READER)}, twins.labels["evidence"] != "attention"
    rows = twins.labels.loc[needed & twins.labels["label"].str.endswith("previous-token")]
    places = {*rows[["layer", "head"]].itertuples(index=False, name=None)}
    is_found = places == pair and {*rows["label"]} == {"set:previous-token"} and len(twins.sets) == 1
    corpus = [*islice(stories(None, seed=11), 3 * DOCUMENTS)]
    options: dict[str, Any] = {"documents": HIDDEN, "words": WORDS, "seed": seed}
    untrained = label(random_model(seed), dict.fromkeys(OURS, corpus), **options)
    without = {"one reader": _readers(seed, twins=False)[1], "random weights": untrained}
    return is_found, [name for name, each in without.items() if each.sets["label"].notna().any()]


def sets(seeds: range, workers: Executor) -> dict[str, object]:
    """How many models have their twins labelled as a set, and which models without twins have any."""
    twins, without = zip(*workers.map(sets_one, seeds), strict=True)
    return {"models": len(seeds), "twins": sum(twins), "others": 2 * len(seeds), "without": [*chain(*without)]}


def random_model(seed: int) -> Transformer:
    """A small untrained model of a random shape."""
    rng = random.Random(f"untrained-{seed}")
    default = load("default")
    n_heads, d_head = rng.choice((2, 4, 6, 8)), rng.choice((8, 16))
    width = n_heads * d_head
    sizes = {"n_layers": rng.randint(1, 4), "d_model": width, "n_heads": n_heads, "d_head": d_head, "d_mlp": 4 * width}
    n_kv_heads, norm = n_heads // 2 if rng.random() < 0.3 else None, rng.choice((LayerNorm(), RMSNorm()))
    sizes |= {"n_ctx": 128, "d_vocab": default.config.d_vocab, "n_kv_heads": n_kv_heads}
    model = Transformer(TransformerConfig(decoder=StackConfig(**sizes, causal=True, norm=norm)), default.tokenizer)
    initialise(model, seed)
    return model


def untrained_one(seed: int) -> list[str]:
    """The labels of an untrained model."""
    corpus = [*islice(stories(None, seed=11), 3 * DOCUMENTS)]
    table = label(random_model(seed), dict.fromkeys(OURS, corpus), documents=HIDDEN, words=WORDS, seed=seed).labels
    return [f"{row['evidence']}: {row['label']}" for row in table.to_dict("records")]


def untrained(seeds: range, workers: Executor) -> dict[str, object]:
    """How many untrained models carry any label."""
    every = [*workers.map(untrained_one, seeds)]
    count, labels = len(seeds), Counter(chain.from_iterable(every))
    limit = TARGETS["any"] + 2 * (TARGETS["any"] * (1 - TARGETS["any"]) / count) ** 0.5
    return {"models": count, "any": sum(map(bool, every)) / count, "at_most": round(limit, 4), "labels": dict(labels)}


def copies_one(seed: int, corpus: str) -> list[str]:
    """The labels of copies of the default with shuffled heads, as head and label."""
    return _labels(Shuffled(load("default"), _COPIES, 1_000_000 + seed), read(corpus), seed)


def shuffled_one(name: str, seed: int, corpus: str) -> tuple[int, list[str], list[str]]:
    """The number of heads of a shuffled copy, its labels with head and evidence, and its claims."""
    trained, behaviours = load(name), select()
    assert isinstance(trained, Transformer)
    model = shuffled_copy(trained, seed)
    run = Run((), seed, Stages(lambda stage, count: None), lambda page: None)
    results = behaviour_sections.measure(run, model, behaviours, [read(corpus)], None)
    results = behaviour_sections.corrected([each for each in results if each.collected])
    effects = pd.concat([each.tested.table for each in results], ignore_index=True)
    collected = [each.collected for each in results if each.collected]
    corpora = {each.behaviour.name: each.corpus for each in results}
    options: dict[str, Any] = {"documents": HIDDEN, "words": WORDS, "seed": seed, "effects": effects}
    labelled = label(model, corpora, behaviours=[*behaviours.values()], collected=collected, **options)
    tables = {**behaviour_sections.tables(results), "labels": labelled.labels, "evidence": labelled.evidence}
    claims = sentences.sentences(tables, facts(tables, behaviours), behaviours)
    labels = [
        f"L{row['layer']}.H{row['head']} {row['behaviour']}, {row['evidence']}: {row['label']}"
        for row in labelled.labels.to_dict("records")
    ]
    heads = model.config.last.n_layers * model.config.last.n_heads
    return heads, labels, [f"{name} {seed}: {each.text}" for each in claims if each.verdict != "none"]


def shuffled(seeds: range, corpus: str, workers: Executor) -> dict[str, object]:
    """How many heads of shuffled copies have more than a label of position by attention, and all claims."""
    copies = [(name, seed, corpus) for name in ("default", "minilm") for seed in seeds]
    heads, labels, claims = zip(*workers.map(shuffled_one, *zip(*copies, strict=True)), strict=True)
    more = [{name.split(" ", 1)[0] for name in names if " position, attention" not in name} for names in labels]
    kinds = Counter(name.split(" ", 1)[1] for names in labels for name in names)
    share = round(sum(map(len, more)) / sum(heads), 4)
    counts: dict[str, object] = {"copies": len(copies), "heads": sum(heads), "named": share}
    return counts | {"sentences": [*chain(*claims)], "labels": dict(kinds)}


def words_one(seed: int, corpus: str) -> list[str]:
    """The labels of the default on shuffled words."""
    return _labels(load("default"), [scrambled(text, seed) for text in read(corpus)], seed)


def permuted_one(seed: int, corpus: str) -> list[str]:
    """The labels of the default where dependencies depend only on tag and distance."""
    return _labels(load("default"), [repaired(text, seed) for text in read(corpus)], seed, ["part-of-speech"])


def permuted_rungs_one(seed: int) -> list[str]:
    """The labels of planted heads, including relation heads, where dependencies depend only on tag and distance."""
    composed = compose_rungs(seed, form=FORMS[seed % len(FORMS)])
    corpus = [repaired(text, seed) for text in linked_corpora(composed, seed)["part-of-speech"]]
    return _labels(composed.model, corpus, seed, ["part-of-speech"], documents=FEWEST, words=HIDDEN)


def repaired(text: AnnotatedText, seed: int) -> AnnotatedText:
    """The text with each dependency moved to other words of the same two tags, at about the same distance.

    About the same: on the same side, between the same powers of two. All such pairs are equally likely, so neither end
    predicts the other. A word has one head; dependencies without a free pair are dropped.
    """
    tags, relations = text.tags or (), text.relations or ()
    rng = random.Random(f"{seed}-{text.document}")
    bins = distance_bin(torch.arange(len(tags)) - torch.arange(len(tags))[:, None]).tolist()
    pairs = defaultdict(list)
    for word, head in permutations(range(len(tags)), 2):
        pairs[tags[word], tags[head], bins[word][head]].append((word, head))
    links = {}
    edges = [(word, head) for word, head in enumerate(text.heads or ()) if head != ROOT]
    for word, head in rng.sample(edges, len(edges)):
        fitting = [pair for pair in pairs[tags[word], tags[head], bins[word][head]] if pair[0] not in links]
        if fitting:
            dependent, other_head = rng.choice(fitting)
            links[dependent] = other_head, relations[word]
    heads, names = zip(*(links.get(word, (ROOT, "root")) for word in range(len(tags))), strict=True)
    return replace(text, heads=heads, relations=names)


def chains_one(seed: int, corpus: str) -> list[str]:
    """The labels of the default where chains reveal only which mentions are pronouns."""
    return _labels(load("default"), [rechained(text, seed) for text in read(corpus)], seed, ["coreference"])


def rechained(text: AnnotatedText, seed: int) -> AnnotatedText:
    """The text with its chains shuffled among its pronouns, and among its names and nouns."""
    if text.mentions is None:
        return text
    rng, mentions = random.Random(f"{seed}-{text.document}"), [*text.mentions]
    pronouns = [is_pronoun(text.words[each.head]) for each in mentions]
    for sort in (True, False):
        places = [place for place, is_so in enumerate(pronouns) if is_so == sort]
        chains = [mentions[place].chain for place in places]
        for place, link in zip(places, rng.sample(chains, len(chains)), strict=True):
            mentions[place] = replace(mentions[place], chain=link)
    return replace(text, mentions=tuple(mentions))


def _labels(
    model: Model, corpus: Iterable[AnnotatedText], seed: int, behaviours: Iterable[str] = tuple(OURS), **size: int
) -> list[str]:
    options = {"documents": HIDDEN, "words": WORDS, **size, "seed": seed, "effects": _PAIRS}
    table = label(model, dict.fromkeys(behaviours, corpus), **options).labels
    return [f"L{row['layer']}.H{row['head']} {row['label']}" for row in table.to_dict("records")]


def summary(every: Iterable[list[str]], heads: int, meaningful: tuple[str, ...] = _MEANINGFUL) -> dict[str, object]:
    """How many heads have a label that says more than where they look; `heads` is the number per model."""
    models = [[name.split(" ", 1) for name in names] for names in every]
    meaning = [[(head, name) for head, name in names if name.startswith(meaningful)] for names in models]
    n_heads = len(models) * heads
    share = sum(len({head for head, _ in names}) for names in meaning) / n_heads
    kinds = {"meaning": meaning, "labels": models}
    counts = {kind: dict(Counter(name for names in lists for _, name in names)) for kind, lists in kinds.items()}
    return {"heads": n_heads, "named": round(share, 4), **counts}


def covered_one(run: int, documents: int) -> pd.DataFrame:
    """The gains and intervals of a planted model's heads on one new corpus."""
    composed = compose(0, n_layers=2, n_heads=4, behaviours=["previous-token", "offset", "noun-to-adjective"])
    corpus = texts.sentences(composed.lexicon, documents, run, apart=True)
    collectors = [module.Collector(composed.model, seed=run) for module in (position, part_of_speech)]
    tables = []
    for collected in collect(Reading(composed.model, corpus), collectors):
        assert isinstance(collected, Collected)
        fixed = replace(collected, scored=[each for each in collected.scored if _fixed(each)])
        tables.append(fixed.table(seed=run)[[*CELL, "sink", "gain", "ci_low", "ci_high"]])
    return pd.concat(tables, ignore_index=True)


def _fixed(scored: Scored) -> bool:
    """Whether every corpus has the same baseline, so that there is one gain to cover."""
    return scored.corpus is None and (len(scored.baselines) == 1 or scored.constant == ("no preference", 1.0))


def coverage(runs: int, workers: Executor, documents: int = 40) -> dict[str, object]:
    """How many intervals contain the mean gain of their head and measure over all new corpora."""
    rows = pd.concat(workers.map(covered_one, range(runs), [documents] * runs, chunksize=10), ignore_index=True)
    cell = [*CELL, "sink"]
    means = rows.groupby(cell)["gain"].agg(["mean", "std", "count"]).reset_index()
    varied = means.loc[(means["std"] > 1e-6) & (means["count"] == means["count"].max())]  # everywhere, not constant
    intervals = rows.merge(varied, on=cell).dropna(subset=["ci_low", "ci_high"])
    inside = (intervals["ci_low"] <= intervals["mean"]) & (intervals["mean"] <= intervals["ci_high"])
    share = inside.groupby([intervals[name] for name in cell]).mean()
    return {
        **{"runs": runs, "documents": documents, "columns": len(share), "intervals": len(intervals)},
        "coverage": round(float(inside.mean()), 4),
        "quartiles": [round(float(value), 4) for value in np.quantile(share, [0.0, 0.25, 0.5, 0.75, 1.0])],
    }


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """Rows of the table of `docs/labels.md`, from the printed lines with their `name`."""
    rows = ["| | found | target |", "|---|---|---|"]
    kinds = [line.split("\t") for line in _ROWS.read_text("utf-8").splitlines()]
    for line in lines:
        words = {name: _listed(value) for name, value in line.items()}
        rows += [
            f"| {what} | {form.format(**words)} | {target} |"
            for kind, what, form, target in kinds
            if kind == line["name"]
        ]
    return "\n".join(rows)


def _listed(value: Any) -> Any:
    """Lists and counts as text."""
    items = [f"{count} {kind}" for kind, count in value.items()] if isinstance(value, Mapping) else value
    return ("; ".join(map(str, items)) or "none") if isinstance(items, list) else items


def begin(*, smallest: bool) -> None:
    """Set up a process: one thread, and for `smallest` few copies of heads and few words."""
    torch.set_num_threads(1)
    if smallest:
        label_evidence.N_COPIES = 2
        globals().update(DOCUMENTS=5, HIDDEN=5, WORDS=6)


def main() -> None:
    """Answer all questions and print the table with its targets."""
    quick, smallest = "8 models of each kind instead of 200", "one model of each kind, on a few short texts"
    parser = arguments(__doc__, quick=quick, smallest=smallest)
    parser.add_argument("--models", type=int, help="models of each kind, instead")
    parser.add_argument("--first", type=int, default=0, help="seed of the first model: several machines share 200")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--corpus", default="tales:100:11", help="text for labelling copies and for shuffling words")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="processes, with one thread each")
    options = parser.parse_args()
    count = options.models or (1 if options.smallest else 8 if options.quick else 200)
    seeds, corpus = range(options.first, options.first + count), repeat(options.corpus)
    quarter, tenth = seeds[: max(count // 4, 1)], seeds[: max(count // 10, 1)]
    plants = range(options.first, options.first + (1 if options.smallest else 20))
    whole = plants[: options.models or 10 if options.only == "shuffled" else len(quarter)]
    machine(processes=options.processes, targets=TARGETS)
    start = partial(begin, smallest=options.smallest)
    with ProcessPoolExecutor(options.processes, get_context("spawn"), initializer=start) as workers:
        questions = {
            "planted": lambda: planted(seeds, workers),
            "rungs": lambda: rungs(quarter, workers),
            "strata": lambda: specialists(plants, workers),
            "sinks": lambda: sinks(plants, workers),
            "readers": lambda: readers(plants, workers),
            "sets": lambda: sets(plants[: options.models or 10], workers),
            "untrained": lambda: untrained(seeds, workers),
            "copies": lambda: summary(workers.map(copies_one, quarter, corpus), 32 * _COPIES),
            "shuffled": lambda: shuffled(whole, options.corpus, workers),
            "words": lambda: summary(workers.map(words_one, quarter, corpus), 32),
            "permuted": lambda: summary(workers.map(permuted_one, tenth, corpus), 32, _MEANINGFUL[1:2]),
            "permuted rungs": lambda: summary(workers.map(permuted_rungs_one, quarter), 16, _MEANINGFUL[1:2]),
            "chains": lambda: summary(workers.map(chains_one, tenth, corpus), 32, _MEANINGFUL[2:]),
            "coverage": lambda: coverage(3 * count if count < 200 else 1_000, workers),
        }
        lines = []
        for name, ask in questions.items():
            if options.only is None or name.startswith(options.only):
                began = time.perf_counter()
                lines.append({"name": name, **ask(), "seconds": round(time.perf_counter() - began, 1)})
                show(**lines[-1])
    print(table(lines))


if __name__ == "__main__":
    main()
