"""Which heads follow grammar: from one tag to another, and between the two ends of a dependency?

Attention is read on tagged and parsed text. A head that only looks at a fixed offset follows many relations by
accident, so the best fixed offset is the baseline, through the same scorer. The causal test asks which heads carry the
number of a subject across a distractor to its verb.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from analyses.causal import Task, make_task, no_effects, patch_heads
from analyses.collecting import head_table, summary
from analyses.tables import Collected, Heads, Scored
from analyses.windows import Batch, Progress, Reading, Window
from interp import AnnotatedText, InputError, Tokenizer, Transformer
from interp.annotation import ROOT
from interp.patching import Pairs
from interp.patterns import Totals, pool, remove_sink
from interp.patterns.selection import accuracy
from interp.patterns.tags import TagTotals
from models.stories.words import NOUNS

BEHAVIOUR = "part-of-speech"
NEEDS = frozenset({"tags", "relations"})
HEADLINE = (
    "relation:det:head->dependent",
    "relation:amod:head->dependent",
    "relation:nsubj:head->dependent",
    "relation:obj:dependent->head",
    "tag:NOUN->ADJ",
    "tag:VERB->NOUN",
)

RELATIONS = ("det", "amod", "nsubj", "obj", "nmod:poss", "case", "aux", "cop", "advmod", "conj", "cc", "mark")
TAG_PAIRS = (
    *(("NOUN", "ADJ"), ("NOUN", "DET"), ("NOUN", "VERB"), ("NOUN", "NOUN"), ("NOUN", "ADP")),
    *(("VERB", "NOUN"), ("VERB", "PRON"), ("VERB", "PROPN"), ("VERB", "AUX"), ("VERB", "ADV")),
    *(("ADJ", "NOUN"), ("ADJ", "ADV"), ("PRON", "NOUN"), ("PRON", "PROPN"), ("ADP", "VERB"), ("ADP", "NOUN")),
)
BASELINE_OFFSETS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)

_SINKS = ("kept", "removed")


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    relations: Sequence[str] = RELATIONS,
    tag_pairs: Sequence[tuple[str, str]] = TAG_PAIRS,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Every head's relation accuracies (Clark 2019) and tag lifts, raw and without the first position.

    Relation accuracy: the word that gets most attention from one end of a dependency, itself and special tokens aside,
    is the other end; its baseline is the best fixed offset in words. Tag lift: see `interp.patterns.tags`; its
    baseline is 1. Texts without tags or relations are counted and left out.

    Returns the rows of `tables/heads`, with `attrs["counts"]` and `attrs["documents"]`.

    Raises:
        InputError: the corpus is empty or has no annotation that is needed.
    """
    collector = Collector(model, seed=seed, relations=relations, tag_pairs=tag_pairs)
    return head_table(collector, model, corpus, seed=seed, progress=progress)


class Collector:
    """Adds up relation accuracies and what tag lifts are made of."""

    def __init__(
        self,
        model: Transformer,
        *,
        seed: int = 0,
        relations: Sequence[str] = RELATIONS,
        tag_pairs: Sequence[tuple[str, str]] = TAG_PAIRS,
    ):
        self.heads, self.causal = Heads.of(model), model.config.last.causal
        self.names = [f"relation:{name}:{way}" for name in relations for way in ("dependent->head", "head->dependent")]
        self.columns = {name: index for index, name in enumerate(self.names)}
        self.lift_names = [f"tag:{x}->{y}" for x, y in tag_pairs]
        self.tags = {tag: index for index, tag in enumerate(sorted({tag for pair in tag_pairs for tag in pair}))}
        n_rows = self.heads.count + len(BASELINE_OFFSETS)
        self.selected = {sink: Totals.empty(n_rows, len(self.names)) for sink in _SINKS}
        pairs = [(self.tags[x], self.tags[y]) for x, y in tag_pairs]
        self.lifts = {sink: TagTotals(self.heads.count, pairs) for sink in _SINKS}
        self.counts: Counter[str] = Counter()

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        items = _relation_items(batch.windows, self.columns, self.causal, self.counts)
        tag_of, word_of = _tags_of_pieces(batch, self.tags)
        for sink in _SINKS:
            _add_relations(self.selected[sink], batch, items, sink == "removed")
            _add_lifts(self.lifts[sink], batch, tag_of, word_of, sink == "removed")

    def collected(self, reading: Reading) -> Collected:
        """What was added up.

        Raises:
            InputError: no word had a tag or relation that is measured.
        """
        if not (self.selected["kept"].rows.any() or self.lifts["kept"].rows.any()):
            raise InputError(
                "the corpus has no word with a tag or relation that is measured: "
                "expected universal tags and dependencies"
            )
        offsets = [f"offset {offset:+d}" for offset in BASELINE_OFFSETS]
        scored = [Scored(self.selected[sink], self.names, sink, offsets) for sink in _SINKS]
        scored += [Scored(self.lifts[sink], self.lift_names, sink, constant=("no preference", 1.0)) for sink in _SINKS]
        counts = {**reading.counts, **self.counts}
        return Collected(self.heads, BEHAVIOUR, scored=scored, counts=counts, **summary(reading))


# Relations: one item asks one word (the query) for another (the target).


@dataclass(frozen=True)
class _Items:
    """Questions put to a batch: which prompt, which query and target word (counted in the window), which measure."""

    prompt: Tensor
    query: Tensor
    target: Tensor
    column: Tensor
    at_sink: Tensor  # the target stands at the first position, which the second reading removes


def _relation_items(windows: list[Window], columns: dict[str, int], causal: bool, counts: Counter[str]) -> _Items:
    found: list[tuple[int, int, int, int, bool]] = []
    for prompt, window in enumerate(windows):
        text = window.text
        if text.heads is None or text.relations is None:
            counts["texts left out of relations: not parsed"] += 1
            continue
        at_sink = {window.word_of[0]}
        for word in range(window.start, window.stop):
            head, name = text.heads[word], text.relations[word]
            if head == ROOT or f"relation:{name}:dependent->head" not in columns:
                continue
            for query, target, way in ((word, head, "dependent->head"), (head, word, "head->dependent")):
                if not window.scores(query):
                    continue
                inside = window.start <= target < window.stop and window.pieces[target - window.start] > 0
                if not inside or (causal and target > query):
                    counts["relation ends left out: the other end is not visible"] += 1
                    continue
                column = columns[f"relation:{name}:{way}"]
                found.append((prompt, query - window.start, target - window.start, column, target in at_sink))
    prompt, query, target, column, sink = torch.tensor(found, dtype=torch.long).reshape(-1, 5).T
    return _Items(prompt, query, target, column, sink.bool())


def _add_relations(totals: Totals, batch: Batch, items: _Items, sink_removed: bool) -> None:
    if not len(items.prompt):
        return
    pattern, rows_kept = remove_sink(batch.pattern) if sink_removed else (batch.pattern, None)
    words = batch.words
    n_words = words.shape[1]
    scores = pool(pattern, words, words)[items.prompt, :, items.query]  # item head word
    scores = torch.cat([scores, _offset_baselines(items.query, n_words).to(scores)], 1)
    present = words.sum(-1)[items.prompt] > 0
    at = torch.arange(n_words, device=scores.device)
    candidates = present & (at != items.query.to(at)[:, None])
    right = accuracy(scores, candidates, at == items.target.to(at)[:, None])
    counted = torch.ones_like(right)
    if rows_kept is not None:
        counted[items.at_sink] = 0
        lost = pool((~rows_kept).to(pattern)[..., None], words, torch.ones_like(words[:, :1, :1]))[..., 0]
        heads = lost.shape[1]
        counted[:, :heads] *= (lost[items.prompt, :, items.query] == 0).to(right)
    weights = torch.nn.functional.one_hot(items.column, totals.scores.shape[-1]).to(right)[:, None] * counted[..., None]
    totals.add(batch.groups[items.prompt], right[..., None] * weights, weights)


def _offset_baselines(query: Tensor, n_words: int) -> Tensor:
    """What a head fixed at each offset would look at: item baseline word."""
    target = query[:, None] + torch.tensor(BASELINE_OFFSETS)
    return (target[..., None] == torch.arange(n_words)).float()


# Tags.


def _tags_of_pieces(batch: Batch, tags: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Each piece's tag (an unlisted one gets an index of its own) and word; -1 where there is none."""
    shape = batch.tokens.ids.shape
    tag_of, word_of = torch.full(shape, -1), torch.full(shape, -1)
    for row, window in enumerate(batch.windows):
        if window.text.tags is None:
            continue
        for at, word in enumerate(window.word_of):
            if word >= 0:
                tag_of[row, at] = tags.get(window.text.tags[word], len(tags))
                word_of[row, at] = word
    return tag_of.to(batch.pattern.device), word_of.to(batch.pattern.device)


def _add_lifts(totals: TagTotals, batch: Batch, tags: Tensor, words: Tensor, sink_removed: bool) -> None:
    allowed = batch.rows.visible & batch.rows.scored[:, :, None]
    pattern = batch.pattern
    if sink_removed:
        pattern, _ = remove_sink(pattern)
        allowed = allowed.clone()
        allowed[..., 0] = False
    totals.add(batch.groups, pattern, tags, words, allowed)


# The causal test: the number of the subject, across a distractor.

_ADJACENT = ("The {subject}",)
_ACROSS = (
    "The {subject} near the {distractor}",
    "The {subject} behind the {distractor}",
    "The {subject} with the {distractor}",
)


def effects(model: Transformer, *, pairs: int = 40, seed: int = 0, progress: Progress | None = None) -> pd.DataFrame:
    """Which heads carry the subject's number to its verb: the rows of `tables/effects` for two tasks.

    `agreement` has another noun between subject and verb, singular in half of the pairs; `agreement-adjacent` has none,
    so that a model which only hears the nearest noun still shows where it hears it. Clean and corrupted prompts have
    subjects of different number (one noun's two forms where both have the same number of tokens, else two nouns); the
    answers are " was" and " were", and either number is the clean one in half of the pairs.
    """
    if model.output is None:
        return no_effects(BEHAVIOUR)
    across = "Which heads carry the number of the subject across another noun to was or were?"
    adjacent = "Which heads carry the number of the subject to was or were right behind it?"
    tasks = [
        make_task("agreement", across, lambda: _agreement(model, pairs, seed, "agreement", across, _ACROSS)),
        make_task(
            "agreement-adjacent",
            adjacent,
            lambda: _agreement(model, pairs, seed, "agreement-adjacent", adjacent, _ADJACENT),
        ),
    ]
    return patch_heads(model, BEHAVIOUR, tasks, seed=seed)


def _agreement(model: Transformer, count: int, seed: int, name: str, question: str, frames: Sequence[str]) -> Task:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer")
    rng = random.Random(seed)
    subjects = _subjects_of_equal_length(tokenizer, rng)
    if not subjects:
        raise InputError("no singular and plural noun have the same number of tokens")
    clean, corrupt, right, wrong = [], [], [], []
    for number in range(count):
        singular, plural = rng.choice(subjects)
        distractor = rng.choice([noun for noun in NOUNS if not {singular, plural} & {*noun}])[number % 2]
        frame = rng.choice(frames)
        forms = [(singular, " was"), (plural, " were")]
        if number // 2 % 2:  # swapped both ways
            forms.reverse()
        prompts = [frame.format(subject=subject, distractor=distractor) for subject, _ in forms]
        for column, value in zip((clean, corrupt, right, wrong), (*prompts, *(verb for _, verb in forms)), strict=True):
            column.append(value)
    found = Pairs.from_texts(model, clean, corrupt, right, wrong, drop=True)
    return Task(name, question, found, left_out=found.left_out)


def _subjects_of_equal_length(tokenizer: Tokenizer, rng: random.Random) -> Sequence[tuple[str, str]]:
    """Singular and plural with equally many tokens after "The": of one noun where there are such, else of two."""

    def length(noun: str) -> int:
        return len(tokenizer.continuation(" " + noun))

    own = [noun for noun in NOUNS if length(noun[0]) == length(noun[1])]
    if len(own) >= 8:
        return own
    plurals = [plural for _, plural in NOUNS]
    rng.shuffle(plurals)
    mixed = [
        (one, many) for one, _ in NOUNS for many in plurals[:12] if length(one) == length(many) and many[:2] != one[:2]
    ]
    return own + mixed


if __name__ == "__main__":
    from analyses.cli import run_alone

    run_alone(BEHAVIOUR)
