"""What does each family call its settings and weights? Reads `names.toml`, and the fields of a config.json."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interp import StackConfig, TransformerConfig
from interp.config import LARGEST_NUMBER, LARGEST_SIZE, Activation, Experts, Gated, LayerNorm, Plain, RMSNorm
from interp.errors import InputError

_TABLES = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
BOOKKEEPING = frozenset(_TABLES["bookkeeping"].split())
Names = tuple[tuple[str, ...], str]  # the stacked matrices, and their form

# theirs to ours; unlisted names are approximations of these functions
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

    Every reader raises InputError, naming the field and its value. `rest` finds the fields that no reader took.
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
        """A list of words, such as one for each layer."""
        return [str(word) for word in self._value(key, default, (list, tuple), "a list")]

    def rest(self, harmless: Iterable[str]) -> None:
        """Refuse fields that nothing has read, except null and those known to change nothing that is computed."""
        checked = self.names_read | BOOKKEEPING | {*harmless}
        unknown = {key: value for key, value in self.raw.items() if key not in checked and value is not None}
        if unknown:
            fields = ", ".join(f"{key} {value!r}" for key, value in sorted(unknown.items()))
            raise InputError(
                f"config.json: nothing here reads {fields}, which may change what the model computes; "
                "if it does not, remove it from config.json"
            )

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least`; required where there is no default."""
        value = self._value(key, default, (int,), f"a whole number from {least}")
        if not least <= value <= LARGEST_SIZE:
            limit = f"to {LARGEST_SIZE:,}" if value > least else f"from {least}"
            raise InputError(f"config.json: {key} must be a whole number {limit}, got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0 that float32 can compute with; required where there is no default."""
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
        """The width of each of `heads`, which share `width` evenly."""
        total, count = self.size(width), self.size(heads)
        if total % count:
            raise InputError(f"config.json: {width} {total} is not a multiple of {heads} {count}")
        return total // count

    @property
    def masked_words(self) -> bool:
        """Whether there is an output layer for masked words; `Family.masked` reads this from the stored weights."""
        return any(name.endswith("ForMaskedLM") for name in self.names("architectures", []))

    def only(self, **supported: Any) -> None:
        """Refuse fields that change the computation, unless they are absent or have the one supported value."""
        for key, value in supported.items():
            setting = self.get(key)
            if setting is not None and setting != value:
                raise InputError(f"config.json: {key} {setting!r} is not supported, only {json.dumps(value)}")


def activation_name(activation: Activation) -> str:
    """Their name of an activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation)


def with_output(fields: Fields, decoder: StackConfig, *, tied: bool = False, **parts: Any) -> TransformerConfig:
    """The decoder with its output layer, which is the embedding where they say so, or by default."""
    output = "tied" if fields.flag("tie_word_embeddings", tied) else "untied"
    return TransformerConfig(decoder=decoder, output=output, **parts)


def entries_of(family: str) -> dict[str, Any]:
    """The entries of a family and of its parent; `weights` has `Names` by our parameter or module."""
    entries = _TABLES[family]
    parent = entries_of(entries["like"]) if "like" in entries else {"weights": {}}
    weights = parent["weights"] | dict(_weights(entries.get("weights", {})))
    return {
        **parent,
        **entries,
        "weights": {ours: names for ours, names in weights.items() if names[0] != ("",)},
        "only": entries.get("only", {}),
        "harmless": frozenset(entries.get("harmless", "").split()),
        "zero": frozenset(entries.get("zero", parent.get("zero", ()))),
    }


def _weights(entries: Mapping[str, Any]) -> Iterator[tuple[str, Names]]:
    for ours, entry in entries.items():
        form, theirs = next(iter(entry.items())) if isinstance(entry, Mapping) else ("rows", entry)
        for stack in ("encoder", "decoder") if ours.startswith("stack.") else ("stack",):
            names = _stacked(theirs.replace("{stack}", stack))
            yield _parameter(ours.replace("stack", stack, 1)), (names, form)


def _parameter(short: str) -> str:
    return short if short.startswith("output") else f"stacks.{short.replace('.*.', '.blocks.*.', 1)}"


def _stacked(theirs: str) -> tuple[str, ...]:
    """The names that `a.{b,c}` stands for."""
    start, parts, end = re.fullmatch(r"([^{]*)\{?([^}]*)\}?(.*)", theirs).groups()  # pyright: ignore
    return tuple(f"{start}{part}{end}" for part in parts.split(","))


@dataclass(frozen=True)
class Sizes:
    """Their names of what every stack has, by ours; empty where they have no such field."""

    n_layers: str = "num_hidden_layers"
    d_model: str = "hidden_size"
    n_heads: str = "num_attention_heads"
    d_mlp: str = "intermediate_size"
    n_ctx: str = "max_position_embeddings"
    d_vocab: str = "vocab_size"
    activation: str = "hidden_act"
    eps: str = "layer_norm_eps"  # of every norm

    @classmethod
    def named(cls, family: str, stack: str = "") -> "Sizes":
        """The names that `names.toml` gives for a family; for one `stack` where each has fields of its own."""
        sizes: dict[str, str] = entries_of(family).get("sizes", {})
        return cls(**{ours: theirs.replace("{stack}", stack) for ours, theirs in sizes.items()})

    def read(
        self, fields: Fields, *, d_head: int | None = None, d_mlp: int | None = None, n_ctx: int | None = None
    ) -> dict[str, Any]:
        """The sizes, as arguments of StackConfig; `d_mlp` and `n_ctx` count where the file does not say them.

        Without `d_head` heads share `d_model` evenly. InputError if they cannot, or a size is missing or none.
        """
        return {
            "n_layers": fields.size(self.n_layers),
            "d_model": fields.size(self.d_model),
            "n_heads": fields.size(self.n_heads),
            "d_head": fields.head_width(self.d_model, self.n_heads) if d_head is None else d_head,
            "d_mlp": fields.size(self.d_mlp, d_mlp) if self.d_mlp else d_mlp,
            "n_ctx": fields.size(self.n_ctx, n_ctx),
            "d_vocab": fields.size(self.d_vocab),
        }

    def stack(
        self, fields: Fields, sizes: dict[str, Any] | None = None, *, activation: str, eps: float = 1e-5, **parts: Any
    ) -> StackConfig:
        """A stack of layer norms and plain feed-forwards, except for `parts`.

        `activation` and `eps` count where the file does not say them.
        """
        mlp = Plain(fields.activation(self.activation, activation) if self.activation else ACTIVATIONS[activation])
        norm = LayerNorm(fields.number(self.eps, eps) if self.eps else eps)
        usual = {"causal": True, "norm": norm, "mlp": mlp}
        return StackConfig(**usual | (sizes or self.read(fields)) | parts)

    def written(self, stack: StackConfig) -> dict[str, Any]:
        """Their fields for a stack; None for the activation or epsilon that it lacks."""
        shape = stack.mlp.expert if isinstance(stack.mlp, Experts) else stack.mlp
        fields = {
            self.d_vocab: stack.d_vocab,
            self.n_ctx: stack.n_ctx,
            self.d_model: stack.d_model,
            self.n_layers: stack.n_layers,
            self.n_heads: stack.n_heads,
            self.d_mlp: stack.d_mlp,
            self.activation: activation_name(shape.activation) if isinstance(shape, Plain | Gated) else None,
            self.eps: stack.norm.eps if isinstance(stack.norm, LayerNorm | RMSNorm) else None,
        }
        return {name: value for name, value in fields.items() if name}

    def decoder(self, config: TransformerConfig, **fields: Any) -> dict[str, Any]:
        """Their config.json for a decoder alone: its stack, these fields, and which output layer it has."""
        return {**self.written(config.last), **fields, "tie_word_embeddings": config.output == "tied"}
