"""How does a model read a text? Whole if it fits the context, else in overlapping windows.

Windows overlap by half. Each word is scored once, in the window with the most text before it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from analyses.reading.inputs import Attended, Heads, Pass, by_ids, is_paired, makes_rows, shown_to, tokenizer_of
from interp import AnnotatedText, InputError, Model, TokenBatch, Tokenizer
from interp.patterns import Rows, group_of
from interp.patterns.one_attention import NormWeighted
from interp.patterns.positional import Crossing
from interp.patterns.rows import Sink
from interp.tokens import NO_WORD, align
from interp.visibility import Visibility

Progress = Callable[[int], object]
T = TypeVar("T")
MASKED = 0.15  # the largest share of tokens to mask, as in training (Devlin 2019)
_POOL = 256  # windows to sort by length together, so batches need little padding
_PATTERN_ELEMENTS = 4_000_000  # for all heads of one batch, to limit memory
_TOKENS = 1024  # per batch without patterns: enough to fill a processor


@dataclass(frozen=True)
class Window:
    """A stretch of a text's words, as the model reads it."""

    text: AnnotatedText
    start: int  # first word shown
    stop: int  # after the last word shown
    scored_from: int  # earlier windows score the words before this one
    ids: tuple[int, ...]
    word_of: tuple[int, ...]  # the text's word that each token belongs to; NO_WORD for none
    special: tuple[bool, ...]
    source: tuple[int, ...] | None = None  # what the encoder reads while a decoder reads `ids`

    @cached_property
    def pieces(self) -> list[int]:
        """The number of tokens of each shown word, from `start` on."""
        count = Counter(self.word_of)
        return [count[word] for word in range(self.start, self.stop)]

    @cached_property
    def masks(self) -> tuple[Bool[Tensor, " column"], Bool[Tensor, " column"]]:
        """Masks of the columns without a special token, and of those that this window scores."""
        content, words = ~torch.tensor(self.special), torch.tensor(self.word_of)
        return content, content & ((words == NO_WORD) | (words >= self.scored_from))

    @cached_property
    def content(self) -> frozenset[int]:
        """The columns without a special token."""
        return frozenset(self.masks[0].nonzero().flatten().tolist())

    @cached_property
    def scored(self) -> frozenset[int]:
        """The columns that this window scores."""
        return frozenset(self.masks[1].nonzero().flatten().tolist())

    @cached_property
    def columns(self) -> dict[int, list[int]]:
        """The columns of each word's pieces."""
        columns: dict[int, list[int]] = {}
        for column in sorted(self.content):
            if self.word_of[column] != NO_WORD:
                columns.setdefault(self.word_of[column], []).append(column)
        return columns

    @cached_property
    def rows(self) -> Rows:
        """The window's tokens as a batch of one, all visible."""
        n, (content, scored) = len(self.ids), self.masks
        return Rows(torch.tensor([self.ids]), content[None], scored[None], torch.ones(1, n, n, dtype=torch.bool))

    @property
    def excerpt(self) -> str:
        """The shown words, as running text."""
        spans = self.text.word_spans
        return self.text.text[spans[self.start][0] : spans[self.stop - 1][1]]

    def shows(self, word: int) -> bool:
        """Whether the window shows the word with a token of its own."""
        return self.start <= word < self.stop and self.pieces[word - self.start] > 0

    def scores(self, word: int) -> bool:
        """Whether this window scores the word."""
        return self.scored_from <= word and self.shows(word)


def by_text(make: Callable[[AnnotatedText], T]) -> Callable[[AnnotatedText], T]:
    """Cache a function by the text's identity, because hashing a novel takes long."""
    recent: dict[int, tuple[AnnotatedText, T]] = {}

    def recall(text: AnnotatedText) -> T:
        if id(text) not in recent:
            if len(recent) >= 2 * _POOL:
                recent.clear()
            recent[id(text)] = text, make(text)
        return recent[id(text)][1]

    return recall


def windows(text: AnnotatedText, tokenizer: Tokenizer, n_ctx: int, counts: Counter[str]) -> Iterator[Window]:
    """The windows of one text; `counts` gets its tokens and what was cut or left out."""
    pieces = tokenizer.pieces(text.text)
    word_of = align(pieces.spans, text.word_spans, text.text)
    prefix, suffix = ([NO_WORD] * len(ids) for ids in (tokenizer.prefix, tokenizer.suffix))
    special_ids = tokenizer.special_ids
    room = n_ctx - len(prefix) - len(suffix)
    counts["words without a token of their own"] += len(text.words) - len({*word_of} - {NO_WORD})
    counts["unknown tokens"] += pieces.ids.count(tokenizer.unknown_id) if tokenizer.unknown_id is not None else 0
    counts["tokens"] += len(pieces.ids)
    if len(pieces.ids) == 0 or room < 2:
        counts["texts left out: no tokens, or no room for two"] += 1
        return
    counts["texts longer than the context, read in windows"] += len(pieces.ids) > room
    neighbours = enumerate(pairwise([NO_WORD, *word_of]))
    starts = [index for index, (before, word) in neighbours if word not in (NO_WORD, before)]
    begin, scored = 0, 0
    while True:
        end = len(pieces.ids)
        if end > begin + room:  # do not cut a word
            whole = bisect_right(starts, begin + room)
            end = starts[whole - 1] if whole else 0
        if end <= begin:
            counts["texts cut short: a word longer than the context"] += 1
            return
        visible_words = [word for word in word_of[begin:end] if word != NO_WORD]
        first, stop = (min(visible_words), max(visible_words) + 1) if visible_words else (0, 0)
        if end == len(pieces.ids):
            stop = len(text.words)
        if visible_words:
            ids = pieces.ids[begin:end]
            yield Window(
                *(text, first, stop, max(scored, first)),
                ids=(*tokenizer.prefix, *ids, *tokenizer.suffix),
                word_of=(*prefix, *word_of[begin:end], *suffix),
                special=(*[True] * len(prefix), *(id in special_ids for id in ids), *[True] * len(suffix)),
            )
            scored = stop
        if end == len(pieces.ids):
            return
        begin = starts[bisect_left(starts, begin + max(1, (end - begin) // 2))]


@dataclass(frozen=True)
class Batch:
    """Windows read together, with every head's attention: heads of all layers on one axis, layer by layer.

    `rows` describes the query tokens; in cross-attention, `crossing` describes queries and keys. `weighted` is the
    attention weighted by the norm of the output, if the reading has it. Attention is computed on first use; if you need
    few rows, use `attention.rows`.
    """

    windows: list[Window]
    tokens: TokenBatch
    attention: Attended
    rows: Rows
    groups: Int[Tensor, " prompt"]
    crossing: Crossing | None = None
    weighted: Attended | None = None

    @property
    def pattern(self) -> Float[Tensor, "prompt head query key"]:
        """Every head's whole pattern."""
        return self.attention.pattern

    @property
    def by_norm(self) -> "Batch":
        """The same batch, with attention weighted by the norm of the output."""
        assert self.weighted is not None
        return replace(self, attention=self.weighted, weighted=None)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.tokens.ids.device

    @cached_property
    def word_of(self) -> Int[Tensor, "prompt position"]:
        """The word that each token belongs to, counted in its window; NO_WORD for none."""
        words = pad_sequence([torch.tensor(window.word_of) for window in self.windows], True, NO_WORD)
        starts = torch.tensor([[window.start] for window in self.windows])
        return torch.where(words == NO_WORD, words, words - starts).to(self.device)

    @cached_property
    def _belongs(self) -> Bool[Tensor, "prompt word position"]:
        n_words = max(window.stop - window.start for window in self.windows)
        return self.word_of[:, None] == torch.arange(n_words, device=self.device)[:, None]

    @cached_property
    def pieces(self) -> Int[Tensor, "prompt word"]:
        """The number of tokens of each word; 0 beyond a window's end."""
        return self._belongs.sum(2)

    @cached_property
    def first_piece(self) -> Int[Tensor, "prompt word"]:
        """The column of each word's first token; 0 if it has none."""
        return self._belongs.int().argmax(2)

    def by_word(
        self, values: Callable[[AnnotatedText], Sequence[int] | None], *, are_words: bool = False
    ) -> Int[Tensor, "prompt word"]:
        """A number for each shown word, from `values` for all words of its text; -1 for none.

        With `are_words`, the numbers are word indices of the text, which become indices in the window.
        """
        by_prompt = np.full(tuple(self.pieces.shape), -1)
        for prompt, window in enumerate(self.windows):
            if numbers := values(window.text):
                window_values = np.array(numbers[window.start : window.stop])
                by_prompt[prompt, : len(window_values)] = window_values - window.start * are_words
        return torch.from_numpy(by_prompt).to(self.device)

    @cached_property
    def sink(self) -> Sink:
        """The first position, which the second reading removes."""
        return Sink.from_pattern(self.pattern)


@dataclass
class Reading:
    """A corpus read by a model: batches of patterns, and counts of what was read and left out.

    A model without a tokenizer reads texts of token ids. `weighted` also weights patterns by the norm of the output, in
    the same pass. If all readers use only `few_rows`, batches are as large as without patterns.
    """

    model: Model
    corpus: Iterable[AnnotatedText]
    progress: Progress | None = None
    heads: Heads | None = None
    weighted: NormWeighted | None = None
    few_rows: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    documents: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.model.tokenizer is None:
            self.model = by_ids(self.model)

    def __iter__(self) -> Iterator[Batch]:
        return (read_batch(self.model, self.read, lot, self.weighted, few_rows=self.few_rows) for lot in self.batches())

    def batches(self) -> Iterator[list[Window]]:
        """The windows of each batch."""
        unread = self._windows()
        while pool := [*islice(unread, _POOL)]:
            yield from self.batched(pool)
        if not self.counts["texts"]:
            raise InputError("the corpus holds no text: expected at least one")

    @cached_property
    def read(self) -> Heads:
        """The heads whose patterns are read."""
        return self.heads or Heads.from_model(self.model)

    def _windows(self) -> Iterator[Window]:
        model, heads = self.model, self.read
        tokenizer, n_ctx = tokenizer_of(model, heads), model.config.stacks[heads.stack].n_ctx
        for number, text in enumerate(self.corpus, 1):
            self.counts["texts"] += 1
            self.documents.add(text.document)
            for window in windows(shown_to(model, heads, text), tokenizer, n_ctx, self.counts):
                if not is_paired(model, heads):
                    yield window
                elif with_source := self._with_source(window, text):
                    yield with_source
            if self.progress is not None:
                self.progress(number)

    def _with_source(self, window: Window, text: AnnotatedText) -> Window | None:
        """A decoder's window with the encoder's input: the text's source, or the same words; None if it is too long."""
        whole = window.stop - window.start == len(window.text.words)
        if text.target is not None and not whole:
            self.counts["targets left out: longer than the decoder's context"] += window.start == 0
            return None
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        source = tokenizer.encode(text.text if text.target is not None else window.excerpt)
        if len(source) > self.model.config.stacks["encoder"].n_ctx:
            self.counts["windows left out: their source is longer than the encoder's context"] += 1
            return None
        return replace(window, source=tuple(source))

    def batched(self, pool: Sequence[Window]) -> Iterator[list[Window]]:
        """The windows in batches of similar length, as large as memory allows."""

        def fits(size: int, longest: Window) -> bool:
            length = max(len(longest.ids), len(longest.source or ()))
            if self.few_rows and makes_rows(self.model, self.read):
                return size * length <= _TOKENS
            return self.read.count * size * length**2 <= _PATTERN_ELEMENTS

        pool = sorted(pool, key=lambda window: len(window.ids))
        while pool:
            size = 1
            while size < len(pool) and fits(size + 1, pool[size]):
                size += 1
            yield pool[:size]
            pool = pool[size:]


def read_batch(
    model: Model, heads: Heads, windows: list[Window], norms: NormWeighted | None = None, *, few_rows: bool = False
) -> Batch:
    """Windows with the attention of some heads, from one pass of the model; `norms` also weights it."""
    sources = [window.source for window in windows if window.source is not None]
    reading = Pass(model, heads, [window.ids for window in windows], sources or None, norms, few_rows=few_rows)
    tokens, source = reading.tokens, reading.source
    masks = zip(*(window.masks for window in windows), strict=True)
    content, scored = (pad_sequence([*each], batch_first=True).to(model.device) for each in masks)
    visible = Visibility.from_batch(tokens, causal=model.config.stacks[heads.stack].causal).mask()[:, 0]
    crosses = heads.attention == "cross" and source is not None
    return Batch(
        windows=windows,
        tokens=tokens,
        attention=Attended(reading),
        rows=Rows(tokens.ids, content, scored, visible.expand(len(windows), -1, -1)),
        groups=torch.tensor([group_of(window.text.document) for window in windows]),
        crossing=Crossing(scored, tokens.mask, reading.read.mask) if crosses else None,
        weighted=None if norms is None else Attended(reading, by_norm=True),
    )
