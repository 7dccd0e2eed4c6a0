"""How a family writes its configuration and names its weights: its module says the one, `names.toml` the other."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from interp.config import (
    LARGEST_NUMBER,
    LARGEST_SIZE,
    Activation,
    Experts,
    Gated,
    LayerNorm,
    Plain,
    RMSNorm,
    StackConfig,
    TransformerConfig,
)
from interp.errors import InputError, one_of
from interp.transformer import Transformer
from models.families import names

# theirs to ours; the other names of these functions are approximations of them
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",  # with sqrt(2 / pi) to 10 digits
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Fields:
    """The fields of a config.json, read with their kind checked; null counts as absent.

    Every reader raises InputError, naming the field and its value. What no reader asked for is found by `rest`.
    """

    raw: Mapping[str, Any]
    names_read: set[str] = field(default_factory=set, compare=False)

    def get(self, key: str) -> Any:
        """The field as it is; None where it is absent."""
        self.names_read.add(key)
        return self.raw.get(key)

    def _value(self, key: str, default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        value = default if self.get(key) is None else self.raw[key]
        if value is None:
            raise InputError(f"config.json lacks {key!r}: {expected} is expected")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"config.json: {key} must be {expected}, got {value!r}")
        return value

    def inner(self, key: str) -> "Fields":
        """The fields of an object; none where it is absent."""
        return Fields(self._value(key, {}, (dict,), "an object"))

    def names(self, key: str, default: Sequence[str] | None = None) -> list[str]:
        """A list of words, one a layer or the like."""
        return [str(word) for word in self._value(key, default, (list, tuple), "a list")]

    def rest(self, harmless: Iterable[str]) -> None:
        """Refuse fields that nothing has read, but for null and those known to change nothing that is computed."""
        checked = self.names_read | names.BOOKKEEPING | {*harmless}
        unknown = {key: value for key, value in self.raw.items() if key not in checked and value is not None}
        if unknown:
            fields = ", ".join(f"{key} {value!r}" for key, value in sorted(unknown.items()))
            raise InputError(
                f"config.json: nothing here reads {fields}, which may change what the model computes; "
                "take it out of config.json if it does not"
            )

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least`; required where there is no default."""
        value = self._value(key, default, (int,), f"a whole number from {least}")
        if not least <= value <= LARGEST_SIZE:
            limit = f"to {LARGEST_SIZE:,}" if value > least else f"from {least}"
            raise InputError(f"config.json: {key} must be a whole number {limit}, got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0, of a size that computing with it in float32 leaves finite; required without a default."""
        value = self._value(key, default, (int, float), "a number above 0")
        if not 0 < value <= LARGEST_NUMBER:
            limit = f"up to {LARGEST_NUMBER:g}" if value > 0 else "above 0"
            raise InputError(f"config.json: {key} must be a number {limit}, got {value}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._value(key, default, (bool,), "true or false")

    def activation(self, key: str, default: str) -> Activation:
        """One of the activation functions."""
        name = self._value(key, default, (str,), "an activation's name")
        if name not in ACTIVATIONS:
            raise InputError(f"config.json: {key} {name!r} is not supported, expected one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def head_width(self, width: str, heads: str) -> int:
        """How wide each of `heads` is that share `width` evenly."""
        total, count = self.size(width), self.size(heads)
        if total % count:
            raise InputError(f"config.json: {width} {total} is not a multiple of {heads} {count}")
        return total // count

    @property
    def masked_words(self) -> bool:
        """Whether there is an output layer for masked words; weights that are read tell it (`Family.masked`)."""
        return any(name.endswith("ForMaskedLM") for name in self.names("architectures", []))

    def only(self, **supported: Any) -> None:
        """Refuse fields that change the computation, unless they are absent or have the one value that is supported."""
        for key, value in supported.items():
            setting = self.get(key)
            if setting is not None and setting != value:
                raise InputError(f"config.json: {key} {setting!r} is not supported, only {json.dumps(value)}")


def activation_name(activation: Activation) -> str:
    """Their name of an activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation)


def parts_of(stack: StackConfig) -> tuple[str | None, float | None]:
    """Their name of a stack's activation, and its norm's epsilon; None where it has none."""
    shape = stack.mlp.expert if isinstance(stack.mlp, Experts) else stack.mlp
    activation = shape.activation if isinstance(shape, Plain | Gated) else None
    eps = stack.norm.eps if isinstance(stack.norm, LayerNorm | RMSNorm) else None
    return activation and activation_name(activation), eps


def with_output(fields: Fields, decoder: StackConfig, *, tied: bool = False, **parts: Any) -> TransformerConfig:
    """The decoder with its output layer, which is the embedding if they say so, or by default."""
    output = "tied" if fields.flag("tie_word_embeddings", tied) else "untied"
    return TransformerConfig(decoder=decoder, output=output, **parts)


Form = Literal["rows", "columns", "by_head", "one_row"]


@dataclass(frozen=True)
class Theirs:
    """Where one of our modules (or parameters) is stored: the names that make it up, stacked along output rows.

    Each `*` stands for a number in the name of ours, in order: the layer, then the expert. Names of a module get the
    parameter's own ending (`.weight`, `.bias`); those of a parameter are whole.
    """

    names: tuple[str, ...]
    form: Form = "rows"

    def __post_init__(self) -> None:
        one_of("form", self.form, Form)


def rows(*names: str) -> Theirs:
    """Matrices stored as output x input, as ours are; several are stacked."""
    return Theirs(names)


def columns(*names: str) -> Theirs:
    """Matrices stored as input x output; several are stacked along their outputs."""
    return Theirs(names, "columns")


def by_head(name: str) -> Theirs:
    """One matrix for q, k and v, whose output rows go head by head: a head's q, its k, its v, then the next head's."""
    return Theirs((name,), "by_head")


def one_row(name: str) -> Theirs:
    """A vector stored as a matrix of one row."""
    return Theirs((name,), "one_row")


@dataclass(frozen=True)
class Family:
    """One family: its configuration to ours and back, and its weights beside ours, by module or parameter.

    `name` is their `model_type`. `reads` makes our configuration of their fields; what it does not ask for, must be
    `harmless` (see `Fields.rest`). `writes` makes their fields of ours. Names of weights are theirs without `prefix`,
    which a file may have or not. The head of `names.toml` explains the other fields that come from there.
    """

    name: str
    reads: Callable[[Fields], TransformerConfig]
    writes: Callable[[TransformerConfig], dict[str, Any]]
    weights: Mapping[str, Theirs] = field(default_factory=dict)
    architecture: str = ""
    prefix: str = ""
    ignored: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    zero: frozenset[str] = frozenset()
    masked: str | None = None
    other_task: str | None = None
    harmless: frozenset[str] = frozenset()
    # the same for one configuration, where names of weights depend on it
    suit: Callable[["Family", TransformerConfig], "Family"] = lambda family, _: family
    # their fields with what the names of stored tensors tell, where that is not just whether there is an output layer
    settle: Callable[[Mapping[str, Any], Collection[str]], dict[str, Any]] | None = None
    # tables that a file may hold though they are computed here, by name: what they must be, of so many rows and columns
    computed: Mapping[str, Callable[[int, int], Tensor]] = field(default_factory=dict)

    def config(self, raw: Mapping[str, Any]) -> TransformerConfig:
        """Ours for their config.json.

        Raises:
            InputError: a field is missing, not supported, or unknown.
        """
        fields = Fields(raw)
        config = self.reads(fields)
        fields.rest(self.harmless)
        return config

    def raw(self, config: TransformerConfig) -> dict[str, Any]:
        """Their config.json for ours."""
        bare = self.architecture.replace("ForMaskedLM", "Model")
        kind = bare if config.output == "none" else self.architecture
        return {"model_type": self.name, **({"architectures": [kind]} if kind else {}), **self.writes(config)}

    @property
    def head(self) -> str | None:
        """Their name of the output layer's weight, which a file may lack where it is the embedding."""
        return self.theirs("output.weight")[0][0] if {"output", "output.weight"} & {*self.weights} else None

    def of_output(self, name: str) -> bool:
        """Whether a stored tensor, named without prefix, would be of the output layer."""
        parts = [part for ours, entry in self.weights.items() if ours.startswith("output") for part in entry.names]
        return any(name == part or name.startswith(f"{part}.") for part in parts)

    @property
    def two_stacks(self) -> bool:
        """Whether its models have an encoder and a decoder."""
        return {"encoder", "decoder"} <= {name.split(".")[1] for name in self.weights if name.startswith("stacks.")}

    def theirs(self, parameter: str) -> tuple[list[str], Form]:
        """Their names (without prefix) for one of our parameters, and how they lay it out."""
        numbers = [part for part in parameter.split(".") if part.isdecimal()]
        pattern = starred(parameter)
        module, _, leaf = pattern.rpartition(".")
        entry = self.weights.get(pattern) or self.weights[module]
        names = entry.names if pattern in self.weights else [f"{name}.{leaf}" for name in entry.names]
        return [_numbered(name, numbers) for name in names], entry.form

    def stored(self, piece: "Piece") -> str:
        """The name under which a piece is saved."""
        return piece.theirs if piece.ours.startswith("output.") else self.prefix + piece.theirs


def named_family(name: str, reads: Any, writes: Any, **behaviour: Any) -> Family:
    """The family of that name in `names.toml`."""
    table = names.table(name)
    weights = {ours: Theirs(*theirs) for ours, theirs in table.pop("weights").items()}
    entries = {key: entry for key, entry in table.items() if key not in ("like", "sizes")}
    return Family(name, reads, writes, weights, **entries, **behaviour)


def starred(parameter: str) -> str:
    """A name of ours with a `*` for each number in it."""
    return ".".join("*" if part.isdecimal() else part for part in parameter.split("."))


def _numbered(name: str, numbers: Iterable[str]) -> str:
    for number in numbers:
        name = name.replace("*", number, 1)
    return name


@dataclass(frozen=True)
class Piece:
    """One stored tensor, and the rows of our parameter that it fills or is taken from."""

    theirs: str  # without the family's prefix
    ours: str
    rows: slice
    form: Form = "rows"
    d_head: int = 0  # where rows go head by head

    def view(self, parameter: Tensor) -> Tensor:
        """The part of our parameter in the order in which they lay it out, its axes perhaps split further."""
        part = parameter[self.rows]
        match self.form:
            case "columns" if part.ndim == 2:
                return part.T
            case "by_head":
                return part.unflatten(0, (3, -1, self.d_head)).transpose(0, 1)
            case "one_row":
                return part[None]
            case _:
                return part

    def shape(self, parameter: Tensor) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        shape = self.view(parameter).shape
        return (math.prod(shape[:3]), *shape[3:]) if self.form == "by_head" else tuple(shape)


def layout(model: Transformer, family: Family) -> Iterator[Piece]:
    """Every stored tensor that makes up the parameters of `model`; what is shared comes once."""
    family = family.suit(family, model.config)
    for ours, parameter in model.named_parameters():
        names, form = family.theirs(ours)
        sizes, d_head = [len(parameter) // len(names)] * len(names), 0
        if ".qkv." in ours:
            stack = model.config.stacks[ours.split(".")[1]]
            d_head = stack.d_head
            if len(names) == 3:  # of which the last two may be shared
                sizes = [heads * d_head for heads in (stack.n_heads, stack.kv_heads, stack.kv_heads)]
        start = 0
        for theirs, size in zip(names, sizes, strict=True):
            yield Piece(theirs, ours, slice(start, start + size), form, d_head)
            start += size
