"""How does attention work? Each position asks (q), those it may see answer (k) and are mixed in (v), head by head.

Axes as in `interp.transformer`. What a layer's variant adds to softmax(q·k) v is in `enter` (norms and rotation of
queries and keys) and `scores` (scale, cap, what positions add, mask).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.config import NoPositions, Rotary, StackConfig
from interp.errors import InputError
from interp.parts import Linear, build_norm
from interp.positions import rotate
from interp.products import linear
from interp.tap import UNTAPPED, Tap
from interp.visibility import Source, Visibility, for_all

Stream = Float[Tensor, "... position d_model"]  # an edit inside may add leading axes
Heads = Float[Tensor, "*batch position head d_head"]


class Growing:
    """One layer's cached keys and values, rotated as attention uses them, and those of its cross-attention."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.source: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, with these appended."""
        self.k = k if self.k is None else torch.cat([self.k, k], -3)
        self.v = v if self.v is None else torch.cat([self.v, v], -3)
        return self.k, self.v

    def once(self, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The source's keys and values, made the first time."""
        self.source = self.source or make()
        return self.source


def _view(part: str, meaning: str, *, bias: bool = False) -> Any:

    def view(attn: "Attention") -> Tensor:
        whole = _existing(attn.qkv.bias, "queries, keys and values") if bias else attn.qkv.weight
        heads = whole.unflatten(0, (-1, attn.config.d_head))[attn.heads[part]]
        return heads if bias else heads.transpose(1, 2)

    return property(view, doc=meaning)


def _existing(bias: Tensor | None, reader: str) -> Tensor:
    if bias is None:
        raise InputError(f"this model has no bias on {reader}")
    return bias


class Attention(nn.Module):
    """Attention within one text. `bias` is what positions add to the scores; all layers of a stack share it."""

    def __init__(self, config: StackConfig, layer: int = 0, bias: nn.Module | None = None):
        super().__init__()
        self.config, self.bias = config, bias
        self.reach, self.positions = config.reach(layer), config.positions_in(layer)
        n_q, n_kv = config.n_heads, config.kv_heads
        # rows of queries, keys and values among the heads of the fused weight
        self.heads = {"q": slice(0, n_q), "k": slice(n_q, n_q + n_kv), "v": slice(n_q + n_kv, n_q + 2 * n_kv)}
        self.qkv = Linear(config.d_model, (n_q + 2 * n_kv) * config.d_head, bias=config.attention_bias)
        out_bias = config.attention_bias if config.out_bias is None else config.out_bias
        self.out = Linear(config.n_heads * config.d_head, config.d_model, bias=out_bias)
        sizes = [config.d_head * (1 if config.qk_norm == "head" else heads) for heads in (n_q, n_kv)]
        norms = [nn.Identity() if config.qk_norm is None else build_norm(config.norm, size) for size in sizes]
        self.norm_q, self.norm_k = norms

    def forward(self, x: Stream, tap: Tap, visibility: Visibility, past: Growing | None = None) -> Stream:
        """What the heads write for the positions of `x`, which see themselves and, where given, `past` ones."""
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
        """Queries (`q`), keys (`k`) or values (`v`) of some heads alone; of `k` and `v`, key/value heads."""
        return self._project(x, heads + self.heads[part].start)

    def _project(self, x: Stream, heads: slice | Int[Tensor, " head"]) -> Tensor:
        by_head, bias = (-1, self.config.d_head), self.qkv.bias
        weight = self.qkv.weight.unflatten(0, by_head)[heads].flatten(0, 1)
        bias = None if bias is None else bias.unflatten(0, by_head)[heads].flatten()
        return linear(x, weight, bias).unflatten(-1, by_head)

    def enter(self, projected: Sequence[Tensor], positions: Int[Tensor, "#prompt position"]) -> list[Tensor]:
        """Queries (where there are any), keys and values as they meet: normalised and rotated."""
        *q, k, v = projected
        return [*(self.queries(each, positions) for each in q), self.keys(k, positions), v]

    def queries(self, q: Heads, positions: Int[Tensor, "#prompt position"]) -> Heads:
        """Queries as they enter the scores: normalised, then turned by their position, where there is either."""
        return self._rotated(self._normed(self.norm_q, q), positions)

    def keys(self, k: Heads, positions: Int[Tensor, "#prompt position"]) -> Heads:
        """Keys as they enter the scores."""
        return self._rotated(self._normed(self.norm_k, k), positions)

    def _normed(self, norm: nn.Module, x: Heads) -> Heads:
        return norm(x.flatten(-2)).view_as(x) if self.config.qk_norm == "all" else norm(x)

    def _rotated(self, x: Heads, positions: Int[Tensor, "#prompt position"]) -> Heads:
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
        k, v, masked = self.shared(k), self.shared(v), partial(self.masked, visibility=visibility)
        scores = tap("scores", self.scores(q, k, visibility), partial(masked, value=-torch.inf))
        return (tap("pattern", self.pattern(scores), partial(masked, value=0.0)) @ v).transpose(-2, -3)

    def masked(
        self, rows: Float[Tensor, "... query key"], visibility: Visibility, value: float
    ) -> Float[Tensor, "... query key"]:
        """Scores or a pattern with `value` where a query sees no key, whatever an edit put there."""
        return rows.masked_fill(~visibility.near(self.reach).mask(), value)

    def scores(
        self,
        q: Float[Tensor, "*batch head query d_head"],
        k: Float[Tensor, "*batch2 head key d_head"],
        visibility: Visibility,
    ) -> Float[Tensor, "... head query key"]:
        """q·k, scaled, capped, with what positions add; -inf where a query sees no key."""
        bias = None if self.bias is None else self.bias(visibility)
        scaled = (q @ k.transpose(-1, -2)).mul_(self.config.score_scale)
        return self.entering(scaled, bias, visibility.near(self.reach).mask())

    def entering(
        self,
        scaled: Float[Tensor, "*batch query key"],
        bias: Float[Tensor, "*batch2 query key"] | None,
        visible: Bool[Tensor, "*batch3 query key"] | None,
    ) -> Float[Tensor, "... query key"]:
        """Scaled q·k as they enter the softmax: capped, with what positions add, -inf where a key is not `visible`."""
        if (cap := self.config.score_cap) is not None:
            scaled = cap * (scaled / cap).tanh()
        if bias is not None:
            scaled = scaled + bias.to(scaled.dtype)
        return scaled if visible is None else scaled.masked_fill(~visible, -torch.inf)

    @staticmethod
    def pattern(scores: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
        """The share of each key in what a query reads. Every softmax over keys is taken here."""
        return scores.softmax(-1)

    def shared(self, x: Float[Tensor, "*batch kv_head key d_head"]) -> Float[Tensor, "*batch head key d_head"]:
        """Keys or values once for each query head that reads them."""
        n_shared = self.config.n_heads // self.config.kv_heads
        return x if n_shared == 1 else x.repeat_interleave(n_shared, -3)  # which copies

    def fused(
        self,
        q: Float[Tensor, "*batch head query d_head"],
        k: Float[Tensor, "*batch2 kv_head key d_head"],
        v: Float[Tensor, "*batch3 kv_head key d_head"],
        visibility: Visibility,
    ) -> Float[Tensor, "... head query d_head"]:
        """The same mix without a query x key tensor in memory, where a kernel knows how; kernels take four axes."""
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
    W_Q = _view("q", "What each head asks with, `head d_model d_head`.")
    W_K = _view("k", "What each key/value head answers with, `kv_head d_model d_head`.")
    W_V = _view("v", "What each key/value head reads from the positions it attends to, `kv_head d_model d_head`.")
    b_Q = _view("q", "The bias of each head's queries, `head d_head`.", bias=True)  # noqa: N815
    b_K = _view("k", "The bias of each key/value head's keys, `kv_head d_head`.", bias=True)  # noqa: N815
    b_V = _view("v", "The bias of each key/value head's values, `kv_head d_head`.", bias=True)  # noqa: N815

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        """What each head writes into the residual stream."""
        return self.out.weight.unflatten(1, (self.config.n_heads, self.config.d_head)).permute(1, 2, 0)

    @property
    def b_O(self) -> Float[Tensor, " d_model"]:
        """The bias of what attention writes."""
        return _existing(self.out.bias, "what attention writes")


class CrossAttention(Attention):
    """Attention whose keys and values are read from the encoder's last stream; positions play no part."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.reach, self.positions = None, NoPositions()

    def forward(
        self, x: Stream, tap: Tap, visibility: Visibility, past: Growing | None = None, source: Source | None = None
    ) -> Stream:
        """What the heads write for the positions of `x`, which all see the whole source."""
        assert source is not None
        q = tap("q", self.project_queries(x))
        k, v = (past or Growing()).once(lambda: self.project_keys_values(source.stream))
        k, v = tap("k", k), tap("v", v)
        q, k = self._normed(self.norm_q, q), self._normed(self.norm_k, k)  # nothing turns: they share no positions
        return self.out(tap("z", self.mix(q, k, v, source.seen_by(visibility), tap)).flatten(-2))
