"""How does a transformer tell positions? By vectors on embeddings, rotated queries and keys, or a bias on scores."""

import math
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.config import Alibi, Buckets, Interpolated, Rotary, Sinusoidal, StackConfig, Stretched, Yarn
from interp.errors import InputError
from interp.visibility import Visibility


class Lookup(nn.Embedding):
    """A table of vectors; on the meta device nothing is drawn, or torch would import its compiler for a second."""

    def reset_parameters(self) -> None:
        """Draw from N(0, 1)."""
        if not self.weight.is_meta:
            super().reset_parameters()


def sinusoids(
    positions: Int[Tensor, "*batch position"], d_model: int, config: Sinusoidal
) -> Float[Tensor, "*batch position d_model"]:
    """Sines and cosines of wavelengths from 2 pi to base * 2 pi (Vaswani 2017, 3.5), exact to float32."""
    even = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    angle = positions.double()[..., None] / config.base ** (even / d_model)
    sin, cos = angle.sin(), angle.cos()[..., : d_model // 2]
    if config.layout == "halves":
        return torch.cat([sin, cos], -1).float()
    table = angle.new_empty(*positions.shape, d_model)
    table[..., 0::2], table[..., 1::2] = sin, cos
    return table.float()


def rotate(
    x: Float[Tensor, "*batch position head d_head"], positions: Int[Tensor, "#prompt position"], rotary: Rotary
) -> Float[Tensor, "*batch position head d_head"]:
    """Rotate dimension pairs by position / base**(2i/dims) radians (Su 2021); dimensions beyond `dims` stay."""
    dims = rotary.dims or x.shape[-1]
    frequency, length = frequencies(rotary, dims, x.device)
    angle = (positions.float()[..., None] * frequency)[..., None, :]  # prompt position 1 half
    cos, sin = (angle.cos() * length).to(x.dtype), (angle.sin() * length).to(x.dtype)
    halves, turning = rotary.pairing == "halves", x[..., :dims]
    partner = turning.roll(dims // 2, -1) if halves else turning.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    turns = (torch.stack(pair, -2 if halves else -1).flatten(-2) for pair in ((cos, cos), (-sin, sin)))
    # expanded over heads, so that a position's heads are contiguous: four times as fast on a CPU
    cos, sin = (turn.expand(*turn.shape[:-2], x.shape[-2], -1).contiguous() for turn in turns)
    turned = turning * cos + partner.mul_(sin)
    return turned if dims == x.shape[-1] else torch.cat([turned, x[..., dims:]], -1)


@cache
def frequencies(rotary: Rotary, dims: int, device: torch.device) -> tuple[Float[Tensor, " half"], float]:
    """Each pair's radians a position, and the factor of rotated vectors."""
    # Angles are float32 at every precision, in the order of operations of training: bfloat16 cannot tell position 257
    # from 256, and float64 angles would belong to a slightly different model.
    exponent = torch.arange(0, dims, 2, device=device, dtype=torch.float32) / dims
    plain = 1.0 / rotary.base**exponent
    match rotary.scaling:
        case None:
            return plain, 1.0
        case Interpolated(factor):
            return plain / factor, 1.0
        case Stretched(factor, slow, fast, n_ctx):
            wavelength = 2 * math.pi / plain
            mix = (n_ctx / wavelength - slow) / (fast - slow)
            mixed = (1 - mix) * plain / factor + mix * plain
            scaled = torch.where(wavelength > n_ctx / slow, plain / factor, plain)
            medium = (wavelength >= n_ctx / fast) & (wavelength <= n_ctx / slow)
            return torch.where(medium, mixed, scaled), 1.0
        case Yarn(factor, slow, fast, n_ctx, length, whole):
            # the dimensions that turn so often in `n_ctx` positions
            logs = (math.log(n_ctx / (turns * 2 * math.pi)) for turns in (fast, slow))
            low, high = (dims * log / (2 * math.log(rotary.base)) for log in logs)
            if whole:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, dims - 1)
            ramp = torch.arange(dims // 2, device=device, dtype=torch.float32) - low
            unscaled = 1 - (ramp / (high - low or 0.001)).clamp(0, 1)
            return 1.0 / (factor * rotary.base**exponent) * (1 - unscaled) + plain * unscaled, length


class Slopes(nn.Module):
    """-slope * distance on the scores; slopes fall geometrically from head to head (Press 2022, section 3)."""

    def __init__(self, n_heads: int):
        super().__init__()
        power = 2 ** math.floor(math.log2(n_heads))  # beyond it, every other slope of the next power
        self.slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        self.slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]

    def forward(self, visibility: Visibility) -> Float[Tensor, "rows head query key"]:
        """The bias of each head's scores."""
        slopes = torch.tensor(self.slopes, device=visibility.columns.device)
        return slopes[:, None, None] * -visibility.distance().abs()[:, None]


class BucketBias(nn.Module):
    """A trained number a head and bucket of distances: near ones have a bucket each, far ones share (Raffel 2020)."""

    def __init__(self, config: Buckets, n_heads: int, *, causal: bool):
        super().__init__()
        self.config, self.causal = config, causal
        self.table = Lookup(config.n_buckets, n_heads)

    def forward(self, visibility: Visibility) -> Float[Tensor, "rows head query key"]:
        """The bias of each head's scores."""
        bucket = self.bucket(visibility.distance())  # all layers share the table, on any device
        return F.embedding(bucket, self.table.weight.to(bucket.device)).movedim(-1, 1)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of a distance (key - query): each side has half of them, or all in a causal stack."""
        max_distance, n = self.config.max_distance, self.config.n_buckets // (1 if self.causal else 2)
        side = 0 if self.causal else (distance > 0) * n
        far = (-distance).clamp(min=0) if self.causal else distance.abs()
        exact = n // 2
        log = torch.log(far.float().clamp(min=1) / exact) / math.log(max_distance / exact) * (n - exact)
        buckets = side + torch.where(far < exact, far, (exact + log.long()).clamp(max=n - 1))
        if max_distance <= exact and (buckets < 0).any():  # far ones count down
            raise InputError(f"the text is too long: max_distance must be above {exact}, got {max_distance}")
        return buckets


def build_bias(config: StackConfig) -> nn.Module | None:
    """The bias that positions add to the scores of all layers; None if they enter elsewhere."""
    match config.positions:
        case Alibi():
            return Slopes(config.n_heads)
        case Buckets():
            return BucketBias(config.positions, config.n_heads, causal=config.causal)
        case _:
            return None
