"""Transformers with hand-set weights whose heads are known: what the analyses must find, and nothing else.

The residual stream is a table of slots: which token stands here, at which position, what the previous token was, and
what a head wrote for the output. A head is two matrices over these slots: `looks` scores a query slot against a key
slot, `moves` carries slots of the key to slots of the query. There is no norm and no feed-forward, so every number can
be derived on paper.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from interp import InputError, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.config import Learned, NoMLP, NoNorm

GAIN = 40.0  # a score this much above the others leaves them e^-40 of the attention
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Slots:
    """Where things stand in the residual stream: one dimension a token, position, or token of another slot."""

    vocabulary: tuple[str, ...]
    n_ctx: int

    @property
    def n_tokens(self) -> int:
        """Tokens of the vocabulary."""
        return len(self.vocabulary)

    @property
    def d_model(self) -> int:
        """Token, position, previous token, output."""
        return 3 * self.n_tokens + self.n_ctx

    def token(self, word: str) -> int:
        """The slot that says: this token stands here."""
        if word not in self.vocabulary:
            raise InputError(f"{word!r} is not in the planted vocabulary of {self.n_tokens} words")
        return self.vocabulary.index(word)

    def position(self, at: int) -> int:
        """The slot that says: this is position `at`."""
        return self.n_tokens + at

    @property
    def tokens(self) -> slice:
        """All token slots."""
        return slice(0, self.n_tokens)

    @property
    def positions(self) -> slice:
        """All position slots."""
        return slice(self.n_tokens, self.n_tokens + self.n_ctx)

    @property
    def previous(self) -> slice:
        """Which token stood before: written by a previous-token head."""
        return slice(self.n_tokens + self.n_ctx, 2 * self.n_tokens + self.n_ctx)

    @property
    def output(self) -> slice:
        """What is read as logits."""
        return slice(2 * self.n_tokens + self.n_ctx, self.d_model)


@dataclass(frozen=True)
class Head:
    """`looks` is query slot x key slot, `moves` is key slot x query slot; both start at zero: uniform, silent."""

    looks: Float[Tensor, "d_model d_model"]
    moves: Float[Tensor, "d_model d_model"]


Plan = Callable[[Slots], Head]


def _blank(slots: Slots) -> Head:
    return Head(torch.zeros(slots.d_model, slots.d_model), torch.zeros(slots.d_model, slots.d_model))


def uniform(slots: Slots) -> Head:
    """Looks everywhere alike and writes nothing."""
    return _blank(slots)


def offset(by: int, *, remember: bool = False) -> Plan:
    """Looks at the token `by` positions away (-1: the previous one); `remember` writes which token it was."""

    def plan(slots: Slots) -> Head:
        head = _blank(slots)
        for at in range(max(0, -by), min(slots.n_ctx, slots.n_ctx - by)):
            head.looks[slots.position(at), slots.position(at + by)] = GAIN
        if remember:
            head.moves[slots.tokens, slots.previous] = torch.eye(slots.n_tokens)
        return head

    return plan


def first_token(slots: Slots) -> Head:
    """Looks at the first position: an attention sink."""
    head = _blank(slots)
    head.looks[slots.positions, slots.position(0)] = 4 * GAIN  # far under 0.01 is left for the others
    return head


def same_token(slots: Slots) -> Head:
    """Looks at every copy of its own token, itself included."""
    head = _blank(slots)
    head.looks[slots.tokens, slots.tokens] = GAIN * torch.eye(slots.n_tokens)
    return head


def induction(strength: float = 10.0) -> Plan:
    """Looks at what followed an earlier copy of its token (read from the previous-token slot) and predicts it."""

    def plan(slots: Slots) -> Head:
        head = _blank(slots)
        head.looks[slots.tokens, slots.previous] = GAIN * torch.eye(slots.n_tokens)
        head.moves[slots.tokens, slots.output] = strength * torch.eye(slots.n_tokens)
        return head

    return plan


def word_to_word(asking: Iterable[str], answering: Iterable[str], *, nearest: bool = True) -> Plan:
    """Looks from the words in `asking` to those in `answering`: the latest one before, or all alike."""
    asking, answering = list(asking), list(answering)

    def plan(slots: Slots) -> Head:
        head = _blank(slots)
        queries = torch.tensor([slots.token(word) for word in asking])
        keys = torch.tensor([slots.token(word) for word in answering])
        # a later key scores GAIN more than the one before it; the right kind of word scores more than all of that
        head.looks[queries[:, None], keys] = GAIN * (slots.n_ctx + 1)
        if nearest:
            head.looks[queries[:, None], torch.arange(slots.n_ctx) + slots.position(0)] = GAIN * torch.arange(
                slots.n_ctx
            )
        return head

    return plan


def antecedent(genders: dict[str, Sequence[str]], writes: dict[str, Sequence[str]], *, strength: float = 1.0) -> Plan:
    """Looks from a word to all words of its gender, and predicts what they stand for.

    Args:
        genders: for each asking word, the words that it may refer to.
        writes: for a word that is looked at, the words whose logits it raises by `strength`.
        strength: the logit that one fully attended word gives.
    """

    def plan(slots: Slots) -> Head:
        head = _blank(slots)
        for asking, answering in genders.items():
            for word in answering:
                head.looks[slots.token(asking), slots.token(word)] = GAIN
        for word, raised in writes.items():
            for written in raised:
                head.moves[slots.token(word), slots.output.start + slots.token(written)] = strength
        return head

    return plan


@dataclass(frozen=True)
class Planted:
    """A planted model's vocabulary and heads, layer by layer; `build` makes the transformer."""

    vocabulary: Sequence[str]
    layers: Sequence[Sequence[Plan]]
    n_ctx: int = 64
    causal: bool = True
    start: str | None = None  # a special token that is put before every text

    def build(self) -> Transformer:
        """The transformer, with a tokenizer that knows one token a word (a hyphen splits a word into pieces)."""
        special = [self.start] if self.start else []
        slots = Slots(tuple(dict.fromkeys([UNKNOWN, *special, *self.vocabulary])), self.n_ctx)
        n_heads = max(map(len, self.layers))
        stack = StackConfig(
            n_layers=len(self.layers),
            d_model=slots.d_model,
            n_heads=n_heads,
            d_head=slots.d_model,
            d_mlp=1,
            n_ctx=self.n_ctx,
            d_vocab=slots.n_tokens,
            causal=self.causal,
            norm=NoNorm(),
            positions=Learned(),
            mlp=NoMLP(),
            attention_bias=False,
            scale=1.0,
        )
        config = TransformerConfig(**{"decoder" if self.causal else "encoder": stack}, output="untied")
        model = Transformer(config, Tokenizer(_tokenizer(slots, self.start)))
        with torch.no_grad():
            _set_weights(model, slots, [[plan(slots) for plan in layer] for layer in self.layers])
        return model


def _set_weights(model: Transformer, slots: Slots, layers: list[list[Head]]) -> None:
    for weight in model.parameters():
        weight.zero_()
    stack = model.last
    stack.embed.token.weight[:, slots.tokens] = torch.eye(slots.n_tokens)
    assert stack.embed.position is not None
    assert model.output is not None
    stack.embed.position.weight[:, slots.positions] = torch.eye(slots.n_ctx)
    model.output.weight[:, slots.output] = torch.eye(slots.n_tokens)
    for block, heads in zip(stack.blocks, layers, strict=True):
        for index, head in enumerate(heads):
            block.attn.W_Q[index] = head.looks
            block.attn.W_K[index] = torch.eye(slots.d_model)
            block.attn.W_V[index] = head.moves
            block.attn.W_O[index] = torch.eye(slots.d_model)


def _tokenizer(slots: Slots, start: str | None) -> Backend:
    backend = Backend(WordLevel({word: id for id, word in enumerate(slots.vocabulary)}, unk_token=UNKNOWN))
    punctuation = Split(Regex(r"[.,!?;:\-]"), "isolated")
    backend.pre_tokenizer = Steps([WhitespaceSplit(), punctuation])
    if start is not None:
        backend.add_special_tokens([start])
        backend.post_processor = TemplateProcessing(f"{start} $A", special_tokens=[(start, backend.token_to_id(start))])
    return backend
