"""From planned heads to a transformer: the compiler.

A head's `looks` and `moves` are as wide as the stream, but read few of its slots. Heads that share keys and values
have one dimension for each slot that any of them reads. W_K picks these slots out and W_Q weighs them; W_V picks and
W_O places. So heads of any behaviours can share keys, and nothing is rounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from interp import InputError, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.attention import Attention
from interp.config import LayerNorm, Learned, NoMLP, NoNorm, RMSNorm
from models.planted.slots import SIZE, Head, Plan, Slots, blank

UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Planted:
    """A planted model's vocabulary and heads, layer by layer; `build` makes the transformer.

    With `crossing`, heads of cross-attention, it also has an encoder, whose heads are `encoding`; `layers` are then the
    decoder's self-attention, with equally many layers.

    Without a norm every number can be derived on paper. With one, a head reads the embedding exactly, up to rounding.
    Behind heads that wrote a vector w, everything read is smaller by a part of about |w|² / (2 SIZE²): 3e-6 for
    |w| = 10, so a row shared by several keys may share unevenly by GAIN times that.

    Raises:
        InputError: no layers, an unknown word or direction, or a head that this form cannot have.
    """

    vocabulary: Sequence[str]
    layers: Sequence[Sequence[Plan]]
    n_ctx: int = 64
    causal: bool = True
    start: str | None = None  # a special token before every text
    directions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # classes of words that heads may read
    marks: int = 0  # how many heads record where they look, for heads above
    n_kv_heads: int | None = None  # key/value heads per layer, shared evenly by its heads
    norm: LayerNorm | RMSNorm | NoNorm = field(default_factory=NoNorm)
    encoding: Sequence[Sequence[Plan]] = ()  # heads of the encoder
    crossing: Sequence[Sequence[Plan]] = ()  # heads that look from the decoder into the encoder's stream

    def build(self) -> Transformer:
        """The transformer, with a tokenizer that knows one token a word (a hyphen splits a word into pieces)."""
        if not any(self.layers):
            raise InputError("expected at least one layer with a head, got none")
        if self.crossing and not (self.causal and self.start and len(self.layers) == len(self.crossing)):
            raise InputError("crossing heads need a causal decoder with a start token, and a plan for each layer")
        special = [self.start] if self.start else []
        words = tuple(dict.fromkeys([UNKNOWN, *special, *self.vocabulary]))
        normed = not isinstance(self.norm, NoNorm)
        slots = Slots(words, self.n_ctx, self.causal, self.directions, normed, self.marks)
        around = replace(slots, causal=False)
        self_heads = _Planned.from_plans(self.layers, slots, self.n_kv_heads)
        cross_heads = _Planned.from_plans(self.crossing, around, self.n_kv_heads, self_heads.n_heads)
        encoder_heads = _Planned.from_plans(self.encoding or [[]] * bool(self.crossing), around, self.n_kv_heads)
        last = self._stack(slots, [self_heads, cross_heads], causal=self.causal)
        encoder = self._stack(around, [encoder_heads], causal=False) if self.crossing else None
        config = TransformerConfig(
            decoder=last if self.causal else None,
            encoder=encoder if self.causal else last,
            target_start=slots.token(self.start) if self.crossing and self.start else None,
        )
        tokenizer = Tokenizer(_tokenizer(slots, self.start))
        # a target has no special tokens of its own: the decoder's start id is put before it
        model = Transformer(config, tokenizer, tokenizer.around((), ()) if self.crossing else None)
        with torch.no_grad():
            _set_stream(model, slots)
            self_heads.set([block.attn for block in model.last.blocks], slots)
            if self.crossing:
                encoder_heads.set([block.attn for block in model.stack("encoder").blocks], around)
                crossing = [block.cross_attn for block in model.last.blocks if block.cross_attn is not None]
                cross_heads.set(crossing, around)
        return model

    def _stack(self, slots: Slots, planned: "Sequence[_Planned]", *, causal: bool) -> StackConfig:
        return StackConfig(
            n_layers=len(planned[0].layers),
            d_model=slots.d_model,
            n_heads=max(each.n_heads for each in planned),
            d_head=max(1, *(each.width for each in planned)),
            d_mlp=1,
            n_ctx=self.n_ctx,
            d_vocab=slots.n_tokens,
            causal=causal,
            n_kv_heads=self.n_kv_heads,
            norm=self.norm,
            positions=Learned(),
            mlp=NoMLP(),
            attention_bias=False,
            cross_attention=bool(self.crossing) and causal,
            scale=1.0,
        )


@dataclass(frozen=True)
class _Planned:
    """The heads of one kind of attention: for each layer, groups that share keys and values."""

    n_heads: int
    layers: list[list[list[Head]]]

    @staticmethod
    def from_plans(
        layers: Sequence[Sequence[Plan]], slots: Slots, n_kv_heads: int | None, n_heads: int | None = None
    ) -> "_Planned":
        """Plans as heads; each layer has as many as the fullest, and at least `n_heads`."""
        n_heads = max([n_heads or 1, *map(len, layers)])
        groups = [
            _in_groups([plan(slots) for plan in layer], slots, n_heads, n_kv_heads or n_heads) for layer in layers
        ]
        return _Planned(n_heads, groups)

    @property
    def width(self) -> int:
        """Dimensions that the widest head needs."""
        return max((len(part) for layer in self.layers for group in layer for part in _slots_read(group)), default=1)

    def set(self, attentions: Sequence[Attention], slots: Slots) -> None:
        """Put the heads into a stack's attentions."""
        slot = slots.reading(torch.eye(slots.d_model))  # a column reads one slot
        for attention, layer in zip(attentions, self.layers, strict=True):
            for number, group in enumerate(layer):
                keys, values = _slots_read(group)
                attention.W_K[number][:, : len(keys)] = slot[:, keys]
                attention.W_V[number][:, : len(values)] = slot[:, values]
                for place, head in enumerate(group, number * len(group)):
                    attention.W_Q[place][:, : len(keys)] = slots.reading(head.looks[:, keys])
                    attention.W_O[place][: len(values)] = slots.writing(head.moves)[values]


def _slots_read(group: Sequence[Head]) -> tuple[Int[Tensor, " key_slot"], Int[Tensor, " value_slot"]]:
    """The slots that a group's heads read: those of keys for scores, and those of values."""
    keys = torch.stack([head.looks.abs().amax(0) for head in group]).amax(0)
    values = torch.stack([head.moves.abs().amax(1) for head in group]).amax(0)
    return keys.nonzero()[:, 0], values.nonzero()[:, 0]


def _in_groups(heads: list[Head], slots: Slots, n_heads: int, n_groups: int) -> list[list[Head]]:
    if n_heads % n_groups:
        raise InputError(f"{n_heads} heads cannot share {n_groups} key/value heads evenly")
    heads = heads + [blank(slots)] * (n_heads - len(heads))
    shared = n_heads // n_groups
    return [heads[first : first + shared] for first in range(0, n_heads, shared)]


def _set_stream(model: Transformer, slots: Slots) -> None:
    """Everything except heads: codes of tokens and positions, norms that change nothing, output."""
    for weight in model.parameters():
        weight.zero_()
    assert model.output is not None
    for embed in (model.stack(name).embed for name in model.config.stacks):
        assert embed.position is not None
        embed.token.weight.copy_(slots.token_codes())
        embed.position.weight.copy_(slots.position_codes())
    output = torch.zeros(slots.d_model, slots.n_tokens)
    output[slots.output] = torch.eye(slots.n_tokens)
    model.output.weight.copy_(slots.reading(output).T)
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            norm.weight.fill_((2 * SIZE**2 / slots.d_model + (norm.eps or 0.0)) ** 0.5)


def _tokenizer(slots: Slots, start: str | None) -> Backend:
    backend = Backend(WordLevel({word: id for id, word in enumerate(slots.vocabulary)}, unk_token=UNKNOWN))
    punctuation = Split(Regex(r"[.,!?;:\-]"), "isolated")
    backend.pre_tokenizer = Steps([WhitespaceSplit(), punctuation])
    if start is not None:
        backend.add_special_tokens([start])
        backend.post_processor = TemplateProcessing(f"{start} $A", special_tokens=[(start, backend.token_to_id(start))])
    return backend
