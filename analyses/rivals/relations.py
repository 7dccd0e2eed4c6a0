"""Which word does a head choose from a word that asks, such as one end of a dependency, and is it the one sought?

One item asks one word (the query) for another (the target). A word's highest choice is found once for all its items.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analyses.measures import DECLARED, Measure, Rival
from analyses.reading.attended import Attended
from analyses.reading.windows import Batch, by_text
from analyses.rivals.rules import NO_CHOICE, NO_WORD_FOR_IT, Chosen
from analyses.tables.head_tables import Scored
from interp.annotation import ROOT, AnnotatedText
from interp.errors import InputError
from interp.patterns import N_GROUPS, Null, Totals, nulls, selection
from interp.patterns.nulls import distance_bin
from interp.patterns.rows import Sink, rows_at
from interp.tokens import NO_WORD


def _at(offset: int) -> Rival:
    return Rival(f"offset {offset:+d}", lambda items: items.query + offset)


OFFSETS = tuple(map(_at, (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)))
"""Rules that look at a fixed offset in words."""
UNIFORM = Rival("uniform", None)
"""All other visible words alike: right as often as chance."""
CLASSES = tuple(tuple(each.split("/")) for each in DECLARED["tags"]["classes"].split())
"""Sets of tags: a head that goes to the nearest word of one need not know which word is related to which."""


def nearest(tags: Sequence[str], *, before: bool, last_of_run: bool = False) -> Rival:
    """The rule that looks at the nearest word of some tags before the word that asks, or behind it.

    Of several such words in a row it takes the nearest, or the last one: the head of "the last dinosaur bone". It reads
    tags, and nothing else of the annotation; a text without tags has no such word.
    """
    name = f"{'last' if before else 'next'} {'/'.join(tags)}" + " (end of its run)" * last_of_run
    return Rival(name, lambda items: items.nearest(tags, before=before, last_of_run=last_of_run))


NEAREST = (
    *(nearest(tags, before=before) for tags in CLASSES for before in (True, False)),
    *(nearest(tags, before=False, last_of_run=True) for tags in (("NOUN",), ("NOUN", "PROPN"), ("VERB", "AUX"))),
)
"""Rules that look at the nearest word of a class on one side."""
RELATIONS = tuple(DECLARED["tags"]["relations"].split())
"""The relations of Universal Dependencies that are asked of every text."""
WAYS = ("dependent->head", "head->dependent")


Pair = tuple[int, int, int, int]  # the word that asks, the one sought, the measure's number, and where it is annotated


def edges(relations: Sequence[str], *, transposed: bool = False) -> Callable[[AnnotatedText], list[Pair]]:
    """What gives the pairs of a text: of each relation both `WAYS`, or `transposed`, only from dependents to heads."""
    numbers = {name: number for number, name in enumerate(relations)}

    def pairs(text: AnnotatedText) -> list[Pair]:
        both: list[Pair] = []
        for dependent, (head, name) in enumerate(zip(text.heads or (), text.relations or (), strict=False)):
            number = numbers.get(name)
            if head == ROOT or number is None:
                continue
            if transposed:
                both.append((dependent, head, number, dependent))
            else:
                both += [(dependent, head, 2 * number, dependent), (head, dependent, 2 * number + 1, dependent)]
        return sorted(both)

    return by_text(pairs)


def pairs_of(measure: Measure) -> Callable[[AnnotatedText], list[Pair]]:
    """What gives the pairs of a measure of word pairs.

    Raises:
        InputError: a text has no such word.
    """

    def pairs(text: AnnotatedText) -> list[Pair]:
        assert measure.pairs is not None
        both, n = sorted({*measure.pairs(text)}), len(text.words)
        if outside := [pair for pair in both if not all(0 <= word < n for word in pair)]:
            words = f"pairs of words 0-{n - 1} of {text.document}, got {outside[0]}"
            raise InputError(f"measure {measure.name}: expected {words}")
        return [(query, target, 0, query) for query, target in both]

    return by_text(pairs)


@dataclass(frozen=True)
class Items:
    """Questions put to a batch: which prompt, which query and target word (counted in the window), which measure."""

    batch: Batch
    prompt: Int[Tensor, " item"]
    query: Int[Tensor, " item"]
    target: Int[Tensor, " item"]
    column: Int[Tensor, " item"]

    @staticmethod
    def of(
        batch: Batch, pairs: Callable[[AnnotatedText], list[Pair]], unseen: np.ndarray, *, causal: bool, sign: int = 1
    ) -> "Items":
        """The items that a batch shows.

        Args:
            batch: windows.
            pairs: gives the pairs of a text, sorted. Words that are paired with themselves are passed over.
            unseen: by measure, how many items have a target that is not shown: these are added.
            causal: no word after the query is seen; of a batch that is `turned` (`sign` -1), none before it.
            sign: 1, or -1.
        """
        rows: list[tuple[int, int, int, int]] = []
        for prompt, window in enumerate(batch.windows):
            every = pairs(window.text)
            shown = {word for word, n_pieces in enumerate(window.pieces, window.start) if n_pieces}
            begin, end = (bisect_left(every, (word,)) for word in (window.scored_from, window.stop))
            for query, target, column, word in every[begin:end]:
                if query == target or query not in shown:
                    continue
                if target not in shown or (causal and sign * (target - query) > 0):
                    unseen[column] += window.start <= word < window.stop
                else:
                    rows.append((prompt, query - window.start, target - window.start, column))
        columns = torch.tensor(rows, dtype=torch.long, device=batch.device).reshape(-1, 4)
        return Items(batch, *columns.unbind(1))

    def __len__(self) -> int:
        return len(self.prompt)

    def __getitem__(self, which: Tensor) -> "Items":
        return Items(self.batch, self.prompt[which], self.query[which], self.target[which], self.column[which])

    def sought(self, words: Int[Tensor, "item any"]) -> Bool[Tensor, "item any"]:
        """Whether each word is one that its query is asked for by this measure: a verb may have several auxiliaries."""
        n_prompts, n_words = self.batch.pieces.shape
        queries = ((self.column * n_prompts + self.prompt) * n_words + self.query)[:, None] * n_words
        inside = (words >= 0) & (words < n_words)
        return inside & torch.isin(queries + words, queries + self.target[:, None])

    @cached_property
    def tags(self) -> tuple[dict[str, int], Int[Tensor, "prompt word"]]:
        """A number for each tag of a batch, and that of each shown word: -1 where it has none."""
        numbers: dict[str, int] = {}
        of_words = self.batch.by_word(lambda text: [numbers.setdefault(tag, len(numbers)) for tag in text.tags or ()])
        return numbers, of_words

    def nearest(self, tags: Sequence[str], *, before: bool, last_of_run: bool = False) -> Int[Tensor, " item"]:
        """The nearest shown word of some tags on one side of each query, or that ends a run; -1 where there is none."""
        n_words = self.batch.pieces.shape[1]
        word = torch.arange(n_words, device=self.prompt.device)
        numbers, of_words = self.tags
        wanted = of_words.new_tensor([numbers[tag] for tag in tags if tag in numbers])
        shown = torch.isin(of_words, wanted) & (self.batch.pieces > 0)
        if last_of_run:
            shown = shown & ~torch.cat([shown[:, 1:], torch.zeros_like(shown[:, :1])], 1)
        none = torch.full_like(word[:1], -1 if before else n_words).expand(len(shown), 1)
        places = torch.where(shown, word, none)
        if before:
            nearest = torch.cat([none, places.cummax(1).values[:, :-1]], 1)
        else:
            nearest = torch.cat([places.flip(1).cummin(1).values.flip(1)[:, 1:], none], 1)
        chosen = nearest[self.prompt, self.query]
        return torch.where(chosen < n_words, chosen, -1)


@dataclass(frozen=True)
class _Columns(Attended):
    """Patterns with rows and columns changed: each column over the number of pieces of its word."""

    pieces: Int[Tensor, "prompt position"] | None = None

    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """What some keys get."""
        assert self.pieces is not None
        return self.pattern.transpose(-1, -2)[prompt, :, query] / self.pieces[prompt][:, None].to(self.pattern)


def turned(batch: Batch) -> Batch:
    """The same texts with rows and columns of the pattern changed: what each word gets, from every word.

    A word's pieces are still added up where they are attended to and averaged where they attend: here the keys attend.
    """
    pieces = batch.pieces.gather(1, batch.word_of.clamp(min=0)).clamp(min=1)
    rows = replace(batch.rows, visible=batch.rows.visible.transpose(-1, -2))
    return replace(batch, attention=_Columns(batch.pattern, pieces=pieces), rows=rows)


@dataclass(frozen=True)
class Judged:
    """Whether each head chose the target, and what that is on average when the words of a bin change places.

    `chosen` is the word that it chose, -1 where several tie or none has any attention, and `mass` the attention on it.
    """

    right: Float[Tensor, "item head"]
    mean: Float[Tensor, "item head"]
    variance: Float[Tensor, "item head"]
    chosen: Int[Tensor, "item head"]
    mass: Float[Tensor, "item head"]

    def replaced(self, which: Int[Tensor, " some"], by: "Judged") -> "Judged":
        """The same, with some items judged anew."""
        pairs = ((getattr(self, field.name), getattr(by, field.name)) for field in fields(self))
        return Judged(*(own.index_copy(0, which, new) for own, new in pairs))


class Choices:
    """The rows of the words that ask, over words: attention to a word lies at the column of its first piece."""

    def __init__(self, batch: Batch, items: Items):
        """Look each asking word's rows up, once for all its items."""
        self.batch, self.items = batch, items
        n_words = batch.pieces.shape[1]
        number, self.asking = (items.prompt * n_words + items.query).unique(return_inverse=True)
        self.prompt, self.word = number // n_words, number % n_words
        self.of, self.piece = (batch.word_of[self.prompt] == self.word[:, None]).nonzero(as_tuple=True)
        self.first_word = batch.word_of[:, 0]
        self.rows, self.to_first = self._rows()

    @cached_property
    def kept(self) -> Judged:
        """Every row as it is."""
        return self._judge(torch.ones_like(self.word, dtype=torch.bool), None)[1]

    def beside_rules(self) -> Chosen:
        """What heads and rules choose, the first position kept."""
        items, words = self.items, torch.stack([rule(self.items) for rule in (*OFFSETS, *NEAREST)], 1)
        target, chosen = items.target[:, None], self.kept.chosen
        return Chosen(
            measure=items.column,
            groups=self.batch.groups[items.prompt.cpu()],
            rules=torch.where(words < 0, NO_WORD_FOR_IT, words - items.query[:, None]),
            hits=words == target,
            sought=items.sought(words),
            chosen=torch.where(chosen < 0, NO_CHOICE, chosen - items.query[:, None]),
            right=chosen == target,
            mass=self.kept.mass,
            chance=self._chance_of_tag(),
        )

    def _chance_of_tag(self) -> Float[Tensor, "item head"]:
        """How often each choice is right where the words of the target's tag, about as far away, change places."""
        items, chosen = self.items, self.kept.chosen
        _, tags = items.tags
        fits = self._among(items, without_first=False)[1]
        fits &= tags[items.prompt] == tags[items.prompt, items.target][:, None]  # item word
        hits = fits.gather(1, chosen.clamp(min=0)) & (chosen >= 0)
        return hits.to(self.kept.mass) / fits.sum(1).clamp(min=1)[:, None]

    def removed(self, sink: Sink) -> Judged:
        """Without the first position. One row's choice is the same unless it was there; a mean of rows is another."""
        many_rows, first = self.batch.pieces[self.prompt, self.word] > 1, self.first_word[self.prompt] != NO_WORD
        return self.kept.replaced(*self._judge(many_rows | first, sink.scale))

    def lost(self, sink: Sink) -> tuple[Bool[Tensor, "item head"], Bool[Tensor, " item"]]:
        """Items of which a row keeps too little without the first position, and those whose target stood there."""
        gone = (~rows_at(sink.kept, self.prompt[self.of], self.piece)).to(self.rows)
        by_word = gone.new_zeros(len(self.word), gone.shape[1]).index_add_(0, self.of, gone)
        return by_word[self.asking] > 0, self.first_word[self.items.prompt] == self.items.target

    def ruled(self, rivals: Sequence[Rival], *, without_first: bool) -> Float[Tensor, "item rival"]:
        """How often each rule is right: 0 or 1, or by chance."""
        items = self.items  # a one-hot row's highest word needs no search
        right = [self._chance(without_first) if rule.looks is None else rule(items) == items.target for rule in rivals]
        return torch.stack(right, 1).to(self.rows)

    def _chance(self, without_first: bool) -> Float[Tensor, " item"]:
        """One in as many as there are other words to see."""
        batch, (prompt, query) = self.batch, (self.items.prompt, self.items.query)
        visible = batch.rows.visible[prompt, batch.first_piece[prompt, query]].gather(1, batch.first_piece[prompt])
        return 1 / (visible & self._among(self.items, without_first=without_first)[0]).sum(1).clamp(min=1)

    def _among(
        self, items: Items, *, without_first: bool
    ) -> tuple[Bool[Tensor, "item word"], Bool[Tensor, "item word"], Int[Tensor, "item word"]]:
        """The words that an item chooses among, those of them about as far away as the target, and all words' bins."""
        pieces = self.batch.pieces[items.prompt]
        words = torch.arange(pieces.shape[1], device=pieces.device)
        candidates = (pieces > 0) & (words != items.query[:, None])
        if without_first:
            candidates &= (words != self.first_word[items.prompt, None]) | (pieces > 1)
        bins = distance_bin(words - items.query[:, None])
        return candidates, candidates & (bins == bins.gather(1, items.target[:, None])), bins

    def _rows(self) -> tuple[Float[Tensor, "piece head key"], Float[Tensor, "piece head"]]:
        """Attention from each piece of the words that ask to other words, and apart from it to the first position."""
        prompt, word_of = self.prompt[self.of], self.batch.word_of
        rows = self.batch.attention.rows(prompt, self.piece)
        others = (word_of != NO_WORD)[prompt] & (word_of[prompt] != self.word[self.of, None])
        to_first = rows[..., 0] * others[:, :1]
        others[:, 0] = False
        rows *= others[:, None]
        in_pieces = (word_of != NO_WORD) & (self.batch.pieces.gather(1, word_of.clamp(min=0)) > 1)
        first = self.batch.first_piece.gather(1, word_of.clamp(min=0))
        ends = torch.bincount(prompt, minlength=len(word_of)).cumsum(0).tolist()
        for number, (begin, end) in enumerate(pairwise([0, *ends])):
            (columns,) = in_pieces[number].nonzero(as_tuple=True)
            into = (first[number, :, None] == columns).to(rows)  # all of a word at its first piece, 0 at others
            added_up = rows[begin:end] @ into
            rows[begin:end].scatter_(-1, columns.expand(added_up.shape), added_up)
        return rows, to_first

    def _judge(self, words: Bool[Tensor, " word"], scale: Tensor | None) -> tuple[Int[Tensor, " item"], Judged]:
        """Which items some of the words ask, and how they are judged; `scale` comes with the reading without the sink.

        A word looks as its pieces do on average, and so hardest where their sum does.
        """
        (piece,), (which,) = words[self.of].nonzero(as_tuple=True), words[self.asking].nonzero(as_tuple=True)
        number = words.cumsum(0) - 1
        of, rows = number[self.of[piece]], self.rows
        if scale is not None:
            scale = rows_at(scale, self.prompt[self.of[piece]], self.piece[piece])
            rows = rows.index_select(0, piece).mul_(scale[..., None])
        pooled = rows.new_zeros(int(words.sum()), *rows.shape[1:]).index_add_(0, of, rows)
        if scale is None:
            pooled[..., 0].index_add_(0, of, self.to_first)
        return which, self._judged(pooled, number[self.asking[which]], self.items[which], scale is not None)

    def _judged(
        self, pooled: Float[Tensor, "word head key"], at: Int[Tensor, " item"], items: Items, without_first: bool
    ) -> Judged:
        highest_of_word, first_piece = selection.Highest.of(pooled), self.batch.first_piece[items.prompt]
        highest = selection.Highest(highest_of_word.score[at], highest_of_word.at[at], highest_of_word.tied[at])
        target = pooled[at, :, first_piece.gather(1, items.target[:, None])[:, 0]]
        right = ((target == highest.score) & (target > 0)).to(target)
        chosen = self.batch.word_of.flatten()[items.prompt[:, None] * self.batch.word_of.shape[1] + highest.at]
        candidates, near, bins = self._among(items, without_first=without_first)
        in_bin = (near.gather(1, chosen.clamp(min=0)) & (highest.score > 0)).to(target)
        mean = in_bin / near.sum(1).clamp(min=1)[:, None].to(target)
        variance = mean * (in_bin - mean)
        item, head = highest.several()
        if len(item):  # several words tie for the highest: the plain scorer
            scores = pooled[at[item], head].gather(1, first_piece[item])[:, None]
            correct = torch.arange(bins.shape[1], device=bins.device) == items.target[item, None]
            masks = candidates[item], candidates[item] & correct
            plain = selection.accuracy(scores, *masks), *nulls.choice(scores, *masks, bins[item])
            for values, anew in zip((right, mean, variance), plain, strict=True):
                values[item, head] = anew[:, 0]
        alone = (highest.score > 0) & ~highest.tied
        mass = highest.score / self.batch.pieces[items.prompt, items.query][:, None]  # a word's rows were added up
        return Judged(right, mean, variance, torch.where(alone, chosen, -1), mass)


class ChoiceTotals:
    """Items chosen right, by group and measure: heads, then rivals."""

    def __init__(self, n_heads: int, n_measures: int, rivals: Sequence[Rival]):
        self.n_heads, self.n_measures, self.rivals = n_heads, n_measures, rivals
        n_columns = 4 * n_heads + 2 * len(rivals)
        self.sums = torch.zeros(N_GROUPS * n_measures, n_columns, dtype=torch.float64)

    def read(self, choices: Choices, sink: str) -> None:
        """Add the items of a batch, without those that are lost to a head or to all."""
        removed = sink == "removed"
        judged = choices.removed(choices.batch.sink) if removed else choices.kept
        rivals = choices.ruled(self.rivals, without_first=removed)
        counted, everywhere = torch.ones_like(judged.right), torch.ones_like(rivals)
        if removed:
            rows, at_sink = choices.lost(choices.batch.sink)
            everywhere *= ~at_sink[:, None]
            counted = (~rows & ~at_sink[:, None]).to(judged.right)
        columns = [judged.right * counted, rivals * everywhere, counted, everywhere]
        columns += [judged.mean * counted, judged.variance * counted]
        items = choices.items
        row = choices.batch.groups.to(items.prompt)[items.prompt] * self.n_measures + items.column
        self.sums.index_add_(0, row.cpu(), torch.cat(columns, 1).cpu().double())

    def scored(self, measures: Sequence[Measure], sink: Literal["kept", "removed"]) -> Scored:
        """Totals over heads and rivals, with the heads' null."""
        totals, null = self.finish()
        return Scored(totals, measures, sink, null=null)

    def finish(self) -> tuple[Totals, Null]:
        """Totals over heads and rivals, and the heads' null."""
        n, n_rivals = self.n_heads, len(self.rivals)
        sums = self.sums.unflatten(0, (N_GROUPS, self.n_measures)).transpose(1, 2)
        scores, weights, mean, variance = sums.split([n + n_rivals, n + n_rivals, n, n], 1)
        return Totals(scores, weights, weights), Null(mean, variance)
