"""How a family of models writes its configuration and names its weights: what one file of a family has to say."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from interp.config import Activation, Gated, LayerNorm, Plain, RMSNorm, StackConfig, TransformerConfig
from interp.errors import InputError
from interp.transformer import Transformer

# theirs to ours; the other names of these functions are approximations of them
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Fields:
    """The fields of a config.json, read with their kind checked; null counts as absent.

    Every reader raises InputError, naming the field and its value.
    """

    raw: Mapping[str, Any]

    def _read(self, key: str, default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        value = default if self.raw.get(key) is None else self.raw[key]
        if value is None:
            raise InputError(f"config.json lacks {key!r}: {expected} is expected")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"config.json: {key} must be {expected}, got {value!r}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1; required where there is no default."""
        value = self._read(key, default, (int,), "a whole number from 1")
        if value < 1:
            raise InputError(f"config.json: {key} must be a whole number from 1, got {value}")
        return value

    def number(self, key: str, default: float) -> float:
        """A number above 0."""
        value = float(self._read(key, default, (int, float), "a number above 0"))
        if not value > 0:
            raise InputError(f"config.json: {key} must be a number above 0, got {value}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._read(key, default, (bool,), "true or false")

    def activation(self, key: str, default: str) -> Activation:
        """One of the activation functions."""
        name = self._read(key, default, (str,), "an activation's name")
        if name not in ACTIVATIONS:
            raise InputError(f"config.json: {key} {name!r} is not supported, expected one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def head_width(self, width: str, heads: str) -> int:
        """How wide each of `heads` is that share `width` evenly."""
        total, count = self.size(width), self.size(heads)
        if total % count:
            raise InputError(f"config.json: {width} {total} is not a multiple of {heads} {count}")
        return total // count

    def only(self, **supported: Any) -> None:
        """Refuse fields that change the computation, unless they are absent or have the one value that is supported."""
        for key, value in supported.items():
            given = self.raw.get(key)
            if given is not None and given != value:
                raise InputError(f"config.json: {key} {given!r} is not supported, only {json.dumps(value)}")


def parts_of(stack: StackConfig) -> tuple[str | None, float | None]:
    """Their name of a stack's activation, and its norm's epsilon; None where it has none."""
    activation = stack.mlp.activation if isinstance(stack.mlp, Plain | Gated) else None
    name = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == activation), None)
    return name, stack.norm.eps if isinstance(stack.norm, LayerNorm | RMSNorm) else None


@dataclass(frozen=True)
class Theirs:
    """The modules whose weights make up one of ours, stacked along output rows; `*` stands for the layer."""

    names: tuple[str, ...]
    transposed: bool = False  # their matrices are input x output


def rows(*names: str) -> Theirs:
    """Matrices stored as output x input, as ours are; several are stacked."""
    return Theirs(names)


def columns(name: str) -> Theirs:
    """A matrix stored as input x output."""
    return Theirs((name,), transposed=True)


@dataclass(frozen=True)
class Family:
    """One family: its configuration to ours and back, and its weights beside ours, by module.

    Names of modules are theirs without `prefix`, which a file may have or not. `ignored` is a pattern of stored tensors
    that are no weights of the stacks (masks, frequencies, heads for other tasks); `renamed` maps old endings to new.
    """

    config: Callable[[Mapping[str, Any]], TransformerConfig]
    raw: Callable[[TransformerConfig], dict[str, Any]]
    weights: Mapping[str, Theirs]
    prefix: str
    ignored: str
    renamed: Mapping[str, str] = field(default_factory=dict)

    def theirs(self, parameter: str) -> tuple[list[str], bool]:
        """Their names (without prefix) for one of our parameters, and whether they are transposed."""
        module, _, leaf = parameter.rpartition(".")
        path = module.split(".")
        layer = next((part for part in path if part.isdecimal()), "")
        entry = self.weights[".".join("*" if part.isdecimal() else part for part in path)]
        return [f"{name.replace('*', layer)}.{leaf}" for name in entry.names], entry.transposed and leaf == "weight"


@dataclass(frozen=True)
class Piece:
    """One stored tensor, and the rows of our parameter that it fills or is taken from."""

    theirs: str  # without the family's prefix
    ours: str
    rows: slice
    transposed: bool

    def view(self, parameter: Tensor) -> Tensor:
        """The part of our parameter, as they lay it out."""
        part = parameter[self.rows]
        return part.T if self.transposed else part


def layout(model: Transformer, family: Family) -> Iterator[Piece]:
    """Every stored tensor that makes up the parameters of `model`."""
    for ours, parameter in model.named_parameters():
        names, transposed = family.theirs(ours)
        sizes = [len(parameter) // len(names)] * len(names)
        if len(names) == 3:  # q, k and v, of which the last two may be shared
            stack = model.config.stacks[ours.split(".")[1]]
            sizes = [heads * stack.d_head for heads in (stack.n_heads, stack.kv_heads, stack.kv_heads)]
        start = 0
        for theirs, size in zip(names, sizes, strict=True):
            yield Piece(theirs, ours, slice(start, start + size), transposed)
            start += size
