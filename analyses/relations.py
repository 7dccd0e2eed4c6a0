"""Which word does a head choose from one end of a dependency, and is it the other end?

One item asks one word (the query) for another (the target). Nearly every word of a parsed text asks, so rows are judged
where they lie: attention to a word is collected at the column of its first piece, and each row's highest column found
once for all its items and both readings.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analyses.windows import Batch
from interp.annotation import ROOT
from interp.patterns import N_GROUPS, Null, Totals, nulls, selection
from interp.patterns.nulls import distance_bin
from interp.patterns.rows import Pattern, Sink
from interp.tokens import NO_WORD

BASELINE_OFFSETS = (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)
WAYS = ("dependent->head", "head->dependent")
_CHUNK = 1 << 18  # elements of a pattern that are multiplied at once: they stay in the processor's cache
_NOT_VISIBLE = "relation ends left out: the other end is not visible"
_OWN_HEAD = "relations left out: a word that is its own head"


@dataclass(frozen=True)
class Items:
    """Questions put to a batch: which prompt, which query and target word (counted in the window), which measure."""

    prompt: Int[Tensor, " item"]
    query: Int[Tensor, " item"]
    target: Int[Tensor, " item"]
    column: Int[Tensor, " item"]

    @staticmethod
    def of(batch: Batch, relations: Sequence[str], causal: bool, counts: Counter[str]) -> "Items":
        """The items that a batch shows; what it does not show is counted."""
        numbers = {name: number for number, name in enumerate(relations)}
        heads: list[int] = []
        relation: list[int] = []
        shown = np.zeros((len(batch.windows), 3), dtype=int)  # each window's first and last word, and first scored
        for prompt, window in enumerate(batch.windows):
            if window.text.heads is None or window.text.relations is None:
                counts["texts left out of relations: not parsed"] += 1
                continue
            shown[prompt] = window.start, window.stop, window.scored_from
            heads += window.text.heads[window.start : window.stop]
            relation += [numbers.get(name, -1) for name in window.text.relations[window.start : window.stop]]
        found, hidden, own = _asked(batch.pieces.cpu().numpy() > 0, shown, heads, relation, causal)
        for reason, count in ((_NOT_VISIBLE, hidden), (_OWN_HEAD, own)):
            if count:
                counts[reason] += count
        return Items(*torch.from_numpy(found).to(batch.pattern.device))

    def __len__(self) -> int:
        return len(self.prompt)

    def __getitem__(self, which: Tensor) -> "Items":
        return Items(self.prompt[which], self.query[which], self.target[which], self.column[which])


def _asked(
    present: np.ndarray, shown: np.ndarray, heads: Sequence[int], relations: Sequence[int], causal: bool
) -> tuple[np.ndarray, int, int]:
    """Prompt, query, target and measure of every item, how many are not visible, and how many words head themselves.

    `present` (prompt word) has the words with a token; `heads` and `relations` have the shown words of all prompts, one
    prompt after the other.
    """
    head_of, relation = (np.array(each, dtype=int) for each in (heads, relations))
    start, stop, scored_from = shown.T
    prompt = np.repeat(np.arange(len(shown)), stop - start)
    word = np.arange(len(prompt)) - np.repeat(np.cumsum(stop - start) - (stop - start), stop - start)
    measured, own = (head_of != ROOT) & (relation >= 0), head_of == word + start[prompt]
    n_own = int((measured & own & (word >= (scored_from - start)[prompt])).sum())
    asks = np.flatnonzero(measured & ~own)
    prompt, dependent, column = prompt[asks], word[asks], 2 * relation[asks]
    head = head_of[asks] - start[prompt]
    prompt, column = np.tile(prompt, 2), np.concatenate([column, column + 1])
    query, target = np.concatenate([dependent, head]), np.concatenate([head, dependent])

    def has_token(at: np.ndarray) -> np.ndarray:
        inside = (at >= 0) & (at < (stop - start)[prompt])
        return inside & present[prompt, np.where(inside, at, 0)]

    scored = has_token(query) & (query >= (scored_from - start)[prompt])
    visible = has_token(target) & ~(causal & (target > query))
    kept = scored & visible
    return np.stack([prompt, query, target, column])[:, kept], int((scored & ~visible).sum()), n_own


@dataclass(frozen=True)
class Judged:
    """Whether each head chose the target, and what that is on average when the words of a bin change places."""

    right: Float[Tensor, "item head"]
    mean: Float[Tensor, "item head"]
    variance: Float[Tensor, "item head"]

    @staticmethod
    def join(parts: Sequence["Judged"], at: Sequence[Tensor]) -> "Judged":
        """Parts that lie at those places among the items, as one."""
        order = torch.cat(list(at)).argsort()
        fields = [(each.right, each.mean, each.variance) for each in parts]
        return Judged(*(torch.cat(column)[order] for column in zip(*fields, strict=True)))


class Choices:
    """The rows of a batch, over words, and who asks."""

    def __init__(self, batch: Batch, counted: Pattern, items: Items):
        """Lay the words out.

        Args:
            batch: with the words' columns.
            counted: attention, 0 wherever it is not on a piece of another word; overwritten.
            items: what is asked.
        """
        self.batch, self.items = batch, items
        several = batch.pieces[items.prompt, items.query] > 1
        self.parts = (~several).nonzero()[:, 0], several.nonzero()[:, 0]  # asked by one row; by the mean of several
        self.first_word = batch.word_of[:, 0]
        self.merged, self.rest_of_first = counted, counted.new_zeros(counted.shape[:-1])
        self._merge()

    def kept(self) -> Judged:
        """Every row as it is."""
        self.single = self._single(self.merged, self.items[self.parts[0]], without_first=False)
        several = self._several(self.merged, self.items[self.parts[1]], None)
        return Judged.join([self.single, several], self.parts)

    def removed(self, sink: Sink) -> Judged:
        """Without the first position. One row's choice is the same unless it was there; a mean of rows is another."""
        single, merged = self.single, self.merged
        if (self.first_word != NO_WORD).any():
            merged[..., 0] = self.rest_of_first
            single = self._single(merged, self.items[self.parts[0]], without_first=True)
        several = self._several(merged, self.items[self.parts[1]], sink.scale)
        return Judged.join([single, several], self.parts)

    def lost(self, sink: Sink) -> tuple[Bool[Tensor, "item head"], Bool[Tensor, " item"]]:
        """Items of which a row keeps too little without the first position, and those whose target stood there."""
        items, n_words = self.items, self.batch.pieces.shape[1]
        word = torch.where(self.batch.word_of == NO_WORD, n_words, self.batch.word_of)
        rows = (~sink.kept).to(sink.scale).transpose(1, 2)  # prompt query head
        per_word = rows.new_zeros(len(rows), n_words + 1, rows.shape[2])
        per_word.scatter_add_(1, word[..., None].expand_as(rows), rows)
        at_sink = self.first_word[items.prompt] == items.target
        return per_word[items.prompt, items.query] > 0, at_sink

    def _merge(self) -> None:
        """Add each word's pieces up at its first, in place; what the first position's word has besides it is kept."""
        word_of, merged = self.batch.word_of, self.merged
        first = self.batch.first_piece.gather(1, word_of.clamp(min=0))
        column = torch.arange(word_of.shape[1], device=word_of.device)
        belongs = (word_of != NO_WORD) & (first != column)
        if not belongs.any():
            return
        prompt, piece = (belongs & (first == 0)).nonzero(as_tuple=True)
        self.rest_of_first.index_add_(0, prompt, merged[prompt, :, :, piece])
        into = ((first[..., None] == column) & (word_of != NO_WORD)[..., None]).to(merged)  # prompt key first
        size = max(1, _CHUNK // merged[0].numel())
        for at in range(0, len(merged), size):
            part = merged[at : at + size].flatten(1, 2)
            part.copy_(part @ into[at : at + size])

    def _single(self, merged: Pattern, items: Items, *, without_first: bool) -> Judged:
        """Items that one row answers."""
        row = self.batch.first_piece[items.prompt, items.query]
        found = selection.Highest.of(merged)
        at = (items.prompt, slice(None), row)
        highest = selection.Highest(found.score[at], found.at[at], found.tied[at])
        target = merged[items.prompt, :, row, self.batch.first_piece[items.prompt, items.target]]
        judged = self._judged(highest, target, items, without_first)
        item, head = highest.several()
        return self._with_ties(judged, items, (item, head), merged[items.prompt[item], head, row[item]], without_first)

    def _several(self, merged: Pattern, items: Items, scale: Tensor | None) -> Judged:
        """Items whose query has several pieces: the mean of their rows."""
        asked, which, word, at = self._pieces
        share = (1 / self.batch.pieces[asked[word, 0], asked[word, 1]].to(merged))[:, None]
        share = share.expand(-1, merged.shape[1]) if scale is None else share * scale[at]
        rows = self._rows_of_pieces
        if scale is not None and (self.first_word != NO_WORD).any():
            rows = rows.clone()
            rows[..., 0] = merged[*at, 0]
        rows = rows * share[..., None]
        pooled = rows.new_zeros(len(asked), *rows.shape[1:]).index_add_(0, word, rows)
        found = selection.Highest.of(pooled)
        highest = selection.Highest(found.score[which], found.at[which], found.tied[which])
        target = pooled[which, :, self.batch.first_piece[items.prompt, items.target]]
        judged = self._judged(highest, target, items, scale is not None)
        item, head = highest.several()
        return self._with_ties(judged, items, (item, head), pooled[which[item], head], scale is not None)

    @cached_property
    def _pieces(self) -> tuple[Int[Tensor, "asked 2"], Int[Tensor, " item"], Int[Tensor, " piece"], tuple]:
        """Prompt and word of the queries of several pieces, which one each item has, their pieces, and where these are.

        Of each piece: the number of its word among the queries, and its row in the pattern.
        """
        items = self.items[self.parts[1]]
        asked, which = torch.stack([items.prompt, items.query], 1).unique(dim=0, return_inverse=True)
        word, piece = (self.batch.word_of[asked[:, 0]] == asked[:, 1:]).nonzero(as_tuple=True)
        return asked, which, word, (asked[word, 0], slice(None), piece)

    @cached_property
    def _rows_of_pieces(self) -> Float[Tensor, "piece head key"]:
        """Their rows, first read with the first position."""
        return self.merged[self._pieces[3]]

    def _judged(
        self, highest: selection.Highest, target: Float[Tensor, "item head"], items: Items, without_first: bool
    ) -> Judged:
        right = ((target == highest.score) & (target > 0)).to(target)
        chosen = self.batch.word_of[items.prompt[:, None], highest.at]
        bins = distance_bin(items.target - items.query)[:, None]
        in_bin = ((distance_bin(chosen - items.query[:, None]) == bins) & (highest.score > 0)).to(target)
        mean = in_bin / self._words_in_bin(items, without_first).clamp(min=1)[:, None].to(target)
        return Judged(right, mean, mean * (in_bin - mean))

    def _words_in_bin(self, items: Items, without_first: bool) -> Int[Tensor, " item"]:
        """How many words with a piece stand as far from the query as the target does, on its side."""
        present = self.batch.pieces > 0
        if without_first:
            only_first = self.batch.pieces.gather(1, self.first_word.clamp(min=0)[:, None]) == 1
            words = torch.arange(present.shape[1], device=present.device)
            present = present & ~((words == self.first_word[:, None]) & only_first)
        before = torch.nn.functional.pad(present.long().cumsum(1), (1, 0))
        offset = items.target - items.query
        least = 2 ** (distance_bin(offset).abs() - 1)
        near, far = items.query + offset.sign() * least, items.query + offset.sign() * (2 * least - 1)
        low, high = torch.minimum(near, far).clamp(min=0), torch.maximum(near, far).clamp(max=present.shape[1] - 1)
        return before[items.prompt, high + 1] - before[items.prompt, low]

    def _with_ties(
        self, judged: Judged, items: Items, where: tuple[Tensor, Tensor], rows: Float[Tensor, "row key"], without: bool
    ) -> Judged:
        """Rows in which several words tie for the highest are scored by the plain scorer."""
        item, head = where
        if not len(item):
            return judged
        some = items[item]
        word_of = self.batch.word_of[some.prompt]
        column = torch.arange(word_of.shape[1], device=word_of.device)
        is_first = self.batch.first_piece[some.prompt].gather(1, word_of.clamp(min=0)) == column
        candidates = (word_of != NO_WORD) & is_first & (word_of != some.query[:, None])
        if without:
            only_first = self.batch.pieces[some.prompt].gather(1, word_of.clamp(min=0)) == 1
            candidates = candidates & ~((column == 0) & only_first)
        correct = candidates & (word_of == some.target[:, None])
        bins = distance_bin(word_of - some.query[:, None])
        judged.right[item, head] = selection.accuracy(rows[:, None], candidates, correct)[:, 0]
        mean, variance = nulls.choice(rows[:, None], candidates, correct, bins)
        judged.mean[item, head], judged.variance[item, head] = mean[:, 0], variance[:, 0]
        return judged


class RelationTotals:
    """Items chosen right, by group and measure: heads, then fixed offsets in words."""

    def __init__(self, n_heads: int, n_measures: int):
        self.n_heads, self.n_measures = n_heads, n_measures
        n_columns = 4 * n_heads + 2 * len(BASELINE_OFFSETS)
        self.sums = torch.zeros(N_GROUPS * n_measures, n_columns, dtype=torch.float64)

    def add(
        self,
        groups: Int[Tensor, " prompt"],
        items: Items,
        judged: Judged,
        lost: tuple[Bool[Tensor, "item head"], Bool[Tensor, " item"]] | None = None,
    ) -> None:
        """Add items, without those that are lost to a head or to all."""
        # a one-hot row's highest word needs no search
        offsets = torch.tensor(BASELINE_OFFSETS, device=items.query.device)
        baselines = (items.target - items.query)[:, None] == offsets
        if lost is None:
            counted, everywhere = torch.ones_like(judged.right), torch.ones_like(baselines)
        else:
            rows, at_sink = lost
            everywhere = ~at_sink[:, None].expand_as(baselines)
            counted = (~rows & ~at_sink[:, None]).to(judged.right)
        columns = [judged.right * counted, baselines * everywhere, counted, everywhere]
        columns += [judged.mean * counted, judged.variance * counted]
        row = groups.to(items.prompt)[items.prompt] * self.n_measures + items.column
        self.sums.index_add_(0, row.cpu(), torch.cat([each.to(judged.right) for each in columns], 1).cpu().double())

    def finish(self) -> tuple[Totals, Null]:
        """Totals over heads and offsets, and the heads' null."""
        n, n_offsets = self.n_heads, len(BASELINE_OFFSETS)
        sums = self.sums.unflatten(0, (N_GROUPS, self.n_measures)).transpose(1, 2)
        scores, weights, mean, variance = sums.split([n + n_offsets, n + n_offsets, n, n], 1)
        return Totals(scores, weights, weights), Null(mean, variance)
