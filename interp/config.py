"""What a transformer is made of, as values: no weights, no names of model families.

A variant is a typed value (`Rotary(base=10_000)`, `RMSNorm(eps=1e-5)`), never a switch, so a configuration reads as
the list of parts that `interp.parts` builds from it.
"""

from dataclasses import dataclass
from typing import Literal

from interp.errors import InputError

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True)
class LayerNorm:
    """Subtract the mean, divide by the standard deviation, scale and shift (Ba 2016)."""

    eps: float = 1e-5


@dataclass(frozen=True)
class RMSNorm:
    """Divide by the root mean square and scale (Zhang & Sennrich 2019)."""

    eps: float = 1e-5


@dataclass(frozen=True)
class NoNorm:
    """Leave the stream as it is; hand-set models use it so that their numbers can be derived on paper."""


@dataclass(frozen=True)
class Learned:
    """A trained vector a position, added to the token's embedding."""


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed sines and cosines added to the token's embedding (Vaswani 2017, section 3.5)."""

    base: float = 10_000.0


@dataclass(frozen=True)
class Rotary:
    """Queries and keys rotated by their position, so that scores depend on its difference (Su 2021)."""

    base: float = 10_000.0


@dataclass(frozen=True)
class NoPositions:
    """No position information; a causal mask alone still tells how many tokens came before."""


@dataclass(frozen=True)
class Plain:
    """down(activation(up(x))), the feed-forward of Vaswani 2017."""

    activation: Activation
    bias: bool = True


@dataclass(frozen=True)
class Gated:
    """down(activation(gate(x)) * up(x)) (Shazeer 2020)."""

    activation: Activation
    bias: bool = False


@dataclass(frozen=True)
class NoMLP:
    """Attention alone, as in the toy models of Elhage 2021."""


@dataclass(frozen=True)
class StackConfig:
    """One stack of blocks: an encoder or a decoder.

    Raises:
        InputError: sizes that do not fit together.
    """

    n_layers: int
    d_model: int  # width of the residual stream
    n_heads: int  # query heads a layer
    d_head: int  # width of one head's query, key and value; n_heads * d_head may differ from d_model
    d_mlp: int  # width of the feed-forward's hidden layer
    n_ctx: int  # the longest text, in tokens
    d_vocab: int
    causal: bool  # a query sees no key after it
    n_kv_heads: int | None = None  # key/value heads; query head h reads key/value head h // (n_heads / n_kv_heads)
    norm: LayerNorm | RMSNorm | NoNorm = LayerNorm()
    wiring: Literal["pre", "post"] = "pre"  # the norm before each layer, or after each sum
    positions: Learned | Sinusoidal | Rotary | NoPositions = Learned()
    mlp: Plain | Gated | NoMLP = Plain("gelu")
    attention_bias: bool = True  # a bias on q, k, v and on the output
    embedding_norm: bool = False  # the embedding is normalised before it enters the first block
    n_token_types: int = 0  # segments told apart by an added vector; 0 for none
    scale: float | None = None  # scores are q·k times this; None is d_head ** -0.5

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "d_head", "n_ctx", "d_vocab"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.n_heads % self.kv_heads:
            raise InputError(f"{self.n_heads} query heads cannot share {self.kv_heads} key/value heads evenly")
        if isinstance(self.positions, Rotary) and self.d_head % 2:
            raise InputError(f"rotary positions turn pairs of dimensions: d_head must be even, got {self.d_head}")

    @property
    def kv_heads(self) -> int:
        """Key/value heads a layer: `n_kv_heads`, or one for each query head."""
        return self.n_kv_heads or self.n_heads

    @property
    def score_scale(self) -> float:
        """What q·k is multiplied by."""
        return self.d_head**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True)
class TransformerConfig:
    """A transformer: a causal decoder, or a bidirectional encoder, and what is read from its last residual stream.

    `output` is `tied` (the output layer's weight is the embedding), `untied`, or `none` (no output layer, no logits).

    Raises:
        InputError: no stack, or both (an encoder-decoder), or a stack whose mask does not fit its place.
    """

    decoder: StackConfig | None = None
    encoder: StackConfig | None = None
    output: Literal["tied", "untied", "none"] = "untied"

    def __post_init__(self) -> None:
        if (self.decoder is None) == (self.encoder is None):
            raise InputError("expected either a decoder or an encoder: encoder-decoder stacks are not supported yet")
        if self.encoder is not None and self.encoder.causal:
            raise InputError("an encoder sees both ways: expected causal=False")
        if self.decoder is not None and not self.decoder.causal:
            raise InputError("a decoder sees no later token: expected causal=True")

    @property
    def stacks(self) -> dict[str, StackConfig]:
        """The stacks by the name under which their sites are addressed, in the order in which they run."""
        named = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in named.items() if stack is not None}

    @property
    def last(self) -> StackConfig:
        """The stack that the output layer reads."""
        return list(self.stacks.values())[-1]

    @property
    def n_layers(self) -> int:
        """Blocks in the stack that the output layer reads."""
        return self.last.n_layers

    @property
    def n_heads(self) -> int:
        """Query heads a layer."""
        return self.last.n_heads

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.last.d_model

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.last.d_head

    @property
    def d_vocab(self) -> int:
        """Number of tokens."""
        return self.last.d_vocab

    @property
    def n_ctx(self) -> int:
        """The longest text, in tokens."""
        return self.last.n_ctx
