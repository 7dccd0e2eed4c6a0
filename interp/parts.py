"""Norms, positions and feed-forwards: the parts that a block is composed of, each built from its configuration."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.config import (
    Activation,
    Gated,
    LayerNorm,
    Learned,
    NoMLP,
    NoNorm,
    NoPositions,
    Plain,
    RMSNorm,
    Rotary,
    Sinusoidal,
    StackConfig,
)
from interp.tap import Tap

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def build_norm(config: StackConfig) -> nn.Module:
    """The norm over d_model that `config.norm` describes."""
    match config.norm:
        case LayerNorm(eps):
            return nn.LayerNorm(config.d_model, eps)
        case RMSNorm(eps):
            return RootMeanSquare(config.d_model, eps)
        case NoNorm():
            return nn.Identity()


class RootMeanSquare(nn.RMSNorm):
    """RMSNorm, in float32 at every precision, as models are trained with it: see `rotate`."""

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Scale to unit root mean square, then by the trained weight."""
        return self.weight * F.rms_norm(x.float(), self.normalized_shape, eps=self.eps).to(x.dtype)


class Embedding(nn.Module):
    """Token embedding, plus whatever positions and token types add to it: what enters the first block."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.token = nn.Embedding(config.d_vocab, config.d_model)
        self.position = _position_table(config)
        self.token_type = nn.Embedding(config.n_token_types, config.d_model) if config.n_token_types else None
        self.norm = build_norm(config) if config.embedding_norm else nn.Identity()

    def forward(
        self, ids: Int[Tensor, "*batch position"], positions: Int[Tensor, "*batch position"]
    ) -> Float[Tensor, "*batch position d_model"]:
        """Embed tokens that stand at `positions` of their texts."""
        x = self.token(ids)
        if self.position is not None:
            x = x + self.position(positions)
        if self.token_type is not None:
            x = x + self.token_type.weight[0]  # a single text is all of the first type
        return self.norm(x)


def _position_table(config: StackConfig) -> nn.Embedding | None:
    match config.positions:
        case Learned():
            return nn.Embedding(config.n_ctx, config.d_model)
        case Sinusoidal(base):
            table = sinusoids(config.n_ctx, config.d_model, base)
            return nn.Embedding.from_pretrained(table, freeze=True)
        case Rotary() | NoPositions():
            return None


def sinusoids(n_ctx: int, d_model: int, base: float) -> Float[Tensor, "position d_model"]:
    """Sines in even dimensions, cosines in odd ones, wavelengths from 2 pi to base * 2 pi (Vaswani 2017, 3.5)."""
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] / base ** (even / d_model)
    table = torch.empty(n_ctx, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table.to(torch.get_default_dtype())


def rotate(
    x: Float[Tensor, "*batch position head d_head"], positions: Int[Tensor, "#prompt position"], base: float
) -> Float[Tensor, "*batch position head d_head"]:
    """Turn dimension pairs (i, i + d_head/2) by position / base**(2i/d_head) radians (Su 2021, half-split pairing)."""
    half = x.shape[-1] // 2
    # Angles in float32 at every precision, and in this order of operations, as the models were trained: bfloat16 cannot
    # tell position 257 from 256, and float64 angles would be those of a slightly different model.
    frequency = 1.0 / base ** (torch.arange(0, 2 * half, 2, device=x.device, dtype=torch.float32) / (2 * half))
    angle = (positions.float()[..., None] * frequency)[..., None, :]  # prompt position 1 half
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Linear(nn.Linear):
    """A linear layer whose weight, shaped (out, in) as ever, lies input first in memory.

    A product of few rows, of which a sweep has many, is up to 1.5 times as fast then on a CPU, of many 1.05 times.
    """

    def __init__(self, d_in: int, d_out: int, bias: bool = True):
        super().__init__(d_in, d_out, bias)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())


class MLP(nn.Module):
    """The feed-forward layer, plain or gated; a gate and its partner come from one matrix product."""

    def __init__(self, config: StackConfig, shape: Plain | Gated):
        super().__init__()
        self.activation = ACTIVATIONS[shape.activation]
        self.gated = isinstance(shape, Gated)
        self.up = Linear(config.d_model, config.d_mlp * (1 + self.gated), bias=shape.bias)
        self.down = Linear(config.d_mlp, config.d_model, bias=shape.bias)

    def forward(self, x: Float[Tensor, "*batch position d_model"], tap: Tap) -> Float[Tensor, "... position d_model"]:
        """`mlp.pre` is what the activation reads, `mlp.post` what `down` reads (after the gate's product)."""
        if self.gated:
            pre, partner = self.up(x).chunk(2, -1)
            # contiguous, so that an equal tensor put here gives equal bits: kernels round by layout
            post = self.activation(tap("pre", pre.contiguous())) * partner
        else:
            post = self.activation(tap("pre", self.up(x)))
        return self.down(tap("post", post))


def build_mlp(config: StackConfig) -> MLP | None:
    """The feed-forward that `config.mlp` describes; None where blocks have attention alone."""
    return None if isinstance(config.mlp, NoMLP) else MLP(config, config.mlp)
