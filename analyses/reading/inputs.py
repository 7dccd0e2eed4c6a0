"""Which heads do we read, which text does each kind of attention read, and what do heads attend to there?

An encoder reads the source, a decoder's self-attention the target; cross-attention looks from the target into the
source. A text without a target is its own target. A model without a tokenizer reads texts of token ids, which is enough
for measures of position.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from interp import AnnotatedText, InputError, Model, TokenBatch, Tokenizer, Transformer
from interp.model import target_tokenizer
from interp.patterns import group_of
from interp.patterns.one_attention import FewRows, NormWeighted, read_patterns
from interp.patterns.rows import Pattern, rows_at
from interp.running import check_finite
from interp.tokens import Pieces

AnyModel = TypeVar("AnyModel", bound=Model)


@dataclass(frozen=True)
class Heads:
    """The heads of one kind of attention in one stack, layer by layer."""

    stack: str
    n_layers: int
    n_heads: int
    attention: Literal["self", "cross"] = "self"
    causal: bool = True  # queries see no later key

    @staticmethod
    def from_model(model: Model) -> "Heads":
        """The self-attention of a model of one stack."""
        heads, *rest = Heads.kinds_of(model)
        if rest:
            raise InputError("expected a model of one stack: this one has an encoder and a decoder, name which heads")
        return heads

    @staticmethod
    def kinds_of(model: Model) -> "list[Heads]":
        """Every kind of attention of a model: in the encoder, in the decoder, and between them."""
        kinds = [Heads(name, s.n_layers, s.n_heads, causal=s.causal) for name, s in model.config.stacks.items()]
        return kinds + [replace(each, attention="cross", causal=False) for each in kinds[1:]]

    @property
    def title(self) -> str:
        """The heads' name in a sentence."""
        return "cross-attention" if self.attention == "cross" else f"the {self.stack}’s self-attention"

    @property
    def called(self) -> str:
        """The heads' name in files and records."""
        return "cross" if self.attention == "cross" else self.stack

    @property
    def count(self) -> int:
        """The number of heads."""
        return self.n_layers * self.n_heads

    def columns(self, n_measures: int) -> tuple[dict[str, Any], np.ndarray]:
        """Stack, attention, layer and head of every row, measures running fastest; and each row's measure index."""
        shape = self.n_layers, self.n_heads, n_measures
        layer, head, measure = np.unravel_index(np.arange(np.prod(shape)), shape)
        return {"stack": self.stack, "attention": self.attention, "layer": layer, "head": head}, measure


def is_paired(model: Model, heads: Heads) -> bool:
    """Whether the heads are in the decoder of an encoder-decoder."""
    return heads.stack == "decoder" and "encoder" in model.config.stacks


def tokenizer_of(model: Model, heads: Heads) -> Tokenizer:
    """The tokenizer of the heads' queries."""
    assert model.tokenizer is not None  # `Reading` ensures it
    return target_tokenizer(model) if is_paired(model, heads) else model.tokenizer


def mask_of(model: Model, heads: Heads) -> int | None:
    """The mask token for these heads; None without one, in cross-attention, or if they see no later word."""
    alone = heads.attention == "self" and not heads.causal and model.tokenizer is not None
    return tokenizer_of(model, heads).mask_id if alone else None


def shown_to(model: Model, heads: Heads, text: AnnotatedText) -> AnnotatedText:
    """The text of the heads' queries: in the decoder of an encoder-decoder, the target if there is one."""
    if text.target is None or not is_paired(model, heads):
        return text
    return AnnotatedText.plain(text.target, text.document)


def least_target(model: Model, count: int) -> Tensor | None:
    """The shortest decoder input, for reading only the encoder; None for one stack."""
    if len(model.config.stacks) == 1:
        return None
    return torch.full((count, 1), model.config.target_start or 0)


class TokenIds(Tokenizer):
    """Reads "5 17 3" as the ids 5, 17 and 3, without special tokens."""

    def __init__(self, d_vocab: int):
        self.backend = Backend(WordLevel({str(id): id for id in range(d_vocab)}))
        self.backend.pre_tokenizer = WhitespaceSplit()
        self.prefix, self.suffix = (), ()

    def knows(self, word: str) -> bool:
        """Whether a word is an id."""
        return self.backend.token_to_id(word) is not None

    def pieces(self, text: str) -> Pieces:
        """The ids of a text."""
        for word in text.split():
            if not self.knows(word):
                raise InputError(
                    f"this model has no tokenizer, so it reads token ids from 0 to {self.largest_id}: expected texts "
                    f'like "5 17 3", got {word[:40]!r}; or give the model a tokenizer'
                )
        return super().pieces(text)

    def around(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> "TokenIds":
        """A copy that puts ids around every text."""
        tokenizer = copy.copy(self)
        tokenizer.prefix, tokenizer.suffix = prefix, suffix
        return tokenizer


def by_ids(model: AnyModel) -> AnyModel:
    """A copy of the model that shares its weights and reads token ids."""
    reading: Any = copy.copy(model)
    first, last = next(iter(model.config.stacks.values())), model.config.last
    try:
        reading.tokenizer, reading.target_tokenizer = TokenIds(first.d_vocab), TokenIds(last.d_vocab)
    except AttributeError as error:
        raise InputError(
            "without a tokenizer: expected a model whose tokenizer and target_tokenizer can be set"
        ) from error
    return reading


@dataclass(frozen=True)
class Sample:
    """The beginnings of some documents in one half of a corpus, the same in every run.

    We read only the first words of each, because documents, not rows, make intervals narrow.
    """

    corpus: Iterable[AnnotatedText]
    half: Literal[0, 1]
    documents: int
    words: int  # most words per document; longer texts are cut, after a sentence if possible

    def __iter__(self) -> Iterator[AnnotatedText]:
        room: dict[str, int] = {}
        for text in self.corpus:
            if group_of(text.document) % 2 != self.half:
                continue
            if text.document not in room and len(room) == self.documents:
                return
            words_left = room.get(text.document, self.words)
            cut = _beginning(text, words_left)
            room[text.document] = words_left - len(cut.words) if len(cut.words) == len(text.words) else 0
            if cut.words:
                yield cut


def _beginning(text: AnnotatedText, n_words: int) -> AnnotatedText:
    """As many whole sentences as fit, or the first words if no sentence fits."""
    if len(text.words) <= n_words or text.target is not None:
        return text
    stops = [start for start in text.sentence_starts if 0 < start <= n_words]
    return text.excerpt(0, max(stops, default=n_words))


def makes_rows(model: Model, heads: Heads) -> bool:
    """Whether these heads' rows can be computed without whole patterns."""
    return isinstance(model, Transformer) and heads.attention == "self"


class Pass:
    """One lazy pass of a model over texts; `tokens` are the heads' queries.

    If only rows are used, no whole pattern is computed, which takes a fraction of the time and memory. The first stack
    reads `read`, a decoder after an encoder reads `target`.
    """

    def __init__(
        self,
        model: Model,
        heads: Heads,
        ids: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None = None,
        norms: NormWeighted | None = None,
        *,
        few_rows: bool = False,
    ):
        """`norms` also weights patterns by the norm of the output; `few_rows` promises to use no whole pattern."""
        self.model, self.heads, self.norms, self.few_rows = model, heads, norms, few_rows
        self.tokens = TokenBatch.from_rows(ids).to(model.device)
        self.source = None if sources is None else TokenBatch.from_rows(sources).to(model.device)
        self.read = self.tokens if self.source is None else self.source
        self.target = least_target(model, len(ids)) if self.source is None else self.tokens
        self.site = f"{heads.stack}.*.{'cross_attn' if heads.attention == 'cross' else 'attn'}.pattern"

    @cached_property
    def whole(self) -> tuple[Pattern, Pattern | None]:
        """Every head's pattern, layer by layer, and the same weighted by norm (None without `norms`)."""
        if self.norms is None:
            pattern, by_norm = read_patterns(self.model, self.read, self.site, self.target), None
        else:
            pattern, by_norm = self.norms.with_plain(self.read, self.target)
        undefined = pattern.sum((1, 3)).isnan() & self.tokens.mask
        if not bool(undefined.any()):
            return pattern, by_norm
        row = int(undefined.any(1).int().argmax())
        alone = [each.ids[row][each.mask[row]][None] for each in (self.read, self.tokens)]
        check_finite(self.model, alone[0], None if self.source is None else alone[1])
        n_tokens, dtype = int(self.tokens.mask[row].sum()), self.model.dtype
        raise InputError(f"{self.site} holds NaN in {dtype} on a text of {n_tokens} tokens, though not alone")

    @cached_property
    def few(self) -> FewRows | None:
        """The source of single rows; None if whole patterns were read first, or are the only way."""
        if not self.few_rows or "whole" in self.__dict__ or not makes_rows(self.model, self.heads):
            return None
        assert isinstance(self.model, Transformer)
        return FewRows.from_tokens(self.model, self.read, self.heads.stack, self.target, norms=self.norms is not None)


@dataclass(frozen=True)
class Attended:
    """The patterns of a batch, with all heads on one axis, layer by layer: given, or from a pass."""

    source: Pattern | Pass
    by_norm: bool = False  # if from a pass: weighted by the norm of the output

    @property
    def pattern(self) -> Pattern:
        """The whole patterns."""
        pattern = self.source.whole[self.by_norm] if isinstance(self.source, Pass) else self.source
        assert pattern is not None
        return pattern

    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """The rows of some queries."""
        few = self.source.few if isinstance(self.source, Pass) else None
        if few is not None:
            rows = few.rows(prompt, query, by_norm=self.by_norm)
            if not bool(rows.isnan().any()):
                return rows  # else whole patterns raise, naming what is undefined
        return rows_at(self.pattern, prompt, query)
