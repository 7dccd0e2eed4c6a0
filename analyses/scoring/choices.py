"""Which word does a head choose from a query word, and is it right?

Relations, a user's pairs and antecedents share this scorer, with their rivals, null and rules. A query word's highest
choice is computed once for all its items.
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from analyses.measures.definitions import DECLARED, Measure, Rival
from analyses.measures.head_tables import Heads
from analyses.reading.inputs import Attended, Pass
from analyses.reading.windows import MASKED, Batch, Window, by_text, read_batch
from analyses.scoring.collectors import Readings, Sinks
from analyses.scoring.outcomes import N_KINDS, NO_CHOICE, NO_WORD_FOR_IT, Outcomes
from analyses.scoring.rules import Pair, Records
from interp.annotation import AnnotatedText
from interp.patterns import nulls, selection
from interp.patterns.rows import SINKS, Sink
from interp.tokens import NO_WORD

_NO_HEAD = 1 << 30
_TAGS = {tag: number for number, tag in enumerate(DECLARED["tags"]["universal"].split())}


@dataclass(frozen=True)
class Items:
    """Questions about a batch: the prompt, the query word (counted in the window) and the measure of each.

    `picks` has, by name, the choices of rules that cannot read them off the items; None: all words alike.
    """

    batch: Batch
    prompt: Int[Tensor, " item"]
    query: Int[Tensor, " item"]
    column: Int[Tensor, " item"]
    candidates: Bool[Tensor, "item word"]  # the words among which a head chooses
    right: Bool[Tensor, "item word"]  # the targets
    picks: Mapping[str, Int[Tensor, " item"] | None] = field(default_factory=dict)

    @staticmethod
    def from_batch(
        batch: Batch, pairs: Callable[[AnnotatedText], list[Pair]], unseen: np.ndarray, *, causal: bool, sign: int = 1
    ) -> "Items":
        """The visible pairs of different words in a batch, from the sorted `pairs` of its texts.

        Items with an invisible target are counted in `unseen`, by measure. A causal stack sees no word after the query;
        in a `turned` batch (`sign` -1), it sees none before.
        """
        rows: list[tuple[int, int, int, int]] = []
        for prompt, window in enumerate(batch.windows):
            text_pairs = pairs(window.text)
            visible_words = {word for word, n_pieces in enumerate(window.pieces, window.start) if n_pieces}
            begin, end = (bisect_left(text_pairs, (word,)) for word in (window.scored_from, window.stop))
            for query, target, column, word in text_pairs[begin:end]:
                if query == target or query not in visible_words:
                    continue
                if target not in visible_words or (causal and sign * (target - query) > 0):
                    unseen[column] += window.start <= word < window.stop
                else:
                    rows.append((prompt, query - window.start, target - window.start, column))
        columns = torch.tensor(rows, dtype=torch.long, device=batch.device).reshape(-1, 4)
        prompt, query, target, column = columns.unbind(1)
        first, words = batch.first_piece, torch.arange(batch.pieces.shape[1], device=batch.device)
        visible = batch.rows.visible[prompt, first[prompt, query]].gather(1, first[prompt])
        candidates = visible & (batch.pieces[prompt] > 0) & (words != query[:, None])
        return Items(batch, prompt, query, column, candidates, words == target[:, None])

    def __len__(self) -> int:
        return len(self.prompt)

    def masked(self, mask_id: int) -> "Items":
        """The items whose query word is masked."""
        first = self.batch.first_piece[self.prompt, self.query]
        keep, names = self.batch.tokens.ids[self.prompt, first] == mask_id, ("prompt", "query", "column")
        return replace(self, **{name: getattr(self, name)[keep] for name in (*names, "candidates", "right")})

    @cached_property
    def words(self) -> Int[Tensor, " word"]:
        """The words of a window."""
        return torch.arange(self.batch.pieces.shape[1], device=self.prompt.device)

    @cached_property
    def bins(self) -> Int[Tensor, "item word"]:
        """The distance bin of each word."""
        return nulls.distance_bin(self.words - self.query[:, None])

    def choice(self, rule: Rival) -> Int[Tensor, " item"] | None:
        """The word that a rule chooses, negative if there is none; None for a rule that takes all words alike."""
        if rule.name in self.picks:
            return self.picks[rule.name]
        return None if rule.looks is None else rule(self)

    @cached_property
    def by_query(self) -> Int[Tensor, " item"]:
        """A number for each query and measure, because a query may have several items (a verb's auxiliaries)."""
        n_prompts, n_words = self.batch.pieces.shape
        number = (self.column * n_prompts + self.prompt) * n_words + self.query
        return number.unique(return_inverse=True)[1]

    def sought(self, words: Int[Tensor, "item any"]) -> Bool[Tensor, "item any"]:
        """Whether each word is a target of any item with the same query and measure."""
        right = torch.zeros(len(self), len(self.words), device=words.device)
        return lookup(right.index_add_(0, self.by_query, self.right.float())[self.by_query] > 0, words)

    @cached_property
    def kinds(self) -> Int[Tensor, "item word"]:
        """What a rule could know of a word: its tag, side and distance bin, and how many words of its tag are nearer on
        that side (two at most)."""
        tags = self.tags + 1
        up_to = (one_hot(tags, len(_TAGS) + 2) * (self.batch.pieces > 0)[..., None]).cumsum(1)  # prompt word tag
        itself, tags = up_to.gather(2, tags[..., None])[self.prompt, :, 0], tags[self.prompt]
        query_tag = tags.gather(1, self.query[:, None])
        at_query = up_to[self.prompt, self.query].gather(1, tags)
        before = at_query - itself - (tags == query_tag).long()
        nearer = torch.where(self.bins < 0, before, itself - at_query - 1).clamp(0, 2)
        return (tags * 3 + nearer) * 33 + self.bins + 16

    def words_of_kinds(self, n_measures: int) -> np.ndarray:
        """The number of candidates, then of right ones, by kind: `2 half measure kind`, by parity of the group."""
        half = self.batch.groups.to(self.prompt)[self.prompt] % 2
        kind = (half * n_measures + self.column)[:, None] * N_KINDS + self.kinds
        counts = [kind[mask & self.candidates].bincount(minlength=2 * n_measures * N_KINDS)
                  for mask in (self.candidates, self.right)]  # fmt: skip
        return torch.stack(counts).unflatten(1, (2, n_measures, N_KINDS)).cpu().numpy()

    def by_prompt(self, values: Float[Tensor, "item any"], n_measures: int) -> Float[Tensor, "prompt any measure"]:
        """Sums over each prompt's items, by measure."""
        total = values.new_zeros(len(self.batch.windows) * n_measures, values.shape[1], dtype=torch.float64)
        total.index_add_(0, self.prompt * n_measures + self.column, values.double())
        return total.unflatten(0, (-1, n_measures)).transpose(1, 2)

    @cached_property
    def tags(self) -> Int[Tensor, "prompt word"]:
        """The number of each shown word's universal tag; -1 for none, and one above the last for foreign tags."""
        return self.batch.by_word(lambda text: [_TAGS.get(tag, len(_TAGS)) for tag in text.tags or ()])

    def nearest(
        self,
        tags: Sequence[str],
        *,
        backward: bool,
        last_of_run: bool = False,
        start: Int[Tensor, " item"] | None = None,
    ) -> Int[Tensor, " item"]:
        """The nearest shown word with one of the tags on one side of each query, or of `start`; -1 for none.

        With `last_of_run`, it must be the last of a run of such words.
        """
        has_tag = torch.isin(self.tags, self.tags.new_tensor([_TAGS[tag] for tag in tags if tag in _TAGS]))
        if last_of_run:
            has_tag = has_tag & ~torch.cat([has_tag[:, 1:], torch.zeros_like(has_tag[:, :1])], 1)
        has_tag, n_words = has_tag & (self.batch.pieces > 0), len(self.words)
        start = self.query if start is None else start
        none = torch.full_like(self.words[:1], -1 if backward else n_words).expand(len(has_tag), 1)
        columns = torch.where(has_tag, self.words, none)
        if backward:
            nearest = torch.cat([none, columns.cummax(1).values], 1)  # of words before the index
            return nearest[self.prompt, start.clamp(min=0)]
        nearest = torch.cat([columns.flip(1).cummin(1).values.flip(1), none], 1)
        words = nearest[self.prompt, start + 1]
        return torch.where(words < n_words, words, -1)

    def subject_before(self) -> Int[Tensor, " item"]:
        """The nearest earlier word that is the subject of a word before the query; -1 for none."""

        def heads(text: AnnotatedText) -> list[int]:
            subjects = (name.startswith("nsubj") for name in text.relations or ())
            return [head if subject else _NO_HEAD for head, subject in zip(text.heads or (), subjects, strict=False)]

        of_words = self.batch.by_word(heads, are_words=True).masked_fill(self.batch.pieces == 0, _NO_HEAD)
        before = (of_words[self.prompt] < self.query[:, None]) & (self.words < self.query[:, None])
        return torch.where(before, self.words, -1).max(1).values

    def first(self, tags: Sequence[str]) -> Int[Tensor, " item"]:
        """The first word with one of the tags in the query's sentence, before the query; -1 for none."""
        starts = self.batch.by_word(sentence_starts, are_words=True)[self.prompt, self.query].clamp(min=0)
        words = self.nearest(tags, backward=False, start=starts - 1)
        return torch.where(words < self.query, words, -1)


@dataclass(frozen=True)
class _Columns(Attended):
    """Transposed patterns, each column divided by its word's number of pieces."""

    pieces: Int[Tensor, "prompt position"] = field(kw_only=True)

    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """The attention that some keys receive."""
        return self.pattern.transpose(-1, -2)[prompt, :, query] / self.pieces[prompt][:, None].to(self.pattern)


def turned(batch: Batch) -> Batch:
    """The same texts with transposed patterns: the attention that each word receives from every word.

    Pieces are still summed for attended words and averaged for attending ones, which here are the keys.
    """
    pieces = batch.pieces.gather(1, batch.word_of.clamp(min=0)).clamp(min=1)
    rows = replace(batch.rows, visible=batch.rows.visible.transpose(-1, -2))
    return replace(batch, attention=_Columns(batch.pattern, pieces=pieces), rows=rows)


def masked(batch: Batch, pairs: Callable[[AnnotatedText], list[Pair]], mask_id: int) -> Batch:
    """The same texts, read with random query words masked, at most a share `MASKED` of a window.

    No target of a masked word is masked.
    """
    reading, windows = batch.attention.source, list[Window]()
    assert isinstance(reading, Pass)
    for window in batch.windows:
        sought: dict[int, set[int]] = {}
        for query, target, *_ in pairs(window.text):
            if query != target and window.scores(query) and window.shows(target):
                sought.setdefault(query, set()).add(target)
        words, room, rng = set[int](), max(1, int(MASKED * len(window.content))), random.Random(repr(window.ids))
        for query in rng.sample([*sought], len(sought)):
            n_pieces, targets = len(window.columns[query]), set[int]().union(*(sought[word] for word in words))
            if n_pieces <= room and query not in targets and sought[query].isdisjoint(words):
                words, room = words | {query}, room - n_pieces
        ids = (mask_id if word in words else id for word, id in zip(window.word_of, window.ids, strict=True))
        windows.append(replace(window, ids=tuple(ids)))
    return read_batch(reading.model, reading.heads, windows, few_rows=True)


def sentence_starts(text: AnnotatedText) -> list[int]:
    """The first word of each word's sentence."""
    starts = text.sentence_starts
    return [starts[bisect_right(starts, word) - 1] if starts else 0 for word in range(len(text.words))]


def lookup(mask: Bool[Tensor, "item word"], words: Int[Tensor, "item any"]) -> Bool[Tensor, "item any"]:
    """The mask at some words; False outside the window."""
    inside = (words >= 0) & (words < mask.shape[1])
    return inside & mask.gather(1, words.clamp(0, mask.shape[1] - 1))


class Judgement(NamedTuple):
    """Whether each head chose a right word, with the mean and variance under permutations of each bin's words.

    `choice` is the chosen word (-1 if several tie, or none has any attention), `mass` the attention on it.
    """

    right: Float[Tensor, "item head"]
    mean: Float[Tensor, "item head"]
    variance: Float[Tensor, "item head"]
    choice: Int[Tensor, "item head"]
    mass: Float[Tensor, "item head"]


class Choices:
    """The rows of query words; the attention to a whole word is at the column of its first piece."""

    def __init__(self, items: Items, *, predicting: bool = False):
        """Look up each query word's rows, or the row before it (`predicting`), once for all its items."""
        self.items, self.batch = items, items.batch
        word_of, n_words = self.batch.word_of, self.batch.pieces.shape[1]
        number, self.item_query = (items.prompt * n_words + items.query).unique(return_inverse=True)
        self.prompt, self.word = number // n_words, number % n_words
        if predicting:
            self.row_query = torch.arange(len(number), device=number.device)
            self.piece = self.batch.first_piece[self.prompt, self.word] - 1
        else:
            self.row_query, self.piece = (word_of[self.prompt] == self.word[:, None]).nonzero(as_tuple=True)
        self.n_pieces = torch.bincount(self.row_query, minlength=len(number))
        self.first_word = word_of[:, 0]
        self.rows, self.to_first, self.scale = self._rows()

    @cached_property
    def full(self) -> Judgement:
        """The judgement with the first position."""
        return self._judge(torch.ones_like(self.word, dtype=torch.bool), without_first=False)[1]

    @cached_property
    def removed(self) -> Judgement:
        """The judgement without the first position; a single row's choice changes only if it was there."""
        many_rows, first = self.n_pieces > 1, self.first_word[self.prompt] != NO_WORD
        items_of_words, changed = self._judge(many_rows | first, without_first=True)
        return Judgement(*(old.index_copy(0, items_of_words, new) for old, new in zip(self.full, changed, strict=True)))

    @cached_property
    def lost(self) -> tuple[Bool[Tensor, "item head"], Bool[Tensor, " item"]]:
        """Items with a row that keeps too little attention without the first position; items whose target is there."""
        gone = (self.scale == 0).to(self.rows)
        by_word = gone.new_zeros(len(self.word), gone.shape[1]).index_add_(0, self.row_query, gone)
        first_word = self.first_word[self.items.prompt, None]
        return by_word[self.item_query] > 0, lookup(self.items.right, first_word)[:, 0]

    def beside_rules(self, rules: Sequence[Rival]) -> Outcomes:
        """The choices of heads and rules, with the first position."""
        items, query, n_words = self.items, self.items.query[:, None], len(self.items.words)
        words = torch.stack([pick for rule in rules if (pick := items.choice(rule)) is not None], 1)
        choice, target, kinds = self.full.choice, (items.right * (items.words + 1)).argmax(1, keepdim=True), items.kinds
        order = torch.arange(len(items), device=query.device)
        earliest = torch.full_like(order, len(items)).scatter_reduce(0, items.by_query, order, "amin")
        return Outcomes(
            measure=items.column,
            groups=self.batch.groups[items.prompt.cpu()],
            rules=torch.where(words < 0, NO_WORD_FOR_IT, words - query),
            hits=lookup(items.right, words),
            sought=items.sought(words),
            words=torch.where(choice < 0, NO_CHOICE, choice - query),
            right=lookup(items.right, choice),
            mass=self.full.mass,
            kinds=torch.where(choice < 0, -1, kinds.gather(1, choice.clamp(min=0))),
            rule_kinds=torch.where(lookup(items.candidates, words), kinds.gather(1, words.clamp(0, n_words - 1)), -1),
            target=(target - query)[:, 0],
            target_kind=kinds.gather(1, target)[:, 0],
            first=earliest[items.by_query] == order,
        )

    def rival_scores(self, rivals: Sequence[Rival], *, without_first: bool) -> Float[Tensor, "item rival"]:
        """Whether each rule is right, 0 or 1; for a rule that takes all words alike, its chance."""
        words, right = [self.items.choice(rule) for rule in rivals], self.items.right
        n_candidates = self._candidates(without_first=without_first).sum(1).clamp(min=1)
        shares = [right.sum(1) / n_candidates if word is None else lookup(right, word[:, None])[:, 0] for word in words]
        return torch.stack(shares, 1).to(self.rows)

    def word_scores(self, *, without_first: bool = False) -> Float[Tensor, "item head word"]:
        """The attention of each query word on its candidates, averaged over pieces."""
        pooled = self._pooled(torch.ones_like(self.word, dtype=torch.bool), without_first=without_first)
        pooled = (pooled / self.n_pieces[:, None, None])[self.item_query]
        columns = self.batch.first_piece[self.items.prompt][:, None].expand(-1, pooled.shape[1], -1)
        return pooled.gather(2, columns) * self.items.candidates[:, None]

    def _candidates(self, *, without_first: bool) -> Bool[Tensor, "item word"]:
        items, prompt = self.items, self.items.prompt
        at_first = (items.words == self.first_word[prompt, None]) & (self.batch.pieces[prompt] == 1)
        return items.candidates & ~at_first if without_first else items.candidates

    def _rows(self) -> tuple[Float[Tensor, "piece head key"], Float[Tensor, "piece head"], Float[Tensor, "piece head"]]:
        """The attention of query words' pieces to candidates, that to the first position, and the factor by which rows
        grow without that position."""
        prompt, word_of = self.prompt[self.row_query], self.batch.word_of
        rows = self.batch.attention.rows(prompt, self.piece)
        scale = Sink.from_pattern(rows[:, :, None]).scale[:, :, 0]
        candidates = torch.zeros(len(self.word), self.batch.pieces.shape[1], device=rows.device)
        candidates = candidates.index_add_(0, self.item_query, self.items.candidates.float()) > 0
        is_candidate = candidates[self.row_query].gather(1, word_of[prompt].clamp(min=0))
        is_candidate &= (word_of != NO_WORD)[prompt]
        to_first = rows[..., 0] * is_candidate[:, :1]
        is_candidate[:, 0] = False
        rows *= is_candidate[:, None]
        in_pieces = (word_of != NO_WORD) & (self.batch.pieces.gather(1, word_of.clamp(min=0)) > 1)
        first = self.batch.first_piece.gather(1, word_of.clamp(min=0))
        ends = torch.bincount(prompt, minlength=len(word_of)).cumsum(0).tolist()
        for number, (begin, end) in enumerate(pairwise([0, *ends])):
            (columns,) = in_pieces[number].nonzero(as_tuple=True)
            first_columns = (first[number, :, None] == columns).to(
                rows
            )  # the sum of a word at its first piece, 0 at others
            added_up = rows[begin:end] @ first_columns
            rows[begin:end].scatter_(-1, columns.expand(added_up.shape), added_up)
        return rows, to_first, scale

    def _pooled(self, words: Bool[Tensor, " word"], *, without_first: bool) -> Float[Tensor, "some head key"]:
        """The rows of some words, summed over their pieces."""
        (piece,), number, rows = words[self.row_query].nonzero(as_tuple=True), words.cumsum(0) - 1, self.rows
        if without_first:
            rows = rows.index_select(0, piece).mul_(self.scale[piece][..., None])
        pooled = rows.new_zeros(int(words.sum()), *rows.shape[1:]).index_add_(0, number[self.row_query[piece]], rows)
        if not without_first:
            pooled[..., 0].index_add_(0, number[self.row_query[piece]], self.to_first[piece])
        return pooled

    def _judge(self, words: Bool[Tensor, " word"], *, without_first: bool) -> tuple[Int[Tensor, " item"], Judgement]:
        """The items of some query words (indices), and their judgement."""
        (index,), items = words[self.item_query].nonzero(as_tuple=True), self.items
        pooled, row = self._pooled(words, without_first=without_first), (words.cumsum(0) - 1)[self.item_query[index]]
        score, column, tied = (part[row] for part in selection.highest(pooled))
        prompt = items.prompt[index]
        choice = self.batch.word_of.flatten()[prompt[:, None] * self.batch.word_of.shape[1] + column]
        candidates = self._candidates(without_first=without_first)[index]
        correct, bins = items.right[index] & candidates, items.bins[index]
        right = (lookup(correct, choice) & (score > 0)).to(score)
        mean = _rate(candidates, correct, bins).gather(1, choice.clamp(min=0)) * (score > 0)
        variance = mean * (1 - mean)
        item, head = tied.nonzero(as_tuple=True)
        if len(item):  # ties for the highest need the plain scorer
            columns = self.batch.first_piece[prompt[item]]
            scores = pooled[row[item], head].gather(1, columns)[:, None]
            masks = candidates[item], correct[item]
            plain = selection.accuracy(scores, *masks), *nulls.choice(scores, *masks, bins[item])
            for values, changed in zip((right, mean, variance), plain, strict=True):
                values[item, head] = changed[:, 0]
        mass = score / self.n_pieces[self.item_query[index], None]  # rows were summed over pieces
        return index, Judgement(right, mean, variance, torch.where((score > 0) & ~tied, choice, -1), mass)


def _rate(
    candidates: Bool[Tensor, "item word"], right: Bool[Tensor, "item word"], bins: Int[Tensor, "item word"]
) -> Float[Tensor, "item word"]:
    """The share of right words among the candidates of each word's bin."""
    low, high = (int(end) for end in bins.aminmax()) if bins.numel() else (0, 0)
    kind, n_kinds = bins - low, high - low + 1
    of_kind = torch.zeros(2, len(kind), n_kinds, device=kind.device)
    for count, mask in zip(of_kind, (right & candidates, candidates), strict=True):
        count.scatter_add_(1, kind, mask.float())
    return (of_kind[0] / of_kind[1].clamp(min=1)).gather(1, kind) * candidates


class Selections(Readings):
    """How often heads and rivals choose a right word; `records` keeps the choices.

    The last `masses` measures have the same items as the first ones. They measure the share of the candidates'
    attention that is on right words.
    """

    def __init__(
        self,
        heads: Heads,
        measures: Sequence[Measure],
        *,
        masses: int = 0,
        records: Records | None = None,
        sinks: Sequence[Sinks] = SINKS,
    ):
        super().__init__(heads, measures, sinks)
        self.masses, self.records = masses, records
        self.parts = [*self.parts, *([records] if records is not None else [])]

    def add_choices(self, choices: Choices, sink: str) -> None:
        """Add the items of one reading, except those lost in it."""
        items, removed = choices.items, sink == "removed"
        judged = choices.removed if removed else choices.full
        rivals = choices.rival_scores(self.rivals, without_first=removed)
        counted, everywhere = torch.ones_like(judged.right), torch.ones_like(rivals)
        if removed:
            rows, at_sink = choices.lost
            everywhere *= ~at_sink[:, None]
            counted = (~rows & ~at_sink[:, None]).to(judged.right)
        values = [(judged.right, counted, judged.mean, judged.variance)]
        if self.masses:
            scores, masks = choices.word_scores(without_first=removed), (items.candidates, items.right)
            share, any_mass = selection.share(scores, *masks)
            values.append((share, counted * any_mass, *nulls.share(scores, *masks, items.bins)))
        n_columns, sums = len(self.measures) - self.masses, []
        for (value, weight, mean, variance), count in zip(values, (n_columns, self.masses), strict=False):
            sums_of_both = torch.cat([value * weight, rivals * everywhere], 1), torch.cat([weight, everywhere], 1)
            parts = (*sums_of_both, mean * weight, variance * weight)
            sums.append([items.by_prompt(part, n_columns)[..., :count] for part in parts])
        values, weights, *null = (torch.cat(parts, -1) for parts in zip(*sums, strict=True))
        self.add_sums(sink, choices.batch.groups, values, weights, null)
        if self.records is not None and sink == "kept" and not self.records.full:
            self.records.add(choices.beside_rules(self.records.rules), items.words_of_kinds(len(self.records.measures)))


class PairScorer(Selections):
    """Scores pairs of words in the row of the query.

    `received` scores attention received instead, `predicting` the row before the query, `mask_id` a masked query.
    """

    def __init__(
        self,
        heads: Heads,
        measures: Sequence[Measure],
        pairs: Callable[[AnnotatedText], list[Pair]],
        counts: Counter[str],
        *,
        unseen: str = "",
        records: Records | None = None,
        received: bool = False,
        predicting: bool = False,
        mask_id: int | None = None,
        sinks: Sequence[Sinks] = SINKS,
    ):
        """Pairs with an invisible target are counted in `counts`, under `unseen`."""
        super().__init__(heads, measures, records=records, sinks=SINKS[:1] if received else sinks)
        self.causal, self.pairs, self.counts, self.unseen = heads.causal, by_text(pairs), counts, unseen
        self.received, self.predicting, self.mask_id = received, predicting, mask_id

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        batch, n_unseen = turned(batch) if self.received else batch, np.zeros(len(self.measures), dtype=int)
        if self.mask_id is not None:
            batch = masked(batch, self.pairs, self.mask_id)
        items = Items.from_batch(batch, self.pairs, n_unseen, causal=self.causal, sign=-1 if self.received else 1)
        if self.mask_id is not None:
            items = items.masked(self.mask_id)
        if self.unseen and n_unseen.any():
            self.counts[self.unseen] += int(n_unseen.sum())
        if self.records is not None and not self.records.full:
            self.records.unseen += n_unseen
        if len(items):
            choices = Choices(items, predicting=self.predicting)
            for sink in self.sinks:
                self.add_choices(choices, sink)
