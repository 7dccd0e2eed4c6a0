"""Which heads follow reference: from a pronoun to what it stands for?

Attention is read on texts with coreference chains: among the mentions before a pronoun, does the head choose one of its
chain? Nearness and sameness of form solve most of such items, so they are the baselines, through the same scorer. The
causal test swaps the antecedent's gender and asks which heads carry it to the pronoun.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pandas as pd
import torch
from torch import Tensor

from analyses.antecedents import BASELINES, AntecedentItem, antecedent_items, unasked
from analyses.causal import Task, make_task, no_effects, patch_heads
from analyses.collecting import head_table, summary
from analyses.tables import Collected, Heads, Scored
from analyses.windows import Batch, Progress, Reading, Window
from interp import AnnotatedText, InputError, TokenBatch, Transformer
from interp.patching import Pairs
from interp.patching.pairs import first_difference
from interp.patterns import Totals, pool, remove_sink
from interp.patterns.selection import accuracy, share
from models.stories.words import FEMININE_NAMES, MASCULINE_NAMES

BEHAVIOUR = "coreference"
NEEDS = frozenset({"chains"})
MEASURES = ("antecedent", "antecedent:named", "antecedent-mass", "antecedent-mass:named")
HEADLINE = ("antecedent", "antecedent:named", "antecedent-mass")

_SINKS = ("kept", "removed")


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    pronouns: Collection[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """How often every head's attention from a pronoun chooses a mention of its chain, among all mentions before it.

    `antecedent` is the share of pronouns whose most attended candidate is in the chain, `antecedent-mass` the share of
    the candidates' attention that is; `:named` keeps the items whose nearest true antecedent is a name or a noun. The
    baseline is the strictest of nearest, first, random, same gender and same form.

    Returns the rows of `tables/heads`, with `attrs["counts"]` and `attrs["documents"]`.

    Raises:
        InputError: the corpus is empty, has no chains, or no pronoun with a right and a wrong candidate before it.
    """
    collector = Collector(model, seed=seed, pronouns=pronouns)
    return head_table(collector, model, corpus, seed=seed, progress=progress)


class Collector:
    """Adds up antecedent selection and mass."""

    def __init__(self, model: Transformer, *, seed: int = 0, pronouns: Collection[str] | None = None):
        self.heads, self.n_ctx = Heads.of(model), model.config.n_ctx
        self.totals = {sink: Totals.empty(self.heads.count + len(BASELINES), len(MEASURES)) for sink in _SINKS}
        self.counts: Counter[str] = Counter()
        # a long text comes in many windows
        self._items_of = lru_cache(512)(partial(antecedent_items, pronouns=pronouns))
        self._unasked_of = lru_cache(512)(partial(unasked, pronouns=pronouns))

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        questions = [
            question
            for prompt, window in enumerate(batch.windows)
            for question in _questions(prompt, window, self._items_of(window.text), self.counts)
        ]
        for window in batch.windows:
            self.counts.update(reason for word, reason in self._unasked_of(window.text) if window.scores(word))
        if questions:
            for sink in _SINKS:
                _add(self.totals[sink], batch, questions, sink == "removed")

    def collected(self, reading: Reading) -> Collected:
        """What was added up.

        Raises:
            InputError: no pronoun had a right and a wrong candidate before it.
        """
        if not self.totals["kept"].rows.any():
            raise InputError(
                "the corpus has no pronoun with both a right and a wrong mention before it in one window of the "
                f"model's context ({self.n_ctx} tokens): expected coreference chains, and a context that shows them"
            )
        scored = [Scored(self.totals[sink], MEASURES, sink, list(BASELINES)) for sink in _SINKS]
        counts = {**reading.counts, **self.counts}
        return Collected(self.heads, BEHAVIOUR, scored=scored, counts=counts, **summary(reading))


@dataclass(frozen=True)
class _Question:
    """An item as one window shows it; words are counted in the window."""

    prompt: int
    item: AntecedentItem
    first_word: int
    at_sink: int  # the word at the first position, which the second reading removes; -1 for none


def _questions(prompt: int, window: Window, items: list[AntecedentItem], counts: Counter[str]) -> Iterable[_Question]:
    if window.text.mentions is None:
        counts["texts left out of coreference: no chains"] += 1
        return
    for item in items:
        if not window.scores(item.pronoun):
            continue
        shown = _restrict(item, lambda word: word >= window.start and window.pieces[word - window.start] > 0)
        if shown is None:
            counts["pronouns left out: no right and wrong candidate within the window"] += 1
            continue
        yield _Question(prompt, shown, window.start, window.word_of[0])


def _restrict(item: AntecedentItem, keep: Callable[[int], bool]) -> AntecedentItem | None:
    """The item with the candidates that are kept; None where no right or no wrong one is left."""
    kept = [index for index, word in enumerate(item.candidates) if keep(word)]
    correct = tuple(item.correct[index] for index in kept)
    if not any(correct) or all(correct):
        return None
    return replace(
        item,
        candidates=tuple(item.candidates[index] for index in kept),
        correct=correct,
        genders=tuple(item.genders[index] for index in kept),
        forms=tuple(item.forms[index] for index in kept),
    )


def _add(totals: Totals, batch: Batch, questions: list[_Question], sink_removed: bool) -> None:
    if sink_removed:  # what stands at the first position is no candidate there
        restricted = [
            replace(question, item=item)
            for question in questions
            if (item := _restrict(question.item, lambda word, sink=question.at_sink: word != sink)) is not None
        ]
        questions = restricted
    if not questions:
        return
    scores, lost = _attention_from_pronouns(batch, questions, sink_removed)
    candidates, correct, baselines = _candidates(questions, scores.shape[-1])
    candidates, correct = candidates.to(scores.device), correct.to(scores.device)
    scores = torch.cat([scores, baselines.to(scores)], 1)
    kept = torch.cat([~lost, torch.ones(len(questions), len(BASELINES), dtype=torch.bool, device=lost.device)], 1)
    right = accuracy(scores, candidates, correct)
    among, any_mass = share(scores, candidates, correct)
    named = torch.tensor([question.item.named for question in questions], device=scores.device)[:, None]
    values = torch.stack([right, right, among, among], -1)
    selected, massive = kept.to(right), kept * any_mass
    weights = torch.stack([selected, selected * named, massive, massive * named], -1)
    groups = batch.groups[torch.tensor([question.prompt for question in questions])]
    totals.add(groups, values * weights, weights)


def _attention_from_pronouns(batch: Batch, questions: list[_Question], sink_removed: bool) -> tuple[Tensor, Tensor]:
    """Attention from each pronoun to each word of its window (item head word), and rows lost with the sink."""
    per_prompt = [[q for q in questions if q.prompt == prompt] for prompt in range(len(batch.windows))]
    scores, lost = [], []
    for prompt, asked in enumerate(per_prompt):
        if not asked:
            continue
        own = batch.words[prompt, [q.item.pronoun - q.first_word for q in asked]]  # item position
        rows = own.any(0)  # the pronouns' pieces: no other row is needed
        pattern, own = batch.pattern[prompt, None, :, rows], own[:, rows]
        gone = torch.zeros_like(pattern[0, ..., 0])
        if sink_removed:
            pattern, kept = remove_sink(pattern)
            gone = (~kept[0]).to(pattern)
        scores.append(pool(pattern, own[None], batch.words[prompt, None])[0].transpose(0, 1))
        lost.append((gone @ own.T > 0).T)
    return torch.cat(scores), torch.cat(lost)


def _candidates(questions: list[_Question], n_words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of candidates and of correct ones (item word), and what each baseline looks at (item baseline word)."""
    candidates = torch.zeros(len(questions), n_words, dtype=torch.bool)
    correct = torch.zeros_like(candidates)
    baselines = torch.zeros(len(questions), len(BASELINES), n_words)
    for row, question in enumerate(questions):
        at = torch.tensor(question.item.candidates) - question.first_word
        candidates[row, at] = True
        correct[row, at] = torch.tensor(question.item.correct)
        for index, baseline in enumerate(BASELINES.values()):
            baselines[row, index, at] = torch.tensor(baseline(question.item))
    return candidates, correct, baselines


# The causal test: the gender of the antecedent.

_FRAMES = (
    ("{name} was happy because", " he", " she"),
    ("{name} was sad because", " he", " she"),
    ("{name} lost the ball in the park.", " He", " She"),
    ("{name} had a big dog.", " He", " She"),
)
_NEUTRAL = "The child"


def effects(model: Transformer, *, pairs: int = 40, seed: int = 0, progress: Progress | None = None) -> pd.DataFrame:
    """Which heads carry the antecedent's gender to the pronoun: the rows of `tables/effects` for the task `gender`.

    Clean and corrupted prompts differ in one name, of either gender and of equally many tokens; the answers are " he"
    and " she" (or " He" and " She"), and either is the clean one in half of the pairs. The gender-neutral prompt of a
    pair says how much of the answer was there anyway (Vig 2020).
    """
    if model.output is None:
        return no_effects(BEHAVIOUR)
    question = "Which heads carry the gender of the one who was named to he or she?"
    task = make_task("gender", question, lambda: _gender(model, pairs, seed, question))
    return patch_heads(model, BEHAVIOUR, [task], seed=seed)


def _gender(model: Transformer, count: int, seed: int, question: str) -> Task:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer")
    rng = random.Random(seed)
    lengths = {name: len(tokenizer.pieces(name).ids) for name in (*MASCULINE_NAMES, *FEMININE_NAMES)}
    names = [(m, f) for m in MASCULINE_NAMES for f in FEMININE_NAMES if lengths[m] == lengths[f]]
    if not names:
        raise InputError("no masculine and feminine name have the same number of tokens")
    clean, corrupt, right, wrong, neutral = [], [], [], [], []
    for number in range(count):
        masculine, feminine = rng.choice(names)
        frame, he, she = rng.choice(_FRAMES)
        forms = [(masculine, he), (feminine, she)]
        if number % 2:  # swapped both ways
            forms.reverse()
        prompts = [frame.format(name=name) for name, _ in forms]
        columns = (clean, corrupt, right, wrong, neutral)
        values = (*prompts, *(pronoun for _, pronoun in forms), frame.format(name=_NEUTRAL))
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    found = Pairs.from_texts(model, clean, corrupt, right, wrong, drop=True)
    rows = []
    for place in found.kept:
        pronouns = tokenizer.continuation(right[place]), tokenizer.continuation(wrong[place])
        shared = pronouns[0][: first_difference(*pronouns)]
        rows.append([*tokenizer.prefix, *tokenizer.pieces(neutral[place]).ids, *shared])
    return Task("gender", question, found, TokenBatch.from_rows(rows), found.left_out)


if __name__ == "__main__":
    from analyses.cli import run_alone

    run_alone(BEHAVIOUR)
