"""One hookable transformer: attention, block, stack. It can be read from top to bottom beside Vaswani 2017.

Axes, in the order in which they appear; leading axes are free ("..."), so that a sweep can put `cells` before `prompt`:

    residual stream   ... position d_model
    q z               ... query head d_head
    k v               ... key kv_head d_head      (kv_head = head unless key/value heads are shared)
    scores, pattern   ... head query key
    logits            ... position d_vocab

Sites (`tap(name, value)`) mean the same in every architecture; `interp.places` lists them.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import Attention, CrossAttention, Stream
from interp.cache import Growing
from interp.config import StackConfig, TransformerConfig
from interp.errors import InputError
from interp.model import Model, Site
from interp.parts import Around, Embedding, Output, build_mlp, build_norm
from interp.places import sites_of
from interp.positions import build_bias
from interp.sight import Sight, Source
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch, Tokenizer


class PreNorm:
    """x + layer(norm(x)): the stream itself is never normalised (Radford 2019)."""

    @staticmethod
    def read(norm: nn.Module, residual: Stream) -> Stream:
        """What a layer reads."""
        return norm(residual)

    @staticmethod
    def write(norm: nn.Module, out: Stream) -> Stream:
        """What a layer adds to the stream."""
        return out

    @staticmethod
    def add(norm: nn.Module, residual: Stream, out: Stream) -> Stream:
        """The stream with what the layer wrote."""
        return residual + out


class PostNorm(PreNorm):
    """norm(x + layer(x)), as in Vaswani 2017."""

    @staticmethod
    def read(norm: nn.Module, residual: Stream) -> Stream:
        """What a layer reads."""
        return residual

    @staticmethod
    def add(norm: nn.Module, residual: Stream, out: Stream) -> Stream:
        """The stream with what the layer wrote."""
        return norm(residual + out)


class AfterNorm(PreNorm):
    """x + norm(layer(x)): what a layer writes is normalised, what it reads is not (Walsh 2025)."""

    @staticmethod
    def read(norm: nn.Module, residual: Stream) -> Stream:
        """What a layer reads."""
        return residual

    @staticmethod
    def write(norm: nn.Module, out: Stream) -> Stream:
        """What a layer adds to the stream."""
        return norm(out)


class Sandwich(PreNorm):
    """x + norm(layer(norm(x))): what a layer reads and what it writes is normalised (Ding 2021)."""

    @staticmethod
    def read(norm: nn.Module, residual: Stream) -> Stream:
        """What a layer reads."""
        return cast(Around, norm).before(residual)

    @staticmethod
    def write(norm: nn.Module, out: Stream) -> Stream:
        """What a layer adds to the stream."""
        return cast(Around, norm).after(out)


WIRINGS = {"pre": PreNorm, "post": PostNorm, "after": AfterNorm, "sandwich": Sandwich}


class Block(nn.Module):
    """Attention, in a decoder that has a source cross-attention, then a feed-forward, each added to the stream."""

    def __init__(self, config: StackConfig, layer: int = 0, bias: nn.Module | None = None):
        super().__init__()
        self.wiring = WIRINGS.get(config.wiring, PreNorm)
        self.attn = Attention(config, layer, bias)
        self.norm_attn = self._norm(config) if layer or config.first_norm else nn.Identity()
        self.cross_attn = CrossAttention(config) if config.cross_attention else None
        self.norm_cross = self._norm(config) if config.cross_attention else nn.Identity()
        self.mlp = build_mlp(config)
        self.norm_mlp = nn.Identity() if self.mlp is None else self._norm(config)

    @staticmethod
    def _norm(config: StackConfig) -> nn.Module:
        shape = Around if config.wiring == "sandwich" else build_norm
        return shape(config.norm, config.d_model)

    def forward(
        self,
        residual: Stream,
        sight: Sight,
        tap: Tap = UNTAPPED,
        past: Growing | None = None,
        source: Source | None = None,
    ) -> Stream:
        """The stream after this block."""
        residual = tap("resid_pre", residual)
        out = self.attn(self.wiring.read(self.norm_attn, residual), sight, tap.at("attn"), past)
        attn_out = tap("attn_out", self.wiring.write(self.norm_attn, out))
        residual = self.between(residual, attn_out, tap)
        if source is not None:
            residual = self.read_source(residual, source, sight, tap, past)
        return tap("resid_post", self.feed_forward(residual, tap))

    def between(self, residual: Stream, attn_out: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The stream between attention, which read `residual` and added `attn_out`, and what follows in the block."""
        return tap("resid_mid", self.wiring.add(self.norm_attn, residual, attn_out))

    def read_source(
        self, residual: Stream, source: Source, sight: Sight, tap: Tap = UNTAPPED, past: Growing | None = None
    ) -> Stream:
        """The stream after cross-attention."""
        if self.cross_attn is None:
            raise InputError("this decoder has no cross-attention: expected no source")
        out = self.cross_attn.read(
            self.wiring.read(self.norm_cross, residual), source, sight, tap.at("cross_attn"), past
        )
        cross_attn_out = tap("cross_attn_out", self.wiring.write(self.norm_cross, out))
        return tap("resid_cross", self.wiring.add(self.norm_cross, residual, cross_attn_out))

    def feed_forward(self, residual: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The last part of the block; the stream itself where there is no feed-forward."""
        if self.mlp is None:
            return residual
        return self.wiring.add(self.norm_mlp, residual, self.mlp_out(residual, tap))

    def mlp_out(self, residual: Stream, tap: Tap = UNTAPPED) -> Stream:
        """What the feed-forward adds where it reads `residual`."""
        assert self.mlp is not None
        out = self.mlp(self.wiring.read(self.norm_mlp, residual), tap.at("mlp"))
        return tap("mlp_out", self.wiring.write(self.norm_mlp, out))


class ParallelBlock(Block):
    """Attention and feed-forward read the same stream; both add to it at once (Wang & Komatsuzaki 2021)."""

    def __init__(self, config: StackConfig, layer: int = 0, bias: nn.Module | None = None):
        super().__init__(config, layer, bias)
        if config.wiring == "parallel_one_norm":
            self.norm_mlp = self.norm_attn

    def between(self, residual: Stream, attn_out: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The stream with what both have added: nothing follows in the block."""
        return residual + attn_out if self.mlp is None else residual + attn_out + self.mlp_out(residual, tap)

    def feed_forward(self, residual: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The stream as it is: the feed-forward has been added already."""
        return residual


class Blocks(nn.ModuleList):
    """A stack's blocks, first to last; a list of modules that says of what kind they are."""

    if TYPE_CHECKING:

        def __getitem__(self, layer: int) -> Block: ...  # pyright: ignore[reportIncompatibleMethodOverride]

        def __iter__(self) -> Iterator[Block]: ...


class Stack(nn.Module):
    """Blocks that carry one residual stream, from token embeddings to the final norm."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        kind, bias = ParallelBlock if config.parallel else Block, build_bias(config)
        self.blocks = Blocks(kind(config, layer, bias) for layer in range(config.n_layers))
        # where norms follow the sums, the last block has normalised already
        self.norm = nn.Identity() if config.wiring == "post" else build_norm(config.norm, config.d_model)

    def forward(self, batch: TokenBatch, tap: Tap = UNTAPPED, source: Source | None = None) -> Stream:
        """Residual stream after the final norm, for whole texts."""
        residual = tap("embed", self.embed(batch.ids, batch.positions, batch.segments))
        return self.resume(residual, Sight.of(batch, causal=self.config.causal), tap=tap, source=source)

    def resume(
        self,
        residual: Stream,
        sight: Sight,
        *,
        tap: Tap = UNTAPPED,
        start: int = 0,
        past: Sequence[Growing] | None = None,
        source: Source | None = None,
    ) -> Stream:
        """Continue from the stream that enters block `start`, on earlier positions' keys and values where given."""
        for layer in range(start, len(self.blocks)):
            earlier = past[layer] if past else None
            residual = self.blocks[layer](residual, sight, tap.at(str(layer)), earlier, source)
        return tap("resid_final", self.norm(residual))


class Transformer(nn.Module):
    """Stacks and, where there is one, the output layer that reads the last of them."""

    def __init__(
        self, config: TransformerConfig, tokenizer: Tokenizer | None = None, target_tokenizer: Tokenizer | None = None
    ):
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        one = len({stack.d_vocab for stack in config.stacks.values()}) == 1  # vocabulary, or so it seems
        self.target_tokenizer = target_tokenizer or (tokenizer if one else None)  # of what the last stack reads
        self.source: Path | None = None  # the directory that the weights were read from
        self.family: str | None = None  # what the format of that directory is called
        self.stacks = nn.ModuleDict({name: Stack(stack) for name, stack in config.stacks.items()})
        self.output = None if config.output == "none" else Output(config)
        self.tie()
        self.eval()

    def tie(self) -> None:
        """Let those parameters be one that the configuration says are."""
        if self.config.shared_embedding:
            self.last.embed.token.weight = self.stack("encoder").embed.token.weight
        if self.output is not None and self.config.output == "tied":
            self.output.weight = self.last.embed.token.weight

    def stack(self, name: str) -> Stack:
        """The stack called `name`: `encoder` or `decoder`."""
        return cast(Stack, self.stacks[name])

    @property
    def last(self) -> Stack:
        """The stack that the output layer reads: the decoder, or the encoder of an encoder-only model."""
        return self.stack(next(reversed(self.config.stacks)))

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.last.embed.token.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.last.embed.token.weight.dtype

    @property
    def sites(self) -> Mapping[str, Site]:
        """What can be read or changed: all that its configuration says."""
        return sites_of(self.config)

    def forward(
        self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position, of `target` where there are two stacks; None where there is no output layer."""
        (name, stack), *more = self.stacks.items()
        final = stack(batch, tap.at(name))
        for later, decoder in more:
            final = decoder(target, tap.at(later), Source.of(final, batch))
        return self.read(final, tap)

    def read(self, final: Stream, tap: Tap = UNTAPPED) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits from the last stack's final residual stream, which may be of some positions only."""
        return None if self.output is None else tap("logits", self.output(final))


def with_parts(model: Model, what: str) -> Transformer:
    """`model` as one whose blocks, norms and weights `what` can call one at a time.

    Raises:
        InputError: another library runs it.
    """
    if isinstance(model, Transformer):
        return model
    raise InputError(
        f"{what} calls a model's parts one at a time, and another library runs this model as a whole: capture and edit "
        "with run(), or take a plain way (sweep_by_forward, knock_out_by_forward)"
    )
