"""The parts of a transformer besides attention: norms, embeddings, feed-forwards, the output layer."""

from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.config import (
    Activation,
    Experts,
    Gated,
    LayerNorm,
    Learned,
    NoMLP,
    NoNorm,
    Plain,
    RMSNorm,
    Sinusoidal,
    StackConfig,
    Transform,
    TransformerConfig,
)
from interp.positions import Lookup, sinusoids
from interp.products import ACTIVATIONS, linear
from interp.tap import UNTAPPED, Tap

Stream = Float[Tensor, "... position d_model"]  # leading axes are free: an edit may add some
Norm = LayerNorm | RMSNorm | NoNorm


def build_norm(norm: Norm, width: int) -> nn.Module:
    """The norm over `width` entries that `norm` describes."""
    match norm:
        case LayerNorm(eps, bias):
            return nn.LayerNorm(width, eps, bias=bias)
        case RMSNorm():
            return RootMeanSquare(width, norm)
        case NoNorm():
            return nn.Identity()


class RootMeanSquare(nn.RMSNorm):
    """RMSNorm, in float32 at every precision, because models are trained with it."""

    def __init__(self, width: int, config: RMSNorm):
        super().__init__(width, config.eps)
        self.config = config
        nn.init.constant_(self.weight, 1 - config.offset)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Scale to unit root mean square, then by the trained weight."""
        eps, offset = self.config.eps, self.config.offset
        if self.config.in_float32 == "length":
            mean_square = x.float().pow(2).mean(-1, keepdim=True)
            return (self.weight + offset) * (x * torch.rsqrt(mean_square + eps)).to(x.dtype)
        normed = F.rms_norm(x.float(), self.normalized_shape, eps=eps)
        if offset:
            return (normed * (self.weight.float() + offset)).to(x.dtype)
        return self.weight * normed.to(x.dtype)


class Around(nn.Module):
    """A norm before a layer and one after it."""

    def __init__(self, norm: Norm, width: int):
        super().__init__()
        self.before, self.after = build_norm(norm, width), build_norm(norm, width)


class Embedding(nn.Module):
    """Embeddings of tokens, plus those of positions and token types: what enters the first block."""

    def __init__(self, config: StackConfig):
        super().__init__()
        width = config.d_embedding or config.d_model
        self.config = config
        self.token = Lookup(config.d_vocab, width)
        first = config.positions.first if isinstance(config.positions, Learned) else None
        self.position = None if first is None else Lookup(first + config.n_ctx, width)
        self.token_type = Lookup(config.n_token_types, width) if config.n_token_types else None
        self.norm = build_norm(config.norm, width) if config.embedding_norm else nn.Identity()
        self.project = Linear(width, config.d_model) if config.d_embedding else nn.Identity()

    def forward(self, ids: Int[Tensor, "*batch position"], positions: Int[Tensor, "*batch position"]) -> Stream:
        """Embed the tokens at these positions of their texts."""
        return self.project(self.norm(reduce(torch.add, self.terms(ids, positions).values())))

    def terms(self, ids: Int[Tensor, "*at position"], positions: Int[Tensor, "*at position"]) -> dict[str, Tensor]:
        """The summands, before any norm: `token` and, if there are any, `position` and `type` (one vector for all)."""
        x = self.token(ids)
        terms = {"token": x if self.config.embedding_scale == 1 else x * self.config.embedding_scale}
        match self.config.positions:
            case Learned(first):
                assert self.position is not None
                terms["position"] = self.position(positions + first)
            case Sinusoidal():
                terms["position"] = sinusoids(positions, x.shape[-1], self.config.positions).to(x.dtype)
        if self.token_type is not None:
            terms["type"] = self.token_type.weight[0]
        return terms


class Linear(nn.Linear):
    """A linear layer whose weight (out x in) is laid out input first in memory: faster for few rows on a CPU."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True):
        super().__init__(d_in, d_out, bias)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())

    def forward(self, input: Float[Tensor, "*at d_in"], then: Activation | None = None) -> Float[Tensor, "*at d_out"]:
        """The product by the faster kernel, and then an activation."""
        return linear(input, self.weight, self.bias, then)


class MLP(nn.Module):
    """The feed-forward layer, plain or gated; one matrix product makes a gate and its partner."""

    def __init__(self, config: StackConfig, shape: Plain | Gated):
        super().__init__()
        self.activation: Activation = shape.activation
        self.gated = isinstance(shape, Gated)
        self.up = Linear(config.d_model, config.d_mlp * (1 + self.gated), bias=shape.bias)
        self.down = Linear(config.d_mlp, config.d_model, bias=shape.bias)

    def forward(self, x: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The activation reads `mlp.pre`; `down` reads `mlp.post` (after the gate's product)."""
        if self.gated:
            pre, partner = self.up(x).chunk(2, -1)
            # contiguous, so that patching in an equal tensor gives equal bits: kernels round by layout
            post = ACTIVATIONS[self.activation](tap("pre", pre.contiguous())) * partner
        elif tap.wants("pre"):
            post = ACTIVATIONS[self.activation](tap("pre", self.up(x)))
        else:
            post = self.up(x, self.activation)
        return self.down(tap("post", post))


class Mixture(nn.Module):
    """Several feed-forwards, a router that weighs them, and their weighted sum (Jiang 2024, section 2.1)."""

    def __init__(self, config: StackConfig, shape: Experts):
        super().__init__()
        self.n_chosen = shape.n_chosen
        self.router = Linear(config.d_model, shape.n_experts, bias=False)
        self.experts = nn.ModuleList(MLP(config, shape.expert) for _ in range(shape.n_experts))

    def forward(self, x: Stream, tap: Tap = UNTAPPED) -> Stream:
        """`mlp.router` holds the experts' weights, `mlp.experts` their weighted outputs; 0 for those not chosen."""
        probabilities = self.router(x).float().softmax(-1)
        best = probabilities.topk(self.n_chosen, -1)
        shares = best.values / best.values.sum(-1, keepdim=True)
        weights = tap("router", torch.zeros_like(probabilities).scatter(-1, best.indices, shares).to(x.dtype))
        batch = torch.broadcast_shapes(x.shape[:-1], weights.shape[:-1])
        x, weights = x.expand(*batch, -1), weights.expand(*batch, -1)
        outputs = (self._expert(expert, x, weights) for expert in range(len(self.experts)))
        if not tap.wants("experts"):
            return sum(outputs, torch.zeros_like(x))
        return tap("experts", torch.stack([*outputs], -2)).sum(-2)

    def _expert(self, expert: int, x: Stream, weights: Float[Tensor, "... position expert"]) -> Stream:
        out, weight = torch.zeros_like(x), weights[..., expert]
        uses = weight != 0  # it reads only the positions that use it
        out[uses] = self.experts[expert](x[uses]) * weight[uses][:, None]
        return out


def build_mlp(config: StackConfig) -> MLP | Mixture | None:
    """The feed-forward that `config.mlp` describes; None if blocks have attention alone."""
    match config.mlp:
        case NoMLP():
            return None
        case Experts():
            return Mixture(config, config.mlp)
        case _:
            return MLP(config, config.mlp)


class Transforming(nn.Module):
    """norm(activation(dense(x))), before the output layer of masked-word models."""

    def __init__(self, d_in: int, d_out: int, shape: Transform):
        super().__init__()
        self.dense = Linear(d_in, d_out, bias=shape.bias)
        self.activation: Activation = shape.activation
        self.norm = build_norm(shape.norm, d_out)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_out"]:
        """The stream as the output layer reads it."""
        return self.norm(self.dense(x, self.activation))


class Output(nn.Linear):
    """The output layer: from the final residual stream to logits of all tokens, or of some."""

    def __init__(self, config: TransformerConfig):
        width = config.last.d_embedding or config.d_model
        super().__init__(width, config.d_vocab, bias=config.output_bias)
        self.scale, self.cap = config.output_scale, config.logit_cap
        transform = config.transform
        self.transform = nn.Identity() if transform is None else Transforming(config.d_model, width, transform)

    def forward(self, input: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of every token, from the final residual stream."""
        return self._capped(linear(self._scaled(input), self.weight, self.bias))

    def of_tokens(
        self, final: Float[Tensor, "*cells prompt read d_model"], tokens: Int[Tensor, "prompt token"]
    ) -> Float[Tensor, "*cells prompt read token"]:
        """Logits of each prompt's `tokens` alone."""
        logits = self._scaled(final) @ self.weight[tokens].transpose(-1, -2)
        return self._capped(logits if self.bias is None else logits + self.bias[tokens][:, None])

    def _scaled(self, final: Tensor) -> Tensor:
        x = self.transform(final)
        return x if self.scale == 1 else x * self.scale

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()
