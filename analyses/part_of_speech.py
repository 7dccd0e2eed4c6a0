"""Which heads follow grammar: from one tag to another, and between the two ends of a dependency?

We read attention on tagged and parsed text. A head that looks at a fixed offset follows many relations by accident, so
the baseline is the best fixed offset, in the same scorer. The causal test asks which heads carry a subject's number to
its verb, across a distractor.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from analyses.measures.definitions import BEHAVIOURS, DECLARED, Behaviour, Claims, Measure, Rival, pieces_of
from analyses.measures.head_tables import Heads, Scored
from analyses.reading.inputs import mask_of
from analyses.reading.windows import Batch, Progress, Window
from analyses.scoring.choices import PairScorer
from analyses.scoring.collectors import Scoring, Sinks, Summed, measured
from analyses.scoring.rules import (
    BACKWARD,
    LADDER,
    NEAREST,
    OFFSETS,
    RELATION,
    RELATIONS,
    WAYS,
    Pair,
    Records,
    edges,
)
from analyses.scoring.strata import PREDICTED, in_strata, predicted, strata_of
from analyses.tasks.causal_tests import PAIRS, Builders, Effects, Task, effects_of
from interp import AnnotatedText, InputError, Model, Tokenizer
from interp.patching import Pairs
from interp.patterns.rows import SINKS
from interp.patterns.tags import TagTotals, tag_sides
from interp.tokens import NO_WORD
from models.stories.lexicon import NOUNS

__all__ = ["BEHAVIOUR", "TASKS", "Collector", "effects", "measure", "relation_measure", "tag_measure"]
__dir__ = __all__.copy  # `dir()` lists the public names

UNIVERSAL_TAGS = frozenset(DECLARED["tags"]["universal"].split())
TAG_PAIRS = tuple(
    (query, key) for query, _, key in (each.partition("->") for each in DECLARED["tags"]["pairs"].split())
)


def measure(
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    relations: Sequence[str] = RELATIONS,
    tag_pairs: Sequence[tuple[str, str]] = TAG_PAIRS,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Every head's relation accuracies (Clark 2019) and tag lifts, with and without the first position.

    Relation accuracy: from one end of a dependency, how often is the other end the most attended word? The query word
    itself and special tokens do not count. The baseline is the best fixed offset in words. Tag lift: see
    `interp.patterns.tags`; its baseline is 1. Texts without tags or relations are counted and left out.

    Returns the rows of `tables/heads`.

    Raises:
        InputError: the corpus is empty, or lacks the annotation.
    """
    collector = partial(Collector, seed=seed, relations=relations, tag_pairs=tag_pairs)
    return measured(collector, model, corpus, seed=seed, progress=progress).heads


# What each measure claims.

_AGREEMENT = ("agreement", "agreement-adjacent")
NO_PREFERENCE = Rival("no preference", 1.0)


def relation_measure(relation: str, way: str) -> Measure:
    """From one end of a dependency to the other; `way` is one of `WAYS`."""
    source, target = way.split("->")
    name, pairs = f"relation:{relation}:{way}", edges([relation], [way])
    return Measure(
        name,
        f"from the {source} of {relation} to its {target}",
        pairs=lambda text: [pair[:2] for pair in pairs(text)],
        rivals=OFFSETS,
        null="same distance",
        tasks=_AGREEMENT if relation == "nsubj" else (),
        recorded=name,
    )


def predicting_measure(relation: str, way: str, *, masked: bool = False) -> Measure:
    """From where a model predicts a word to the word at the relation's other end.

    A causal model predicts a word at the token before it, other models at a mask (`masked`). Only causal models have
    knock-outs of this measure: with masks, the knock-outs of the relation itself already read masked words.
    """
    source, target = way.split("->")
    name = f"relation-{'masked' if masked else 'predicting'}:{relation}:{way}"

    def pairs(text: AnnotatedText) -> list[tuple[int, int]]:
        return [pair[:2] for pair in predicted(text) if PREDICTED[pair[2]] == (relation, way)]

    return Measure(
        name,
        f"from {'a masked' if masked else 'the token before the'} {source} of {relation} to its {target}",
        pairs=pairs,
        rivals=OFFSETS if masked else OFFSETS[:5],
        null="same distance",
        foretells=not masked,
        masked=masked,
        hidden=not masked,
        tasks=_AGREEMENT if target == "dependent" or relation == "aux-subject" else (),
    )


_PREDICTING, _MASKED = ([predicting_measure(*each, masked=masked) for each in PREDICTED] for masked in (False, True))


def transposed_measure(relation: str) -> Measure:
    """Of all words, is it the head of the relation that attends most to the dependent?"""
    return Measure(
        f"relation:{relation}:head->dependent:transposed",
        f"of all that attend to the dependent of {relation}, its head does most",
        rivals=OFFSETS,
        null="same distance",
        binary=True,
        label=None,
    )


def tag_measure(query: str, key: str) -> Measure:
    """From words of one tag to words of another, beyond what distance explains."""
    name = f"tag:{query}->{key}"
    return Measure(
        name,
        f"from words tagged {query} to words tagged {key}",
        unit="lift",
        claims=lambda window: _tagged(window, query, key),
        rivals=(NO_PREFERENCE,),
        null="same distance",
        tasks=_AGREEMENT if (query, key) == ("VERB", "NOUN") else (),
        recorded="tag" if (query, key) == ("NOUN", "ADJ") else name,  # training curves show "tag"
    )


def _tagged(window: Window, query: str, key: str) -> Claims:
    tags = window.text.tags
    if tags is None:
        return {}
    keys = [word for word in window.columns if tags[word] == key]
    return pieces_of(window, ((word, other) for word in window.columns if tags[word] == query for other in keys))


_NOTHING = "the corpus has no word with a tag or relation that is measured: expected universal tags and dependencies"


class Collector(Scoring):
    """Adds up relation accuracies and the parts of tag lifts."""

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        heads: Heads | None = None,
        relations: Sequence[str] = RELATIONS,
        tag_pairs: Sequence[tuple[str, str]] = TAG_PAIRS,
        rules: bool = True,
        transposed: bool = True,
        removed: bool = True,
    ):
        """`rules` keeps choices for `tables/rules`; `removed` also reads without the first position."""
        super().__init__(model, BEHAVIOUR.name, heads, nothing=_NOTHING)
        self.relations = {*relations}

        def scorer(
            measures: Sequence[Measure], pairs: Callable[[AnnotatedText], list[Pair]], tiers: Any, **options: Any
        ) -> PairScorer:
            """A scorer of measures with their strata; `tiers` are the rules to compare with, the simplest first."""
            narrow, columns = strata_of(measures)
            measures, records = [*measures, *narrow], None
            if rules:
                records = Records(self.heads, measures, tiers, RELATION)
                records.unseen[:] = 0
                self.records.append(records)
            options |= {"records": records, "sinks": SINKS if removed else SINKS[:1]}
            return PairScorer(self.heads, measures, in_strata(pairs, columns), **options)

        everything, unseen = (OFFSETS, (*NEAREST, *LADDER)), "relation ends left out: the other end is not visible"
        measures = [relation_measure(name, way) for name in relations for way in WAYS]
        self.chosen = scorer(measures, edges(relations), everything, counts=self.counts, unseen=unseen)
        self.lifts = Lifts(self.heads, tag_pairs, removed=removed)
        self.lifted, self.parts = (self.lifts.measures, self.lifts.totals["kept"]), [self.chosen, self.lifts]
        mask_id, shared = mask_of(model, self.heads), {"counts": Counter[str](), "unseen": "-"}
        if relations == RELATIONS and self.heads.causal:
            tiers = OFFSETS[:5], (*BACKWARD, *LADDER)
            self.parts.append(scorer(_PREDICTING, predicted, tiers, predicting=True, **shared))
        elif relations == RELATIONS and mask_id is not None:
            self.parts.append(scorer(_MASKED, predicted, everything, mask_id=mask_id, **shared))
        if transposed:
            turned, pairs = [transposed_measure(name) for name in relations], edges(relations, WAYS[:1])
            self.parts.append(PairScorer(self.heads, turned, pairs, self.counts, received=True))

    def add(self, batch: Batch) -> None:
        """Score one batch, and count what is left out: words of another tag set are no measure's keys."""
        super().add(batch)
        for window in batch.windows:
            text, words = window.text, slice(window.scored_from, window.stop)
            foreign = sum(tag not in UNIVERSAL_TAGS for tag in (text.tags or ())[words])
            heads, names = (text.heads or ())[words], (text.relations or ())[words]
            edges_shown = enumerate(zip(heads, names, strict=False), window.scored_from)
            itself = sum(head == dependent and name in self.relations for dependent, (head, name) in edges_shown)
            unparsed = text.heads is None or text.relations is None
            counts = {
                "words with a tag that is not universal": foreign,
                "relations left out: a word that is its own head": itself,
                "texts left out of relations: not parsed": int(unparsed),
            }
            self.counts.update({name: count for name, count in counts.items() if count})


class Lifts(Summed):
    """Adds up the parts of tag lifts."""

    def __init__(self, heads: Heads, tag_pairs: Sequence[tuple[str, str]], *, removed: bool = True):
        self.measures = [tag_measure(x, y) for x, y in tag_pairs]
        self.tags = {tag: index for index, tag in enumerate(sorted({tag for pair in tag_pairs for tag in pair}))}
        pairs = [(self.tags[x], self.tags[y]) for x, y in tag_pairs]
        self.totals: dict[Sinks, TagTotals] = {}
        for sink in SINKS if removed else SINKS[:1]:
            self.totals[sink] = TagTotals(heads.count, pairs, causal=heads.causal)
        self.parts = [*self.totals.values()]

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        word_of, scored, visible = batch.word_of, batch.rows.scored, batch.rows.visible
        has_word = (word_of != NO_WORD) & (word_of < batch.pieces.shape[1])
        other_words = (word_of[:, :, None] != word_of[:, None, :]) & has_word[:, None]
        totals, word = self.totals["kept"], word_of.clamp(min=0)
        by_word = batch.by_word(lambda text: [self.tags.get(tag, len(self.tags)) for tag in text.tags or ()])
        tags = torch.where(word_of == NO_WORD, -1, by_word.gather(1, word))  # -1: none; foreign tags share one number
        asking = totals.asking(torch.where(scored, tags, -1), batch.pieces.gather(1, word))
        sides, rest = tag_sides(totals.bins, batch.pattern, other_words & visible, tags, asking)
        totals.add(batch.groups, sides, asking, visible)
        if "removed" not in self.totals:
            return
        visible_rest = visible.clone()
        visible_rest[..., 0] = False
        self.totals["removed"].add(batch.groups, rest, asking, visible_rest, batch.sink.scale)

    def scored(self) -> list[Scored]:
        """The sums of each reading."""
        return [Scored(totals, self.measures, sink, null=totals.null) for sink, totals in self.totals.items()]


# The causal test: the number of the subject, across a distractor.


def effects(model: Model, *, pairs: int | None = None, seed: int = 0) -> Effects:
    """Which heads carry the subject's number to its verb, in two tasks.

    `agreement` has another noun between subject and verb, singular in half of the pairs. `agreement-adjacent` has none,
    so it also finds heads of a model that only uses the nearest noun. Clean and corrupted subjects differ in number.
    They are two forms of one noun if these have the same number of tokens, else two nouns. The answers are " was" and
    " were"; each number is the clean one in half of the pairs.
    """
    return effects_of(model, BEHAVIOUR.name, TASKS, pairs=pairs, seed=seed)


def _agreement(model: Model, count: int | None, seed: int, name: str, question: str) -> Task:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer")
    rng = random.Random(seed)
    subjects = _subjects_of_equal_length(tokenizer, rng)
    if not subjects:
        raise InputError("no singular and plural noun have the same number of tokens")
    rng.shuffle(subjects)
    rows = []
    for number in range(count or PAIRS):
        turn, place = divmod(number, len(subjects))  # use all subjects before any repeats
        singular, plural = subjects[place]
        distractor = rng.choice([noun for noun in NOUNS if not {singular, plural} & {*noun}])
        frame = rng.choice(DECLARED["tasks"][name]["frames"])
        forms = [(singular, " was"), (plural, " were")]
        if (number + turn) // 2 % 2:  # each subject is clean in both numbers
            forms.reverse()
        prompts = [frame.format(subject=subject, distractor=distractor[(number + turn) % 2]) for subject, _ in forms]
        rows.append((*prompts, *(verb for _, verb in forms), (singular, plural, distractor.singular, frame)))
    clean, corrupt, right, wrong, related = map(list, zip(*rows, strict=True))
    pairs = Pairs.from_texts(model, clean, corrupt, right, wrong, drop=True)
    ways = ("subject", "subject in the plural", "distractor", "frame")
    clusters = {way: [related[place][index] for place in pairs.kept] for index, way in enumerate(ways)}
    answers = [right[place].strip() for place in pairs.kept]
    return Task(name, question, pairs, left_out=pairs.left_out, clusters=clusters, answers=answers)


def _subjects_of_equal_length(tokenizer: Tokenizer, rng: random.Random) -> list[tuple[str, str]]:
    """Singulars and plurals with the same number of tokens after "The", of one noun if possible, else of two."""

    def length(noun: str) -> int:
        return len(tokenizer.continuation(" " + noun))

    same_noun = [(one, many) for one, many in NOUNS if length(one) == length(many)]
    if len(same_noun) >= 8:
        return same_noun
    plurals = [plural for _, plural in NOUNS]
    rng.shuffle(plurals)
    mixed = [
        (one, many) for one, _ in NOUNS for many in plurals[:12] if length(one) == length(many) and many[:2] != one[:2]
    ]
    return same_noun + mixed


_RELATIONS = [relation_measure(name, way) for name in RELATIONS for way in WAYS]
TASKS: Builders = dict.fromkeys(("agreement", "agreement-adjacent"), _agreement)
BEHAVIOUR = Behaviour(
    **BEHAVIOURS["part-of-speech"],
    measures=(
        *_RELATIONS,
        *(tag_measure(x, y) for x, y in TAG_PAIRS),
        *map(transposed_measure, RELATIONS),
        *strata_of(_RELATIONS)[0],
        *_PREDICTING,
        *strata_of(_PREDICTING)[0],
        *_MASKED,
        *strata_of(_MASKED)[0],
    ),
    collector=Collector,
    needs=frozenset({"tags", "relations"}),
    effects=effects,
    tasks=TASKS,
    bare={"rules": False, "transposed": False},
    null={"removed": False},
    cost=70,
)
