"""The configuration of a transformer: typed values (`Rotary(base=10_000)`), no weights, no names of model families."""

from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from interp.errors import InputError, one_of

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
LARGEST_SIZE = 1 << 24  # of a vocabulary, a context, a width: beyond it tensor sizes overflow
LARGEST_NUMBER = 1e18  # of a base or factor: its square is finite in float32
_SIZES = ("n_layers", "d_model", "n_heads", "d_head", "n_ctx", "d_vocab")
# an infinite eps would make every stream 0 and all later numbers undefined
_LIMITS = {"eps": (0, 1), "base": (1e-18, LARGEST_NUMBER), **dict.fromkeys(_SIZES, (1, LARGEST_SIZE))}


def _check(config: Any) -> None:
    """Refuse a setting, also of a part, that is outside its `Literal` or its limits."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        for choices in (kind, *get_args(kind)):
            if get_origin(choices) is Literal and (value is not None or choices is kind):
                one_of(name, value, choices)
        if name in _LIMITS and not _LIMITS[name][0] <= value <= _LIMITS[name][1]:
            raise InputError("{} must be a number from {} to {}, got {}".format(name, *_LIMITS[name], value))
        if is_dataclass(value):
            _check(value)


class Configured:
    """A configuration that shows itself as the call that makes it, without defaults."""

    def __repr__(self) -> str:
        settings = [(setting, getattr(self, setting.name)) for setting in fields(cast(Any, self))]
        arguments = (f"{setting.name}={value!r}" for setting, value in settings if value != setting.default)
        return f"{type(self).__name__}({', '.join(arguments)})"


@dataclass(frozen=True)
class LayerNorm:
    """Subtract the mean, divide by the standard deviation, scale and shift (Ba 2016)."""

    eps: float = 1e-5
    bias: bool = True  # whether it shifts


@dataclass(frozen=True)
class RMSNorm:
    """Divide by the root mean square and scale (Zhang & Sennrich 2019)."""

    eps: float = 1e-5
    offset: float = 0.0  # added to the stored weight: 1 where training decayed weights towards no change
    in_float32: Literal["all", "length"] = "all"  # at every precision: the normalised stream, or only its length


@dataclass(frozen=True)
class NoNorm:
    """Leave the stream as it is, so that the numbers of hand-set models can be derived on paper."""


@dataclass(frozen=True)
class Learned:
    """A trained vector for each position, added to the token's embedding."""

    first: int = 0  # the row of the table for position 0; rows before it are unused


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed sines and cosines added to the token's embedding (Vaswani 2017, section 3.5)."""

    base: float = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"  # sines in even dimensions, or in the first half


@dataclass(frozen=True)
class Interpolated:
    """All angles of a rotation divided by `factor`, so that longer texts stay within trained angles (Chen 2023)."""

    factor: float


@dataclass(frozen=True)
class Stretched:
    """Slow angles divided by `factor`, fast ones unchanged, those between mixed linearly (Dubey 2024)."""

    factor: float
    slow: float  # angles with fewer turns than this in `n_ctx` positions are divided
    fast: float  # angles with more turns stay
    n_ctx: int  # the context of the first training


@dataclass(frozen=True)
class Yarn:
    """The same with a ramp over dimensions, and queries and keys multiplied by `length` (YaRN, Peng 2023)."""

    factor: float
    slow: float
    fast: float
    n_ctx: int
    length: float  # factor of rotated queries and keys
    whole: bool = True  # whether the ends of the ramp are rounded to whole dimensions


@dataclass(frozen=True)
class Rotary:
    """Queries and keys rotated by their position, so that scores depend on the difference of positions (Su 2021)."""

    base: float = 10_000.0
    dims: int | None = None  # how many of a head's first dimensions are rotated; None: all
    pairing: Literal["halves", "adjacent"] = "halves"  # dimension i pairs with i + dims / 2, or with its neighbour
    scaling: Interpolated | Stretched | Yarn | None = None


@dataclass(frozen=True)
class Alibi:
    """Each head lowers its scores with distance, at its own fixed slope (Press 2022)."""


@dataclass(frozen=True)
class Buckets:
    """A trained number a head and bucket of distances, added to all layers' scores (Raffel 2020, section 2.1)."""

    n_buckets: int = 32
    max_distance: int = 128  # longer distances share a bucket


@dataclass(frozen=True)
class NoPositions:
    """No position information, except that a causal mask limits the keys."""


Positions = Learned | Sinusoidal | Rotary | Alibi | Buckets | NoPositions


@dataclass(frozen=True)
class Local:
    """Layers whose queries see only near keys (Child 2019; Beltagy 2020), or that have other positions."""

    layers: tuple[int, ...]
    reach: int | None  # the greatest distance of a visible key, on each side that the stack sees
    positions: Rotary | NoPositions | None = None  # of these layers; None: as in all others


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
class Experts:
    """Several gated feed-forwards; a router chooses `n_chosen` for each position (Jiang 2024)."""

    n_experts: int
    n_chosen: int
    expert: Gated


@dataclass(frozen=True)
class NoMLP:
    """Attention alone, as in the toy models of Elhage 2021."""


Wiring = Literal["pre", "post", "after", "sandwich", "parallel", "parallel_one_norm"]


@dataclass(frozen=True, repr=False)
class StackConfig(Configured):
    """One stack of blocks: an encoder or a decoder.

    `wiring` places the norms: `pre` x + layer(norm(x)); `post` norm(x + layer(x)); `after` x + norm(layer(x));
    `sandwich` x + norm(layer(norm(x))); `parallel` x + attention(norm(x)) + mlp(norm(x)), with a norm each or one.
    """

    n_layers: int
    d_model: int  # width of the residual stream
    n_heads: int  # query heads per layer
    d_head: int  # width of a head's query, key and value; n_heads * d_head may differ from d_model
    d_mlp: int  # width of the feed-forward's hidden layer
    n_ctx: int  # the longest text, in tokens
    d_vocab: int
    causal: bool  # a query sees no later key
    n_kv_heads: int | None = None  # key/value heads; query head h reads key/value head h // (n_heads / n_kv_heads)
    norm: LayerNorm | RMSNorm | NoNorm = LayerNorm()
    wiring: Wiring = "pre"
    positions: Positions = Learned()
    mlp: Plain | Gated | Experts | NoMLP = Plain("gelu")
    attention_bias: bool = True  # a bias on q, k and v
    out_bias: bool | None = None  # a bias on attention's output; None: as on q, k and v
    cross_attention: bool = False  # blocks attend to an encoder's last stream too
    embedding_norm: bool = False  # a norm between the embedding and the first block
    first_norm: bool = True  # a norm before the first attention, as before every other
    n_token_types: int = 0  # rows of a table whose first row is added to every token; 0 for none
    embedding_scale: float = 1.0  # factor of token embeddings
    d_embedding: int | None = None  # width of the embedding, if a matrix projects it to d_model
    scale: float | None = None  # scores are q·k times this; None is d_head ** -0.5
    score_cap: float | None = None  # scores are cap * tanh(score / cap) before the mask
    qk_norm: Literal["head", "all"] | None = None  # queries and keys are normalised, for each head or all heads as one
    local: Local | None = None  # layers with nearer keys or other positions

    def __post_init__(self) -> None:
        _check(self)
        if self.n_heads % self.kv_heads:
            raise InputError(f"{self.n_heads} query heads cannot share {self.kv_heads} key/value heads evenly")
        if isinstance(self.positions, Rotary) and (dims := self.positions.dims or self.d_head) % 2:
            raise InputError(f"rotary positions turn pairs of dimensions: d_head must be even, got {dims}")
        if isinstance(self.positions, Buckets) and self.positions.n_buckets < (least := 2 if self.causal else 4):
            raise InputError(f"distances need at least {least} buckets, got {self.positions.n_buckets}")
        if self.parallel and self.cross_attention:
            raise InputError("cross-attention reads what attention wrote: expected a wiring other than parallel")
        if self.local and not {*self.local.layers} <= {*range(self.n_layers)}:
            raise InputError(f"local layers must lie in 0-{self.n_layers - 1}, got {self.local.layers}")

    @property
    def kv_heads(self) -> int:
        """Key/value heads a layer: `n_kv_heads`, or one for each query head."""
        return self.n_kv_heads or self.n_heads

    @property
    def score_scale(self) -> float:
        """The factor of q·k."""
        return self.d_head**-0.5 if self.scale is None else self.scale

    @property
    def parallel(self) -> bool:
        """Whether attention and feed-forward read the same stream."""
        return self.wiring.startswith("parallel")

    @property
    def norms_sums(self) -> bool:
        """Whether a norm after each layer rescales the stream, and so everything written before."""
        return self.wiring == "post" and not isinstance(self.norm, NoNorm)

    @property
    def norms_writes(self) -> bool:
        """Whether a layer's output passes a norm besides the one of its reader."""
        return self.wiring in {"post", "after", "sandwich"} and not isinstance(self.norm, NoNorm)

    def reach(self, layer: int) -> int | None:
        """The greatest distance of a visible key in `layer`, in tokens; None without a limit."""
        return self.local.reach if self.local and layer in self.local.layers else None

    def positions_in(self, layer: int) -> Positions:
        """The positions of `layer`."""
        return self.local.positions or self.positions if self.local and layer in self.local.layers else self.positions


@dataclass(frozen=True)
class Transform:
    """norm(activation(dense(x))), before the output layer of a masked-word model (Devlin 2019)."""

    activation: Activation
    norm: LayerNorm
    bias: bool = True  # of the dense layer


@dataclass(frozen=True)
class Writing:
    """Ids that a decoder writes, or does not, beside an encoder; no pass depends on them."""

    ends: tuple[int, ...] = ()  # a text ends after any of these
    first: int | None = None  # always written first, after the id that the decoder's input begins with
    last: int | None = None  # written last if the text is cut short
    never: tuple[int, ...] = ()  # never written


def _of_last(name: str, meaning: str) -> Any:
    return property(attrgetter(f"last.{name}"), doc=meaning)


@dataclass(frozen=True, repr=False)
class TransformerConfig(Configured):
    """A transformer: a causal decoder, a bidirectional encoder, or both, and an output layer or none.

    `output` is `tied` (the output layer's weight is the embedding), `untied`, or `none` (no output layer, no logits).
    """

    decoder: StackConfig | None = None
    encoder: StackConfig | None = None
    output: Literal["tied", "untied", "none"] = "untied"
    output_bias: bool = False
    output_scale: float = 1.0  # factor of the stream before the output layer
    logit_cap: float | None = None  # logits are cap * tanh(logit / cap)
    transform: Transform | None = None
    shared_embedding: bool = False  # encoder and decoder embed tokens with the same weights
    target_start: int | None = None  # the id that begins the decoder's input, if there is an encoder
    writing: Writing = Writing()

    def __post_init__(self) -> None:
        _check(self)
        encoder, decoder, has_encoder = self.encoder, self.decoder, self.encoder is not None
        if decoder is None and encoder is None:
            raise InputError("expected a decoder, an encoder, or both: got neither")
        if encoder and (encoder.causal or encoder.cross_attention):
            raise InputError("an encoder sees both ways, but no other stack: expected causal=False, no cross-attention")
        if decoder and not decoder.causal:
            raise InputError("a decoder sees no later token: expected causal=True")
        if decoder and decoder.cross_attention != has_encoder:
            raise InputError(f"a decoder attends to an encoder if there is one: expected cross_attention={has_encoder}")
        if decoder and encoder and decoder.d_model != encoder.d_model:
            raise InputError(f"expected one d_model for both, got {encoder.d_model} and {decoder.d_model}")
        if self.shared_embedding and len({(s.d_vocab, s.d_embedding) for s in self.stacks.values()}) > 1:
            raise InputError("a shared embedding has one vocabulary: the encoder's and the decoder's d_vocab differ")

    @property
    def stacks(self) -> dict[str, StackConfig]:
        """The stacks by the names in their sites, in the order in which they run."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in stacks.items() if stack is not None}

    @property
    def last(self) -> StackConfig:
        """The stack that the output layer reads."""
        return list(self.stacks.values())[-1]

    n_layers = _of_last("n_layers", "Blocks in the stack that the output layer reads.")
    n_heads = _of_last("n_heads", "Query heads a layer.")
    d_model = _of_last("d_model", "Width of the residual stream.")
    d_head = _of_last("d_head", "Width of one head.")
    d_vocab = _of_last("d_vocab", "Number of tokens.")
    n_ctx = _of_last("n_ctx", "The longest text, in tokens.")
