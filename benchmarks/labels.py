"""Are labels right where the truth is known, and absent where there is nothing to find?

    python -m benchmarks.labels --smallest     # one of each, on a few short texts: that it runs
    python -m benchmarks.labels --quick        # 20 of each
    python -m benchmarks.labels                # 200 of each

Eleven questions, one JSON line each, after a line for every planted model that was mislabelled; then all as rows of
the table in `docs/labels.md`:

    planted     models composed at random (`benchmarks.planted.compose`: decoders, encoders, grouped queries; with and
                without a norm), labelled through `analyses.labels.label` on texts over their words.
                found       share of planted heads that carry their label or a synonym (target .99); not of those that
                            rest on the first token, as shuffled heads of the same sharpness do
                false       share of all labels that are neither (target at most .05), by planted behaviour in `wrong`
                impostors   labels that an impostor must never have: coreference or syntax for a head at a fixed offset,
                            for the nearest noun, for the last pronoun of the same form (target 0)
    rungs       planted models with a head for every rule that a head may follow, and mixtures
                (`benchmarks.planted.rungs`), on texts in which only a hidden code tells what belongs to what; a quarter
                of the count.
                right       share of heads of which `analyses.rivals.rules` says the rule that they follow, and which
                            carry no label of a higher rung and, where that is not what the rule is called, their own
                            label (target .97); `missed` and `higher` say which do not
                strictest   how often the best simple rule is right of the relation, and of antecedents
    sinks       planted decoders of three heads that rest on the first position, from which nothing is read, while what
                little they read elsewhere does harm. `effects`: their labels with evidence `effect` or `both` (target
                0); `hiding` is what hiding the position costs, in nats a row, over its control, were it believed, and
                `all_hiding` from all three at once; `all` is the most that all three need it (target: less than .01)
    readers     planted decoders with a head that another reads, beside a twin of which either would do, or beside a
                head that nothing reads. `right`: share of models in which single effects, those of both at once, and
                of both but one, say which head is which (target 1)
    untrained   models with random weights, labelled on generated stories.
                any         share of models with any label of any evidence (target .05 plus two binomial errors)
    copies      heads of the default whose W_Q and W_K were shuffled, as sharp as the trained ones
                (`interp.patterns.shuffled`; others than those that set the bar), labelled on `--corpus`.
                named       share of heads with any label of a tag, a relation or reference (target at most .03)
    shuffled    whole copies of the default and of MiniLM in which the same was done to every head, so that they need
                keys that they do not look at, with minimal pairs; two of each at --quick. `named`: share of heads with
                a label other than one of position by attention (target at most .03); `sentences`: what the first
                screens of such reports say but that nothing is found (target none)
    words       the default itself, on the same text with the words of each document in another order under their
                annotation: `named` again (target at most .03)
    permuted    the default, and planted heads of rungs, on texts whose dependencies were drawn anew among pairs of
                words of the same two tags at about the same distance (`repaired`). `named`: share of heads with a label
                of a relation (target at most .03)
    coverage    1,000 corpora of 40 documents (60 with --quick), for every head and every measure with one baseline of
                a planted model; how many of the 95% intervals hold the mean gain of all corpora (target .93 to .97).
"""

import argparse
import json
import os
import platform
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, permutations, repeat
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses import coreference, part_of_speech, position
from analyses.behaviours import OURS, chosen
from analyses.causal_tests import no_effects
from analyses.corpora import read
from analyses.head_tables import Collected, Scored
from analyses.headlines import sentences
from analyses.headlines.facts import facts
from analyses.labels import knockouts, label, null_bars
from analyses.labels.evidence import CELL, NOTABLE_EFFECT
from analyses.labels.hiding import FEWEST
from analyses.labels.null_bars import scrambled
from analyses.reading.collectors import collect
from analyses.reading.windows import Reading
from analyses.report import behaviour_results
from analyses.report.scaffold import Run, Stages
from analyses.shards import Shards
from benchmarks.label_rows import ROWS, table
from benchmarks.planted import FORMS, Composed, compose, linked_texts
from benchmarks.planted import planted_texts as texts
from benchmarks.planted.linked_texts import Linked
from benchmarks.planted.rungs import READER, SINK, UNREAD, Rung, compose_readers, compose_rungs, compose_sinks
from interp import AnnotatedText, Model, StackConfig, Transformer, TransformerConfig
from interp.annotation import ROOT
from interp.config import LayerNorm, RMSNorm
from interp.initialisation import initialise
from interp.patterns.nulls import distance_bin
from interp.patterns.shuffled import Shuffled, shuffled_copy
from models import load
from models.stories import stories

DOCUMENTS = 40  # of each half, about
HIDDEN, WORDS = 16, 24  # documents of each half, and words of each, that knock-outs read
TARGETS = {"found": 0.99, "false": 0.05, "right": 0.97, "any": 0.05, "named": 0.03, "coverage": (0.93, 0.97)}
KINDS = ("planted", "rungs", "sinks", "readers", "untrained", "copies", "words", "permuted", "coverage")
_COPIES = 4  # of the default's heads, labelled together
_MEANINGFUL = ("tag:", "relation:", "antecedent")


def corpora_of(composed: Composed, seed: int) -> dict[str, list[AnnotatedText]]:
    """Texts in which accidents are balanced, a corpus a behaviour."""
    lexicon = composed.lexicon
    return {
        "position": texts.shuffled(lexicon, 3 * DOCUMENTS, seed),
        "part-of-speech": texts.sentences(lexicon, 3 * DOCUMENTS, seed, apart=True),
        "coreference": texts.meetings(lexicon, 3 * DOCUMENTS, seed, episodes=4),
    }


@dataclass
class Found:
    """What one planted model was called, beside what it is."""

    heads: int = 0  # that should carry a label
    found: int = 0
    labels: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    impostors: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    mislabelled: list[dict[str, object]] = field(default_factory=list)

    def __add__(self, other: "Found") -> "Found":
        return Found(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Found)))


def planted_one(seed: int) -> Found:
    """Compose, label, compare."""
    composed = compose(seed, form=FORMS[seed % len(FORMS)])
    corpora = corpora_of(composed, seed)
    table = label(composed.model, corpora, documents=HIDDEN, words=WORDS, seed=seed).labels
    all_of_it = Found(evidence=Counter(table["evidence"]))
    for each in composed.placed:
        mine = table.loc[(table["layer"] == each.layer) & (table["head"] == each.head), "label"].tolist()
        name, false = each.behaviour.name, [name for name in mine if not each.behaviour.is_called(name)]
        all_of_it.labels += len(mine)
        all_of_it.wrong.update(f"{name}: {other}" for other in false)
        all_of_it.impostors.update(f"{name}: {other}" for other in each.mistaken(mine) if each.behaviour.never)
        due = each.behaviour.label and not each.behaviour.common
        if due:
            all_of_it.heads += 1
            all_of_it.found += each.found(mine)
            all_of_it.missed.update([name] * (not each.found(mine)))
        if false or (due and not each.found(mine)):
            all_of_it.mislabelled.append({"name": "mislabelled", "seed": seed, "planted": name, "labels": mine})
    return all_of_it


def planted(seeds: range, workers: Executor) -> dict[str, object]:
    """How many planted heads carry their label, and how many labels are false."""
    every = Found()
    for one in workers.map(planted_one, seeds):
        for line in one.mislabelled:
            print(json.dumps(line), flush=True)
        every += one
    return {
        "models": len(seeds),
        "heads": every.heads,
        "found": round(every.found / max(every.heads, 1), 4),
        "labels": every.labels,
        "false": round(sum(every.wrong.values()) / max(every.labels, 1), 4),
        "evidence": dict(every.evidence),
        "missed": dict(every.missed.most_common()),
        "wrong": dict(every.wrong.most_common(12)),
        "impostors": dict(every.impostors),
    }


@dataclass
class Called:
    """What the heads of one model with a head a rule were called."""

    named: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    higher: Counter[str] = field(default_factory=Counter)
    labels: int = 0
    false: Counter[str] = field(default_factory=Counter)
    strictest: list[dict[str, float]] = field(default_factory=list)

    def __add__(self, other: "Called") -> "Called":
        return Called(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Called)))


def linked_corpora(composed: Composed, seed: int) -> dict[str, list[AnnotatedText]]:
    """Texts in which only a hidden code tells what belongs to what."""
    assert isinstance(composed.lexicon, Linked)
    return {
        "part-of-speech": linked_texts.clauses(composed.lexicon, 3 * DOCUMENTS, seed),
        "coreference": linked_texts.reports(composed.lexicon, 3 * DOCUMENTS, seed),
    }


def rungs_one(seed: int) -> Called:
    """Compose, label, compare with what the rules say of each head."""
    composed = compose_rungs(seed, form=FORMS[seed % len(FORMS)])
    corpora = linked_corpora(composed, seed)
    collected = []
    for module in (part_of_speech, coreference):
        reading = Reading(composed.model, corpora[module.BEHAVIOUR.name])
        collected += collect(reading, [module.Collector(composed.model, seed=seed)])
    table = pd.concat([each.rules(seed=seed) for each in collected], ignore_index=True)
    some = {"documents": FEWEST, "words": HIDDEN, "effects": no_effects("any").table}  # these heads write nothing
    labels = label(composed.model, corpora, collected=collected, seed=seed, **some).labels
    called = Called()
    for each in composed.placed:
        mine = labels.loc[(labels["layer"] == each.layer) & (labels["head"] == each.head), "label"].tolist()
        rung, higher = each.behaviour, each.mistaken(mine)
        called.labels += len(mine)
        called.higher.update(f"{rung.name}: {other}" for other in higher)
        called.false.update(f"{rung.name}: {other}" for other in mine if not rung.is_called(other))
        if isinstance(rung, Rung):
            own = table.loc[(table["layer"] == each.layer) & (table["head"] == each.head)]
            follows = _follows(rung, own)
            right = not higher and follows in (None, True) and rung.label in (None, *mine)
            (called.named if right else called.missed)[rung.name] += 1
    asked = {each.behaviour.measure for each in composed.placed if isinstance(each.behaviour, Rung)}
    chosen = table.loc[table["measure"].isin(asked) & ~table["measure"].str.startswith("tag:")]
    called.strictest.append(chosen.groupby("measure")["rival_value"].max().round(3).to_dict())
    return called


def _follows(rung: Rung, rows: pd.DataFrame) -> bool | None:
    """Whether the rules say of a head what they should; None where nothing is asked."""
    if not rung.rules:
        return None
    asked = rows.loc[[fnmatchcase(name, rung.measure) for name in rows["measure"]]]
    said = asked["verdict" if rung.measure.startswith("tag:") else "rule"]
    return len(said) > 0 and said.isin(rung.rules).all()


def rungs(seeds: range, workers: Executor) -> dict[str, object]:
    """How many heads are called by the rule that they follow, and which by a higher one."""
    every = sum(workers.map(rungs_one, seeds), Called())
    heads, named = every.named.total() + every.missed.total(), every.named.total()
    strictest = pd.DataFrame(every.strictest).max().to_dict()
    return {
        "models": len(seeds),
        "heads": heads,
        "right": round(named / heads, 4),
        "missed": dict(every.missed),
        "higher": dict(every.higher),
        "labels": every.labels,
        "false": dict(every.false),
        "strictest": strictest,
    }


def sinks_one(seed: int) -> tuple[list[str], list[float], tuple[float, float]]:
    """Of heads that rest the labels with evidence, and what hiding the first position costs each of them; what it costs
    all of them, and how much they need it."""
    composed = compose_sinks(seed, form=("decoder", "grouped")[seed % 2])
    corpora = linked_corpora(composed, seed)
    corpora["position"] = texts.shuffled(composed.lexicon, 3 * DOCUMENTS, seed)
    found = label(composed.model, corpora, documents=HIDDEN, words=WORDS, seed=seed)
    places = [(each.layer, each.head) for each in composed.where(SINK)]
    labels, rows = (
        [row for row in table.to_dict("records") if (row["layer"], row["head"]) in places]
        for table in (found.labels, found.evidence)
    )
    costs = [row["hiding"] for row in rows if row["measure"] == "first-token"]
    together = knockouts.measure_together(
        composed.model, corpora["position"], [("first-token", places)], behaviours=["position"], texts=HIDDEN, seed=seed
    )
    (all_of_it,) = knockouts.least(together).to_dict("records")
    return [f"{row['evidence']}: {row['label']}" for row in labels], costs, (all_of_it["hiding"], all_of_it["effect"])


def sinks(seeds: range, workers: Executor) -> dict[str, object]:
    """How many heads that rest have an effect that is only redistribution."""
    labels, costs, joint = zip(*workers.map(sinks_one, seeds), strict=True)
    found, every = Counter(chain.from_iterable(labels)), [*chain.from_iterable(costs)]
    effects = {name: count for name, count in found.items() if not name.startswith("attention")}
    hiding, all_of_it = (round(float(np.mean(each)), 3) for each in (every, [one for one, _ in joint]))
    told = {"models": len(seeds), "heads": len(every), "effects": effects, "labels": dict(found), "hiding": hiding}
    return told | {"all_hiding": all_of_it, "all": round(max(each for _, each in joint), 4)}


def readers_one(seed: int) -> dict[str, bool]:
    """Whether the effects of two heads that look at the word before say which of them is read, and which are twins."""
    found = {}
    for twins in (False, True):
        composed = compose_readers(seed, twins=twins, form=("decoder", "grouped")[seed % 2])
        corpus = repeating_texts(composed.lexicon.vocabulary, 3 * HIDDEN, seed)
        some: dict[str, Any] = {"documents": HIDDEN, "seed": seed, "effects": no_effects("any").table}
        labels = label(composed.model, {"position": corpus}, behaviours=["position"], **some).labels
        rows = {
            (row["layer"], row["head"]): row
            for row in labels.loc[labels["label"] == "previous-token"].to_dict("records")
        }
        read, unread = ([(each.layer, each.head) for each in composed.where(name)] for name in (READER, UNREAD))
        right = rows.keys() == {*read, *unread} and all(row["all_effect"] > 1 for row in rows.values())
        for place, row in rows.items():
            right &= (row["evidence"] == "both") == (place in read and not twins)
            right &= abs(row["rest_effect"] - (row["all_effect"] if place in unread else 0.0)) < NOTABLE_EFFECT
        found["twins" if twins else "unread beside a reader"] = right
    return found


def repeating_texts(words: Sequence[str], count: int, seed: int) -> list[AnnotatedText]:
    """Documents of nine words, drawn at random, that come three times."""
    segments = [random.Random(f"{seed}-{number}").sample([*words], 9) for number in range(count)]
    return [AnnotatedText((*each,) * 3, (True,) * 27, f"document {number}") for number, each in enumerate(segments)]


def readers(seeds: range, workers: Executor) -> dict[str, object]:
    """In how many models single and joint effects are right."""
    every = [*workers.map(readers_one, seeds)]
    return {"models": 2 * len(seeds), "right": {name: sum(one[name] for one in every) for name in every[0]}}


def random_model(seed: int) -> Transformer:
    """A small model of a drawn shape that has learnt nothing."""
    rng = random.Random(f"untrained-{seed}")
    default = load("default")
    assert default.tokenizer is not None
    n_heads, d_head = rng.choice((2, 4, 6, 8)), rng.choice((8, 16))
    stack = StackConfig(
        n_layers=rng.randint(1, 4),
        d_model=n_heads * d_head,
        n_heads=n_heads,
        d_head=d_head,
        d_mlp=4 * n_heads * d_head,
        n_ctx=128,
        d_vocab=default.config.d_vocab,
        causal=True,
        n_kv_heads=n_heads // 2 if rng.random() < 0.3 else None,
        norm=rng.choice((LayerNorm(), RMSNorm())),
    )
    model = Transformer(TransformerConfig(decoder=stack), default.tokenizer)
    initialise(model, seed)
    return model


def untrained_one(seed: int) -> list[str]:
    """The labels of a model in which there is nothing to find."""
    corpus = [*islice(stories(None, seed=11), 3 * DOCUMENTS)]
    table = label(random_model(seed), dict.fromkeys(OURS, corpus), documents=HIDDEN, words=WORDS, seed=seed).labels
    return [f"{row['evidence']}: {row['label']}" for row in table.to_dict("records")]


def untrained(seeds: range, workers: Executor) -> dict[str, object]:
    """How many models that have learnt nothing carry any label."""
    found = [*workers.map(untrained_one, seeds)]
    count, labels = len(seeds), Counter(chain.from_iterable(found))
    limit = TARGETS["any"] + 2 * (TARGETS["any"] * (1 - TARGETS["any"]) / count) ** 0.5
    return {"models": count, "any": sum(map(bool, found)) / count, "at_most": round(limit, 4), "labels": dict(labels)}


def copies_one(seed: int, corpus: str) -> list[str]:
    """The labels of copies of the default whose heads lost what they learnt, a head and label each."""
    model, texts = load("default"), read(corpus)
    return _labels(Shuffled(model, _COPIES, 1_000_000 + seed), texts, seed)


def shuffled_one(name: str, seed: int, corpus: str) -> tuple[int, list[str], list[str]]:
    """Of such a copy how many heads there are, labels with a head and evidence each, and what is said of it first."""
    trained, known = load(name), chosen()
    assert isinstance(trained, Transformer)
    model = shuffled_copy(trained, seed)
    run = Run((), seed, Stages(lambda stage, count: None), lambda page: None, Shards())
    results = behaviour_results.measure(run, model, known, [read(corpus)], None)
    results = behaviour_results.corrected([each for each in results if each.collected])
    effects = pd.concat([each.tested.table for each in results], ignore_index=True)
    collected = [each.collected for each in results if each.collected]
    corpora = {each.behaviour.name: each.corpus for each in results}
    some: dict[str, Any] = {"documents": HIDDEN, "words": WORDS, "seed": seed}
    found = label(model, corpora, behaviours=[*known.values()], collected=collected, effects=effects, **some)
    tables = {**behaviour_results.tables(results), "labels": found.labels, "evidence": found.evidence}
    said = sentences.sentences(tables, facts(tables, known), known)
    labels = [
        f"L{row['layer']}.H{row['head']} {row['behaviour']}, {row['evidence']}: {row['label']}"
        for row in found.labels.to_dict("records")
    ]
    heads = model.config.last.n_layers * model.config.last.n_heads
    return heads, labels, [f"{name} {seed}: {each.text}" for each in said if each.verdict != "none"]


def shuffled(seeds: range, corpus: str, workers: Executor) -> dict[str, object]:
    """How many heads of such copies have a label other than of position by attention, and what is said of any first."""
    asked = [(name, seed, corpus) for name in ("default", "minilm") for seed in seeds]
    heads, labels, said = zip(*workers.map(shuffled_one, *zip(*asked, strict=True)), strict=True)
    more = [[each.split(" ", 1) for each in own if " position, attention" not in each] for own in labels]
    share = sum(len({head for head, _ in own}) for own in more) / sum(heads)
    kinds = Counter(each.split(" ", 1)[1] for own in labels for each in own)
    told: dict[str, object] = {"copies": len(asked), "heads": sum(heads), "named": round(share, 4)}
    return told | {"sentences": [*chain(*said)], "labels": dict(kinds)}


def words_one(seed: int, corpus: str) -> list[str]:
    """The labels of the default on words in another order."""
    return _labels(load("default"), [scrambled(text, seed) for text in read(corpus)], seed)


def permuted_one(seed: int, corpus: str) -> list[str]:
    """The labels of the default on dependencies that say nothing beyond tag and distance."""
    texts = [repaired(text, seed) for text in read(corpus)]
    return _labels(load("default"), texts, seed, ["part-of-speech"])


def permuted_rungs_one(seed: int) -> list[str]:
    """The labels of planted heads, those of relations among them, on such dependencies."""
    composed = compose_rungs(seed, form=FORMS[seed % len(FORMS)])
    corpus = [repaired(text, seed) for text in linked_corpora(composed, seed)["part-of-speech"]]
    some = {"documents": FEWEST, "words": HIDDEN}
    return _labels(composed.model, corpus, seed, ["part-of-speech"], **some)


def repaired(text: AnnotatedText, seed: int) -> AnnotatedText:
    """The text with its dependencies between other pairs of words: of the same two tags, at about the same distance.

    About the same: on the same side, between the same powers of two. Every pair that fits is as likely, so that neither
    end tells the other; a word has one head, and dependencies for which no pair is left are dropped.
    """
    tags, relations = text.tags or (), text.relations or ()
    rng = random.Random(f"{seed}-{text.document}")
    bins = distance_bin(torch.arange(len(tags)) - torch.arange(len(tags))[:, None]).tolist()
    pairs = defaultdict(list)
    for at, to in permutations(range(len(tags)), 2):
        pairs[tags[at], tags[to], bins[at][to]].append((at, to))
    found = {}
    edges = [(at, to) for at, to in enumerate(text.heads or ()) if to != ROOT]
    for at, to in rng.sample(edges, len(edges)):
        fitting = [pair for pair in pairs[tags[at], tags[to], bins[at][to]] if pair[0] not in found]
        if fitting:
            own, head = rng.choice(fitting)
            found[own] = head, relations[at]
    heads, names = zip(*(found.get(at, (ROOT, "root")) for at in range(len(tags))), strict=True)
    return replace(text, heads=heads, relations=names)


def _labels(
    model: Model,
    corpus: Iterable[AnnotatedText],
    seed: int,
    behaviours: Iterable[str] = tuple(OURS),
    documents: int = HIDDEN,
    words: int = WORDS,
) -> list[str]:
    options = {"documents": documents, "words": words, "seed": seed, "effects": no_effects("any").table}
    table = label(model, dict.fromkeys(behaviours, corpus), **options).labels
    return [f"L{row['layer']}.H{row['head']} {row['label']}" for row in table.to_dict("records")]


def named(found: Sequence[list[str]], heads: int, meaningful: tuple[str, ...] = _MEANINGFUL) -> dict[str, object]:
    """How many heads have a label that says more than where they look."""
    kinds = [[name.split(" ", 1) for name in one] for one in found]
    meaning = [[(head, name) for head, name in one if name.startswith(meaningful)] for one in kinds]
    share = sum(len({head for head, _ in one}) for one in meaning) / (len(found) * heads)
    every, some = (Counter(name for one in names for _, name in one) for names in (kinds, meaning))
    return {"heads": len(found) * heads, "named": round(share, 4), "meaning": dict(some), "labels": dict(every)}


def covered_one(run: int, documents: int) -> pd.DataFrame:
    """Gains and intervals of a planted model's heads on one corpus, written for it."""
    composed = compose(0, n_layers=2, n_heads=4, behaviours=["previous-token", "offset", "noun-to-adjective"])
    corpus = texts.sentences(composed.lexicon, documents, run, apart=True)
    collectors = [module.Collector(composed.model, seed=run) for module in (position, part_of_speech)]
    tables = []
    for found in collect(Reading(composed.model, corpus), collectors):
        assert isinstance(found, Collected)
        fixed = replace(found, scored=[each for each in found.scored if _fixed(each)])
        tables.append(fixed.table(seed=run)[[*CELL, "sink", "gain", "ci_low", "ci_high"]])
    return pd.concat(tables, ignore_index=True)


def coverage(runs: int, workers: Executor, documents: int = 40) -> dict[str, object]:
    """Corpora of some documents, each written anew; the truth is the mean gain over all of them."""
    rows = pd.concat(workers.map(covered_one, range(runs), [documents] * runs, chunksize=10), ignore_index=True)
    return {"runs": runs, "documents": documents, **_covered(rows)}


def _fixed(scored: Scored) -> bool:
    """Whether the baseline is the same one in every corpus, so that there is one gain to cover."""
    return scored.corpus is None and (len(scored.baselines) == 1 or scored.constant == ("no preference", 1.0))


def _covered(rows: pd.DataFrame) -> dict[str, object]:
    """How many intervals hold the mean gain of their head and measure over all corpora."""
    cell = [*CELL, "sink"]
    means = rows.groupby(cell)["gain"].agg(["mean", "std", "count"]).reset_index()
    runs = means["count"].max()
    varied = means.loc[(means["std"] > 1e-6) & (means["count"] == runs)]  # measured in every corpus, and not a constant
    known = rows.merge(varied, on=cell).dropna(subset=["ci_low", "ci_high"])
    inside = (known["ci_low"] <= known["mean"]) & (known["mean"] <= known["ci_high"])
    share = inside.groupby([known[name] for name in cell]).mean()
    return {
        "columns": len(share),
        "intervals": len(known),
        "coverage": round(float(inside.mean()), 4),
        "quartiles": [round(float(value), 4) for value in np.quantile(share, [0.0, 0.25, 0.5, 0.75, 1.0])],
    }


def begin(*, smallest: bool) -> None:
    """Settings of a process: one thread, and for `smallest` few copies of heads and few words."""
    torch.set_num_threads(1)
    if smallest:
        null_bars.N_COPIES = 2
        globals().update(DOCUMENTS=5, HIDDEN=5, WORDS=6)


def main() -> None:
    """Ask all, and say how far from its target each is."""
    parser = argparse.ArgumentParser(description="Labels on planted models and on models that have learnt nothing.")
    parser.add_argument("--quick", action="store_true", help="20 models of each kind instead of 200")
    parser.add_argument("--smallest", action="store_true", help="one model of each kind, on a few short texts")
    parser.add_argument("--models", type=int, help="how many of each kind instead")
    parser.add_argument("--first", type=int, default=0, help="seed of the first model: several machines share 200")
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--corpus", default="tales:100:11", help="what copies are labelled on, and shuffled")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side, of one thread each")
    options = parser.parse_args()
    count = options.models or (1 if options.smallest else 20 if options.quick else 200)
    seeds = range(options.first, options.first + count)
    some, few = seeds[: max(count // 4, 1)], seeds[: max(count // 10, 1)]
    line = {"processor": platform.processor() or platform.machine(), "processes": options.processes}
    print(json.dumps({"name": "machine", **line, "torch": torch.__version__, "targets": TARGETS}), flush=True)
    start = partial(begin, smallest=options.smallest)
    with ProcessPoolExecutor(options.processes, get_context("spawn"), initializer=start) as workers:
        asked = {
            "planted": lambda: planted(seeds, workers),
            "rungs": lambda: rungs(some, workers),
            "sinks": lambda: sinks(some, workers),
            "readers": lambda: readers(some, workers),
            "untrained": lambda: untrained(seeds, workers),
            "copies": lambda: named([*workers.map(copies_one, some, repeat(options.corpus))], 32 * _COPIES),
            "shuffled": lambda: shuffled(few, options.corpus, workers),
            "words": lambda: named([*workers.map(words_one, some, repeat(options.corpus))], 32),
            "permuted": lambda: named([*workers.map(permuted_one, few, repeat(options.corpus))], 32, _MEANINGFUL[1:2]),
            "permuted rungs": lambda: named([*workers.map(permuted_rungs_one, some)], 16, _MEANINGFUL[1:2]),
            "coverage": lambda: coverage(3 * count if count < 200 else 1_000, workers),
        }
        lines = []
        for name, ask in asked.items():
            if options.only is None or name.startswith(options.only):
                began = time.perf_counter()
                line = {"name": name, **ask(), "seconds": round(time.perf_counter() - began, 1)}
                print(json.dumps(line), flush=True)
                lines.append(line)
    print(table(lines))


if __name__ == "__main__":
    main()
