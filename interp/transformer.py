"""One hookable transformer: attention, block, stack. It can be read from top to bottom beside Vaswani 2017.

Axes, in the order in which they appear; leading axes are free ("..."), so that a sweep can put `cells` before `prompt`:

    residual stream   ... position d_model
    q z               ... query head d_head
    k v               ... key kv_head d_head      (kv_head = head unless key/value heads are shared)
    scores, pattern   ... head query key
    logits            ... position d_vocab

Sites (`tap(name, value)`) mean the same in every architecture; `interp.places` lists them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.cache import Growing
from interp.config import Rotary, StackConfig, TransformerConfig
from interp.parts import Embedding, Linear, build_mlp, build_norm, rotate
from interp.sight import Sight
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch, Tokenizer

Stream = Float[Tensor, "... position d_model"]  # an edit inside may add leading axes


class Attention(nn.Module):
    """Every position asks (q), every position it may see answers (k) and is mixed in (v), head by head."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.config = config
        heads = config.n_heads + 2 * config.kv_heads
        self.qkv = Linear(config.d_model, heads * config.d_head, bias=config.attention_bias)
        self.out = Linear(config.n_heads * config.d_head, config.d_model, bias=config.attention_bias)

    def forward(self, x: Stream, sight: Sight, tap: Tap, past: Growing | None = None) -> Stream:
        """What the heads write for the positions of `x`, which see themselves and, where given, `past` ones."""
        q, k, v = self.project(x)
        q, k, v = tap("q", q), tap("k", k), tap("v", v)
        q, k = self.rotate(q, sight.positions), self.rotate(k, sight.positions)
        if past is not None:
            k, v = past.extend(k, v)
        z = tap("z", self.mix(q, k, v, sight, tap))
        return self.out(z.flatten(-2))

    def project(self, x: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the normalised stream, `... position head d_head`, before rotation."""
        n_q, n_kv = self.config.n_heads, self.config.kv_heads
        heads = rearrange(self.qkv(x), "... position (head d_head) -> ... position head d_head", head=n_q + 2 * n_kv)
        q, k, v = heads.split([n_q, n_kv, n_kv], -2)
        return q, k, v

    def project_queries(self, x: Stream) -> Float[Tensor, "*batch position head d_head"]:
        """Queries alone."""
        return self._project(x, slice(0, self.config.n_heads))

    def project_keys_values(self, x: Stream) -> tuple[Tensor, Tensor]:
        """Keys and values alone, from one matrix product."""
        heads = self._project(x, slice(self.config.n_heads, None))
        k, v = heads.split(self.config.kv_heads, -2)
        return k, v

    def project_heads(
        self, x: Stream, part: str, heads: Int[Tensor, " head"]
    ) -> Float[Tensor, "*batch position head d_head"]:
        """Queries (`q`), keys (`k`) or values (`v`) of some heads alone; of `k` and `v`, key/value heads."""
        n_q, n_kv = self.config.n_heads, self.config.kv_heads
        return self._project(x, heads + {"q": 0, "k": n_q, "v": n_q + n_kv}[part])

    def _project(self, x: Stream, heads: slice | Int[Tensor, " head"]) -> Tensor:
        weight = self.qkv.weight.unflatten(0, (-1, self.config.d_head))[heads].flatten(0, 1)
        bias = None if self.qkv.bias is None else self.qkv.bias.unflatten(0, (-1, self.config.d_head))[heads].flatten()
        return F.linear(x, weight, bias).unflatten(-1, (-1, self.config.d_head))

    def rotate(
        self, x: Float[Tensor, "*batch position head d_head"], positions: Int[Tensor, "#prompt position"]
    ) -> Float[Tensor, "*batch position head d_head"]:
        """Queries or keys as they enter the scores: turned by their position where positions are rotary."""
        return rotate(x, positions, self.config.positions.base) if isinstance(self.config.positions, Rotary) else x

    def mix(
        self,
        q: Float[Tensor, "*batch query head d_head"],
        k: Float[Tensor, "*batch2 key kv_head d_head"],
        v: Float[Tensor, "*batch3 key kv_head d_head"],
        sight: Sight,
        tap: Tap,
    ) -> Float[Tensor, "... query head d_head"]:
        """The values that each query sees, weighted by softmax(q·k)."""
        q, k, v = (part.transpose(-2, -3) for part in (q, k, v))  # ... head position d_head
        if not (tap.wants("scores") or tap.wants("pattern")):
            return fused_attention(q, k, v, sight, self.config.score_scale).transpose(-2, -3)
        shared = self.config.n_heads // self.config.kv_heads
        k, v = k.repeat_interleave(shared, -3), v.repeat_interleave(shared, -3)
        scores = q @ k.transpose(-1, -2) * self.config.score_scale
        scores = tap("scores", scores.masked_fill(~sight.mask(), -torch.inf))
        pattern = tap("pattern", scores.softmax(-1))
        return (pattern @ v).transpose(-2, -3)

    # Per-head views of the fused weights: editing a view edits the model.

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:
        """What each head asks with."""
        return self._rows(0, self.config.n_heads)

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_model d_head"]:
        """What each key/value head answers with."""
        return self._rows(self.config.n_heads, self.config.kv_heads)

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_model d_head"]:
        """What each key/value head reads from the positions it attends to."""
        return self._rows(self.config.n_heads + self.config.kv_heads, self.config.kv_heads)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        """What each head writes into the residual stream."""
        return self.out.weight.unflatten(1, (self.config.n_heads, self.config.d_head)).permute(1, 2, 0)

    def _rows(self, first: int, count: int) -> Tensor:
        d_head = self.config.d_head
        rows = self.qkv.weight[first * d_head : (first + count) * d_head]
        return rows.unflatten(0, (count, d_head)).transpose(1, 2)


def fused_attention(
    q: Float[Tensor, "*batch head query d_head"],
    k: Float[Tensor, "*batch2 kv_head key d_head"],
    v: Float[Tensor, "*batch3 kv_head key d_head"],
    sight: Sight,
    scale: float,
) -> Float[Tensor, "... head query d_head"]:
    """The same mix without a query x key tensor in memory; the kernels want exactly four axes."""
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (part.expand(*batch, *part.shape[-3:]).reshape(-1, *part.shape[-3:]) for part in (q, k, v))
    mask, triangular = sight.for_kernel(batch)
    z = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=triangular, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return z.view(*batch, *z.shape[-3:])


class PreNorm:
    """x + layer(norm(x)): the stream itself is never normalised (Radford 2019)."""

    @staticmethod
    def read(norm: nn.Module, residual: Stream) -> Stream:
        """What a layer reads."""
        return norm(residual)

    @staticmethod
    def add(norm: nn.Module, residual: Stream, out: Stream) -> Stream:
        """The stream with what the layer wrote."""
        return residual + out


class PostNorm:
    """norm(x + layer(x)), as in Vaswani 2017."""

    @staticmethod
    def read(norm: nn.Module, residual: Stream) -> Stream:
        """What a layer reads."""
        return residual

    @staticmethod
    def add(norm: nn.Module, residual: Stream, out: Stream) -> Stream:
        """The stream with what the layer wrote."""
        return norm(residual + out)


class Block(nn.Module):
    """Attention, then a feed-forward, each added to the residual stream."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.wiring = PreNorm if config.wiring == "pre" else PostNorm
        self.norm_attn, self.attn = build_norm(config), Attention(config)
        self.mlp = build_mlp(config)
        self.norm_mlp = nn.Identity() if self.mlp is None else build_norm(config)

    def forward(self, residual: Stream, sight: Sight, tap: Tap, past: Growing | None = None) -> Stream:
        """The stream after this block."""
        residual = tap("resid_pre", residual)
        attn_out = self.attn(self.wiring.read(self.norm_attn, residual), sight, tap.at("attn"), past)
        residual = self.wiring.add(self.norm_attn, residual, tap("attn_out", attn_out))
        residual = self.feed_forward(tap("resid_mid", residual), tap)
        return tap("resid_post", residual)

    def feed_forward(self, residual: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The second half of the block; the stream itself where there is no feed-forward."""
        if self.mlp is None:
            return residual
        mlp_out = self.mlp(self.wiring.read(self.norm_mlp, residual), tap.at("mlp"))
        return self.wiring.add(self.norm_mlp, residual, tap("mlp_out", mlp_out))


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
        self.blocks = Blocks(Block(config) for _ in range(config.n_layers))
        # where norms follow the sums, the last block has normalised already
        self.norm = build_norm(config) if config.wiring == "pre" else nn.Identity()

    def forward(self, batch: TokenBatch, tap: Tap) -> Stream:
        """Residual stream after the final norm, for whole texts."""
        residual = tap("embed", self.embed(batch.ids, batch.positions))
        return self.resume(residual, Sight.of(batch, causal=self.config.causal), tap=tap)

    def resume(
        self,
        residual: Stream,
        sight: Sight,
        *,
        tap: Tap = UNTAPPED,
        start: int = 0,
        past: Sequence[Growing] | None = None,
    ) -> Stream:
        """Continue from the stream that enters block `start`, on earlier positions' keys and values where given."""
        for layer in range(start, len(self.blocks)):
            residual = self.blocks[layer](residual, sight, tap.at(str(layer)), past[layer] if past else None)
        return tap("resid_final", self.norm(residual))


class Transformer(nn.Module):
    """Stacks and, where there is one, the output layer that reads the last of them."""

    def __init__(self, config: TransformerConfig, tokenizer: Tokenizer | None = None):
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.source: Path | None = None  # the directory that the weights were read from
        self.stacks = nn.ModuleDict({name: Stack(stack) for name, stack in config.stacks.items()})
        self.output = None if config.output == "none" else nn.Linear(config.d_model, config.d_vocab, bias=False)
        if self.output is not None and config.output == "tied":
            self.output.weight = self.last.embed.token.weight
        self.eval()

    @property
    def last(self) -> Stack:
        """The stack that the output layer reads: the decoder, or the encoder of an encoder-only model."""
        return cast(Stack, self.stacks[next(reversed(self.config.stacks))])

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.last.embed.token.weight.device

    def forward(self, batch: TokenBatch, tap: Tap = UNTAPPED) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position; None where the model has no output layer."""
        (name, stack), *_ = self.stacks.items()
        return self.read(stack(batch, tap.at(name)), tap)

    def read(self, final: Stream, tap: Tap = UNTAPPED) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits from the last stack's final residual stream, which may be of some positions only."""
        return None if self.output is None else tap("logits", self.output(final))
