"""Which heads follow reference: from a pronoun to what it stands for?

Attention is read on texts with coreference chains: among the mentions before a pronoun, does the head choose one of its
chain? Nearness and sameness of form solve most of such items, so they are the baselines, through the same scorer. The
causal test (`analyses.tasks.gender_pairs`) swaps two people and asks which heads carry the gender of the right one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analyses.collectors import Readings, ReadsFewRows, Scoring, measured
from analyses.measures import BEHAVIOURS, Behaviour, Looks, Measure, Rival, declared, pieces_of
from analyses.reading.windows import Batch, Progress, Window, by_text
from analyses.rivals.antecedents import (
    PREDICTING_RIVALS,
    RANDOM,
    RIVALS,
    AntecedentItem,
    antecedent_items,
    items_and_unasked,
)
from analyses.rivals.rules import ANTECEDENT, NO_CHOICE, Chosen, Records, followed
from analyses.tables.head_tables import Heads, Scored
from analyses.tasks.gender_pairs import effects
from interp import AnnotatedText, Model
from interp.patterns import nulls, remove_sink, selection
from interp.patterns.rows import SINKS


def measure(
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    pronouns: Collection[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """How often every head's attention from a pronoun chooses a mention of its chain, among all mentions before it.

    `antecedent` is the share of pronouns whose most attended candidate is in the chain, `antecedent-mass` the share of
    the candidates' attention that is; `:named` keeps the items whose nearest true antecedent is a name or a noun. Of a
    causal model `antecedent-predicting` asks the same of the token before the pronoun. The baseline is the strictest of
    `analyses.rivals.antecedents.RIVALS`, from the token before the pronoun of those that do not know the pronoun.

    Returns the rows of `tables/heads`.

    Raises:
        InputError: the corpus is empty, has no chains, or no pronoun with a right and a wrong candidate before it.
    """
    collector = Collector(model, seed=seed, pronouns=pronouns)
    return measured(collector, model, corpus, seed=seed, progress=progress).heads


def _chain(shown: Window, *, named: bool = False, predicting: bool = False) -> Looks:
    """From a pronoun's pieces, or from the token before them, to the head words of its chain before it."""
    looks_by_row: Looks = {}
    for item in _shown(shown, antecedent_items(shown.text), Counter()):
        right = [(item.pronoun, word) for word, is_right in zip(item.candidates, item.correct, strict=True) if is_right]
        looks = pieces_of(shown, right) if item.named or not named else {}
        looks_by_row |= {min(looks) - 1: looks[min(looks)]} if predicting and looks else looks
    return looks_by_row


def _both(name: str, rivals: Sequence[Rival], *, label: str | None = None, recorded: str = "") -> list[Measure]:
    """A measure of all pronouns, and the same of those whose nearest true antecedent is a name or a noun.

    The named items carry the evidence of a coreference head, and the label says what it is.
    """
    shared: dict[str, Any] = {"rivals": rivals, "null": "same distance", "together": name}
    claims = partial(_chain, predicting=name == "antecedent-predicting")
    every = declared("coreference", name, claims=claims, label=None, reference="nearest", recorded=recorded, **shared)
    named = replace(
        every,
        name=f"{name}:named",
        title="the same where the nearest true antecedent is a name or a noun",
        words=every.words.named,
        claims=partial(claims, named=True),
        label=label,
        reference="",
        recorded="",
        tasks=("gender", "name-gender") if label else (),
    )
    return [every, named]


MEASURES = (
    *_both("antecedent", RIVALS, label="antecedent", recorded="antecedent"),
    *_both("antecedent-mass", RIVALS),
)
PREDICTING = (*_both("antecedent-predicting", PREDICTING_RIVALS, label="antecedent-predicting"),)


class _Reader:
    """Attention read at one place, from pronouns or from the tokens before them, and what it adds up to."""

    def __init__(self, heads: Heads, measures: Sequence[Measure], *, rules: bool):
        self.measures, self.rivals = measures, measures[0].rivals
        self.predicting = measures[0].foretells
        self.sums = Readings(heads, measures)
        self.choosing = [at for at, rival in enumerate(self.rivals) if rival is not RANDOM]
        nearest, first, *others = (self.rivals[at] for at in self.choosing)
        self.records = Records(heads, measures[:2], ([nearest, first], others), ANTECEDENT) if rules else None

    def read(self, batch: Batch, questions: "Sequence[_Question]") -> None:
        """Add the items of a batch, in both readings."""
        items: _Items | None = None
        before: list[_Question] = []
        for sink in SINKS:
            shown = [*questions] if sink == "kept" else _without_sink(questions)
            if shown and shown != before:
                items, before = _Items.of(shown, self.rivals, batch.device), shown
            if not shown or items is None:
                continue
            where, removed = (items.prompt, items.pronoun, items.candidates), sink == "removed"
            scores, lost = attention_to_candidates(batch, *where, sink_removed=removed, predicting=self.predicting)
            self._add(sink, batch.groups[items.prompt.cpu()], items, scores, lost)
            if sink == "kept" and self.records is not None and not self.records.full:
                self.records.add(_beside_rules(batch, items, scores, self.choosing))

    def _add(
        self,
        sink: str,
        groups: Int[Tensor, " item"],
        items: "_Items",
        scores: Float[Tensor, "item head candidate"],
        lost: Bool[Tensor, "item head"],
    ) -> None:
        candidates, correct = items.candidates != _PADDING, items.correct
        bins = nulls.distance_bin(items.candidates - items.pronoun[:, None])
        permuted = [null(scores, candidates, correct, bins) for null in (nulls.choice, nulls.share)]
        everyone = torch.cat([scores, items.baselines.to(scores)], 1)
        kept = torch.cat([~lost, torch.ones_like(items.baselines[..., 0], dtype=torch.bool)], 1)
        right = selection.accuracy(everyone, candidates, correct)
        among, any_mass = selection.share(everyone, candidates, correct)
        selected, massive, named = kept.to(right), kept * any_mass, items.named[:, None]
        n_measures = len(self.measures)  # choices, and where they are asked for too, masses
        weights = torch.stack([selected, selected * named, massive, massive * named][:n_measures], -1)
        counted = weights[:, : scores.shape[1]]
        mean, variance = (
            torch.stack([choice, choice, share, share][:n_measures], -1) * counted
            for choice, share in zip(*permuted, strict=True)
        )
        values = torch.stack([right, right, among, among][:n_measures], -1) * weights
        self.sums.add(sink, groups, values, weights, (mean, variance))


class Collector(Scoring, ReadsFewRows):
    """Adds up antecedent selection and mass."""

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        heads: Heads | None = None,
        pronouns: Collection[str] | None = None,
        rules: bool = True,
    ):
        """Start from nothing; without `rules` no choices are kept for `tables/rules`."""
        super().__init__(model, BEHAVIOUR.name, heads)
        n_ctx = model.config.stacks[self.heads.stack].n_ctx
        self.nothing = (
            "the corpus has no pronoun with both a right and a wrong mention before it in one window of the model's "
            f"context ({n_ctx} tokens): expected coreference chains, and a context that shows them"
        )
        places = [MEASURES, PREDICTING] if self.heads.causal else [MEASURES]
        self.readers = [_Reader(self.heads, measures, rules=rules) for measures in places]
        self._asked_in = by_text(partial(items_and_unasked, pronouns=pronouns))

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        questions: list[_Question] = []
        for prompt, window in enumerate(batch.windows):
            items, unasked = self._asked_in(window.text)
            self.counts.update(reason for word, reason in unasked if window.scores(word))
            self.counts.update(["texts left out of coreference: no chains"] * (window.text.mentions is None))
            questions += [(prompt, window, item) for item in _shown(window, items, self.counts)]
        for reader in self.readers:
            reader.read(batch, questions)

    def scored(self) -> list[Scored]:
        """What was added up, in both readings."""
        return [part for reader in self.readers for part in reader.sums.scored()]

    def rules(self, corpus: str) -> Callable[..., pd.DataFrame] | None:
        """What gives the rows of `tables/rules`."""
        records = [reader.records for reader in self.readers if reader.records is not None]
        return followed(records, self.behaviour, corpus)


_Question = tuple[int, Window, AntecedentItem]  # the number of a prompt, and an item as its window shows it


def _shown(window: Window, items: Iterable[AntecedentItem], counts: Counter[str]) -> Iterator[AntecedentItem]:
    """The items that are scored in a window, with the candidates that it shows."""
    absent = {word for word, count in enumerate(window.pieces, window.start) if not count}.union(range(window.start))
    for item in items:
        if not window.scores(item.pronoun):
            continue
        shown = _without(item, absent)
        if shown is None:
            counts["pronouns left out: no right and wrong candidate within the window"] += 1
        else:
            yield shown


def _without(item: AntecedentItem, absent: Collection[int]) -> AntecedentItem | None:
    """The item without the candidates that are absent; None where no right or no wrong one is left."""
    left = [index for index, word in enumerate(item.candidates) if word not in absent]
    if len(left) == len(item.candidates):
        return item
    if len({item.correct[index] for index in left}) < 2:
        return None
    return item.keeping(left)


def _without_sink(questions: Sequence[_Question]) -> list[_Question]:
    """What stands at the first position is no candidate there."""
    shown = ((prompt, window, _without(item, (window.word_of[0],))) for prompt, window, item in questions)
    return [(prompt, window, item) for prompt, window, item in shown if item is not None]


@dataclass(frozen=True)
class _Items:
    """Questions as tensors. Candidates are padded; `baselines` is what each baseline looks at."""

    prompt: Int[Tensor, " item"]
    pronoun: Int[Tensor, " item"]
    named: Bool[Tensor, " item"]
    candidates: Int[Tensor, "item candidate"]
    correct: Bool[Tensor, "item candidate"]
    baselines: Float[Tensor, "item baseline candidate"]

    @staticmethod
    def of(questions: Sequence[_Question], rivals: Sequence[Rival], device: torch.device) -> "_Items":
        items = [item for _, _, item in questions]
        lengths = [len(item.candidates) for item in items]
        present = np.arange(max(lengths)) < np.array(lengths)[:, None]
        candidates = np.full(present.shape, _PADDING)
        candidates[present] = [word - window.start for _, window, item in questions for word in item.candidates]
        correct = np.zeros(present.shape, dtype=bool)
        correct[present] = [right for item in items for right in item.correct]
        baselines = np.zeros((len(rivals), *present.shape), dtype=np.float32)
        for index, rival in enumerate(rivals):
            baselines[index][present] = [score for item in items for score in rival(item)]
        columns = (
            np.array([prompt for prompt, _, _ in questions]),
            np.array([item.pronoun - window.start for _, window, item in questions]),
            np.array([item.named for item in items]),
            *(candidates, correct, baselines.transpose(1, 0, 2)),
        )
        return _Items(*(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in columns))


_PADDING = -2  # no word: NO_WORD is -1


def _beside_rules(
    batch: Batch, items: _Items, scores: Float[Tensor, "item head candidate"], order: Sequence[int]
) -> Chosen:
    """What heads and rules choose among the candidates: for all pronouns, then for those with a named antecedent.

    `order` are the rules to be compared with, among the items' baselines.
    """
    candidates, correct = items.candidates, items.correct
    highest = selection.Highest.of(scores.masked_fill((candidates == _PADDING)[:, None], 0.0))
    looks = items.baselines[:, [*order]].argmax(-1)
    offset, none = candidates - items.pronoun[:, None], (highest.score == 0) | highest.tied
    every = Chosen(
        measure=torch.zeros_like(items.prompt),
        groups=batch.groups[items.prompt.cpu()],
        rules=offset.gather(1, looks),
        hits=(hits := correct.gather(1, looks)),
        sought=hits,
        chosen=torch.where(none, NO_CHOICE, offset.gather(1, highest.at)),
        right=correct.gather(1, highest.at) & ~none,
        mass=highest.score,
        chance=(correct.gather(1, highest.at) & ~none).to(highest.score),  # no tags: nothing changes places
    )
    parts = {each.name: getattr(every, each.name) for each in fields(every)}
    both = {name: torch.cat([part, part[items.named.to(part.device)]]) for name, part in parts.items()}
    both["measure"][len(every.measure) :] = 1
    return Chosen(**both)


def attention_to_candidates(
    batch: Batch,
    prompt: Int[Tensor, " item"],
    pronoun: Int[Tensor, " item"],
    candidates: Int[Tensor, "item candidate"],
    *,
    sink_removed: bool = False,
    predicting: bool = False,
) -> tuple[Float[Tensor, "item head candidate"], Bool[Tensor, "item head"]]:
    """Attention from each pronoun to its candidates, words counted in their window; and the rows lost with the sink.

    `predicting` reads it from the token before the pronoun.
    """
    word_of = batch.word_of[prompt]
    item, column = (word_of == pronoun[:, None]).nonzero(as_tuple=True)  # the pronouns' pieces
    pieces = batch.pieces[prompt, pronoun][:, None]
    if predicting:
        item, column = torch.arange(len(prompt), device=prompt.device), batch.first_piece[prompt, pronoun] - 1
        pieces = torch.ones_like(pieces)
    rows = batch.attention.rows(prompt[item], column)
    gone = torch.zeros_like(rows[..., 0])
    if sink_removed:
        rows, enough = remove_sink(rows)
        gone = (~enough).to(rows)
    pooled = rows.new_zeros(len(prompt), *rows.shape[1:]).index_add_(0, item, rows) / pieces[..., None]
    belongs = (word_of[:, :, None] == candidates[:, None]).to(rows)
    lost = gone.new_zeros(len(prompt), gone.shape[1]).index_add_(0, item, gone) > 0
    return torch.bmm(pooled, belongs), lost


BEHAVIOUR = Behaviour(
    **BEHAVIOURS["coreference"],
    measures=(*MEASURES, *PREDICTING),
    collector=Collector,
    needs=frozenset({"chains"}),
    effects=effects,
    bare={"rules": False},
    cost=6,
    words=40,  # a pronoun comes after another mention
    probe="antecedent",
)
