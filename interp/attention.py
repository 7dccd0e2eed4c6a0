"""How does attention work? Each position's query (q) meets the keys (k) that it may see, and mixes their values (v).

Axes are those of `interp.transformer`. Variants of softmax(q·k) v are in `enter` (norms and rotation of queries and
keys) and in `scores` (scale, cap, bias of positions, mask).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.config import NoPositions, Rotary, StackConfig
from interp.errors import InputError
from interp.parts import Linear, Stream, build_norm
from interp.positions import rotate
from interp.products import linear
from interp.tap import UNTAPPED, Tap
from interp.visibility import Source, Visibility, for_all

Heads = Float[Tensor, "*batch position head d_head"]
Positions = Int[Tensor, "#prompt position"]
# as kernels take them, head by head; an edit may add leading axes to any of them
Queries = Float[Tensor, "... head query d_head"]
Keys = Float[Tensor, "... kv_head key d_head"]  # and values
Scores = Float[Tensor, "... query key"]


class KVCache:
    """One layer's cached keys (rotated) and values, and those of its cross-attention."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.source: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, with these appended."""
        self.k = k if self.k is None else torch.cat([self.k, k], -3)
        self.v = v if self.v is None else torch.cat([self.v, v], -3)
        return self.k, self.v


def _view(part: str, meaning: str, *, bias: bool = False) -> Any:
    def view(attn: "Attention") -> Tensor:
        whole = existing_bias(attn.qkv.bias, "queries, keys and values") if bias else attn.qkv.weight
        heads = whole.unflatten(0, (-1, attn.config.d_head))[attn.heads[part]]
        return heads if bias else heads.transpose(1, 2)

    return property(view, doc=meaning)


def existing_bias(bias: Tensor | None, reader: str) -> Tensor:
    """`bias`, or an `InputError` if the model has none on its `reader`."""
    if bias is None:
        raise InputError(f"this model has no bias on {reader}")
    return bias


class Attention(nn.Module):
    """Attention within one text. `bias` is what positions add to the scores, shared by all layers of a stack."""

    def __init__(self, config: StackConfig, layer: int = 0, bias: nn.Module | None = None):
        super().__init__()
        self.config, self.bias = config, bias
        self.reach, self.positions = config.reach(layer), config.positions_in(layer)
        n_q, n_kv = config.n_heads, config.kv_heads
        # the heads of queries, keys and values in the fused weight
        self.heads = {"q": slice(0, n_q), "k": slice(n_q, n_q + n_kv), "v": slice(n_q + n_kv, n_q + 2 * n_kv)}
        self.qkv = Linear(config.d_model, (n_q + 2 * n_kv) * config.d_head, bias=config.attention_bias)
        out_bias = config.attention_bias if config.out_bias is None else config.out_bias
        self.out = Linear(config.n_heads * config.d_head, config.d_model, bias=out_bias)
        sizes = [config.d_head * (1 if config.qk_norm == "head" else heads) for heads in (n_q, n_kv)]
        norms = [nn.Identity() if config.qk_norm is None else build_norm(config.norm, size) for size in sizes]
        self.norm_q, self.norm_k = norms

    def forward(self, x: Stream, tap: Tap, visibility: Visibility, past: KVCache | None = None) -> Stream:
        """What the heads write at the positions of `x`, which see each other and the `past` ones, if any."""
        q, k, v = self.project(x)
        q, k, v = tap("q", q), tap("k", k), tap("v", v)
        q, k, v = self.enter([q, k, v], visibility.positions)
        q, k = tap("rot_q", q), tap("rot_k", k)
        if past is not None:
            k, v = past.extend(k, v)
        return self.out(tap("z", self.mix(q, k, v, visibility, tap)).flatten(-2))

    def project(self, x: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the normalised stream, `... position head d_head`."""
        heads = self.qkv(x).unflatten(-1, (-1, self.config.d_head))
        q, k, v = (heads[..., self.heads[part], :] for part in "qkv")
        return q, k, v

    def project_queries(self, x: Stream) -> Heads:
        """Queries alone."""
        return self._project(x, self.heads["q"])

    def project_keys_values(self, x: Stream) -> tuple[Tensor, Tensor]:
        """Keys and values alone, from one matrix product."""
        k, v = self._project(x, slice(self.config.n_heads, None)).split(self.config.kv_heads, -2)
        return k, v

    def project_heads(self, x: Stream, part: str, heads: Int[Tensor, " head"]) -> Heads:
        """Queries (`q`), keys (`k`) or values (`v`) of some heads alone; `k` and `v` have key/value heads."""
        return self._project(x, heads + self.heads[part].start)

    def _project(self, x: Stream, heads: slice | Int[Tensor, " head"]) -> Tensor:
        by_head, bias = (-1, self.config.d_head), self.qkv.bias
        weight = self.qkv.weight.unflatten(0, by_head)[heads].flatten(0, 1)
        bias = None if bias is None else bias.unflatten(0, by_head)[heads].flatten()
        return linear(x, weight, bias).unflatten(-1, by_head)

    def enter(self, projected: Sequence[Tensor], positions: Positions) -> list[Tensor]:
        """Queries (if there are any) and keys, normalised and rotated, and values as they are."""
        *q, k, v = projected
        return [*(self.queries(each, positions) for each in q), self.keys(k, positions), v]

    def queries(self, q: Heads, positions: Positions) -> Heads:
        """Queries as they enter the scores: normalised, then rotated by their position, if the layer does so."""
        return self._rotated(self._normed(self.norm_q, q), positions)

    def keys(self, k: Heads, positions: Positions) -> Heads:
        """Keys as they enter the scores."""
        return self._rotated(self._normed(self.norm_k, k), positions)

    def _normed(self, norm: nn.Module, x: Heads) -> Heads:
        return norm(x.flatten(-2)).view_as(x) if self.config.qk_norm == "all" else norm(x)

    def _rotated(self, x: Heads, positions: Positions) -> Heads:
        return rotate(x, positions, self.positions) if isinstance(self.positions, Rotary) else x

    def mix(
        self,
        q: Float[Tensor, "*batch query head d_head"],
        k: Float[Tensor, "*batch2 key kv_head d_head"],
        v: Float[Tensor, "*batch3 key kv_head d_head"],
        visibility: Visibility,
        tap: Tap = UNTAPPED,
    ) -> Float[Tensor, "... query head d_head"]:
        """The values that each query sees, weighted by softmax(q·k)."""
        q, k, v = (part.transpose(-2, -3) for part in (q, k, v))  # ... head position d_head
        if not (tap.wants("scores") or tap.wants("pattern")):
            return self.fused(q, k, v, visibility).transpose(-2, -3)
        k, v, seen = self.shared(k), self.shared(v), visibility.near(self.reach).mask
        # whatever an edit puts there, a query sees no other keys
        scores = tap("scores", self.scores(q, k, visibility), lambda edited: edited.masked_fill(~seen(), -torch.inf))
        pattern = tap("pattern", self.pattern(scores), lambda edited: edited.masked_fill(~seen(), 0.0))
        return (pattern @ v).transpose(-2, -3)

    def scores(self, q: Queries, k: Float[Tensor, "... head key d_head"], visibility: Visibility) -> Scores:
        """q·k, scaled, capped, with the bias of positions; -inf where a query does not see a key."""
        bias = None if self.bias is None else self.bias(visibility)
        scaled = (q @ k.transpose(-1, -2)).mul_(self.config.score_scale)
        return self.entering(scaled, bias, visibility.near(self.reach).mask())

    def entering(self, scaled: Scores, bias: Scores | None, visible: Bool[Tensor, "... query key"] | None) -> Scores:
        """Scaled q·k as they enter the softmax: capped, with the `bias`, -inf where a key is not `visible`."""
        if (cap := self.config.score_cap) is not None:
            scaled = cap * (scaled / cap).tanh()
        if bias is not None:
            scaled = scaled + bias.to(scaled.dtype)
        return scaled if visible is None else scaled.masked_fill(~visible, -torch.inf)

    @staticmethod
    def pattern(scores: Scores) -> Scores:
        """The share of each key in what a query reads. Every softmax over keys is taken here."""
        return scores.softmax(-1)

    def shared(self, x: Keys) -> Float[Tensor, "... head key d_head"]:
        """Keys or values, repeated for each query head that reads them."""
        n_shared = self.config.n_heads // self.config.kv_heads
        return x if n_shared == 1 else x.repeat_interleave(n_shared, -3)  # which copies

    def fused(self, q: Queries, k: Keys, v: Keys, visibility: Visibility) -> Queries:
        """The same mix without a query x key tensor in memory, where a kernel can do it; kernels take four axes."""
        if self.config.score_cap is not None:
            return self.pattern(self.scores(q, self.shared(k), visibility)) @ self.shared(v)
        batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        q, k, v = (part.expand(*batch, *part.shape[-3:]).reshape(-1, *part.shape[-3:]) for part in (q, k, v))
        near = visibility.near(self.reach)
        mask, triangular = near.for_kernel(batch)
        if self.bias is not None:
            bias = self.bias(visibility).to(q.dtype)
            mask, triangular = for_all(bias.masked_fill(~near.mask(), -torch.inf), batch), False
        scale, grouped = self.config.score_scale, q.shape[1] != k.shape[1]
        z = F.scaled_dot_product_attention(q, k, v, mask, is_causal=triangular, scale=scale, enable_gqa=grouped)
        return z.view(*batch, *z.shape[-3:])

    # Per-head views of the fused weights: editing a view edits the model.
    W_Q = _view("q", "Each head's queries from the stream, `head d_model d_head`.")
    W_K = _view("k", "Each key/value head's keys from the stream, `kv_head d_model d_head`.")
    W_V = _view("v", "Each key/value head's values from the stream, `kv_head d_model d_head`.")
    b_Q = _view("q", "The bias of each head's queries, `head d_head`.", bias=True)  # noqa: N815
    b_K = _view("k", "The bias of each key/value head's keys, `kv_head d_head`.", bias=True)  # noqa: N815
    b_V = _view("v", "The bias of each key/value head's values, `kv_head d_head`.", bias=True)  # noqa: N815

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        """What each head writes to the stream."""
        return self.out.weight.unflatten(1, (self.config.n_heads, self.config.d_head)).permute(1, 2, 0)

    @property
    def b_O(self) -> Float[Tensor, " d_model"]:
        """The bias of attention's output."""
        return existing_bias(self.out.bias, "what attention writes")


class CrossAttention(Attention):
    """Attention whose keys and values are read from the encoder's last stream; positions play no part."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.reach, self.positions = None, NoPositions()

    def forward(
        self, x: Stream, tap: Tap, visibility: Visibility, past: KVCache | None = None, source: Source | None = None
    ) -> Stream:
        """What the heads write at the positions of `x`, which all see the whole source."""
        assert source is not None
        q, past = tap("q", self.project_queries(x)), past or KVCache()
        past.source = past.source or self.project_keys_values(source.stream)
        k, v = tap("k", past.source[0]), tap("v", past.source[1])
        q, k = self._normed(self.norm_q, q), self._normed(self.norm_k, k)  # not rotated: the texts share no positions
        return self.out(tap("z", self.mix(q, k, v, source.seen_by(visibility), tap)).flatten(-2))
