"""How a family writes its configuration, which its module says, and names its weights, which `names.toml` says."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from interp.config import TransformerConfig
from interp.errors import one_of
from interp.transformer import Transformer
from models.families.fields import Fields, entries_of

Form = Literal["rows", "columns", "by_head", "one_row"]


@dataclass(frozen=True)
class Theirs:
    """Where one of our modules (or parameters) is stored: the names of its matrices, stacked along output rows.

    Each `*` stands for a number in the name of ours, in order: the layer, then the expert. Names of a module get the
    parameter's own ending (`.weight`, `.bias`); those of a parameter are whole.
    """

    names: tuple[str, ...]
    form: Form = "rows"

    def __post_init__(self) -> None:
        one_of("form", self.form, Form)


def rows(*names: str) -> Theirs:
    """Matrices stored as output x input, like ours; several are stacked."""
    return Theirs(names)


def columns(*names: str) -> Theirs:
    """Matrices stored as input x output; several are stacked along their outputs."""
    return Theirs(names, "columns")


def by_head(name: str) -> Theirs:
    """One matrix for q, k and v with output rows head by head: a head's q, its k, its v, then the next head's."""
    return Theirs((name,), "by_head")


def one_row(name: str) -> Theirs:
    """A vector stored as a matrix of one row."""
    return Theirs((name,), "one_row")


@dataclass(frozen=True)
class Family:
    """One family: its configuration to ours and back, and its names of our modules and parameters.

    `name` is their `model_type`. `reads` turns their fields into our configuration; fields that it does not read must
    be `harmless` (see `Fields.rest`). `writes` turns ours into their fields. Names of weights are theirs without
    `prefix`, which a file may have or not. The head of `names.toml` explains the other fields that come from there.
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
    only: Mapping[str, Any] = field(default_factory=dict)
    # the family for one configuration, if names of weights depend on it
    suit: Callable[["Family", TransformerConfig], "Family"] = lambda family, _: family
    # fields that the names of stored tensors imply, besides the output layer
    settle: Callable[[Mapping[str, Any], Collection[str]], dict[str, Any]] | None = None
    # tables that we compute although files may hold them, by name: functions of the numbers of rows and columns
    computed: Mapping[str, Callable[[int, int], Tensor]] = field(default_factory=dict)

    def config(self, raw: Mapping[str, Any]) -> TransformerConfig:
        """Ours for their config.json.

        Raises:
            InputError: a field is missing, not supported, or unknown.
        """
        fields = Fields(raw)
        fields.only(**self.only)
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
        """Whether a stored tensor, named without prefix, belongs to the output layer."""
        parts = [part for ours, entry in self.weights.items() if ours.startswith("output") for part in entry.names]
        return any(name == part or name.startswith(f"{part}.") for part in parts)

    @property
    def two_stacks(self) -> bool:
        """Whether its models have an encoder and a decoder."""
        return {"encoder", "decoder"} <= {name.split(".")[1] for name in self.weights if name.startswith("stacks.")}

    def theirs(self, parameter: str) -> tuple[list[str], Form]:
        """Their names (without prefix) for one of our parameters, or our name, and its layout there."""
        numbers = [part for part in parameter.split(".") if part.isdecimal()]
        pattern = starred(parameter)
        module, _, leaf = pattern.rpartition(".")
        entry = self.weights.get(pattern) or self.weights.get(module)
        if entry is None:
            return [parameter], "rows"
        names = entry.names if pattern in self.weights else [f"{name}.{leaf}" for name in entry.names]
        for number in numbers:
            names = [name.replace("*", number, 1) for name in names]
        return [*names], entry.form

    def stored(self, piece: "Piece") -> str:
        """The name under which a piece is saved."""
        return piece.theirs if piece.ours.startswith("output.") else self.prefix + piece.theirs


def named_family(name: str, reads: Any, writes: Any, **behaviour: Any) -> Family:
    """The family of that name in `names.toml`."""
    table = entries_of(name)
    weights = {ours: Theirs(*theirs) for ours, theirs in table.pop("weights").items()}
    entries = {key: entry for key, entry in table.items() if key not in ("like", "sizes")}
    return Family(name, reads, writes, weights, **entries, **behaviour)


def starred(parameter: str) -> str:
    """Our name with a `*` for each number in it."""
    return ".".join("*" if part.isdecimal() else part for part in parameter.split("."))


@dataclass(frozen=True)
class Piece:
    """One stored tensor, and the rows of our parameter that it fills."""

    theirs: str  # without the family's prefix
    ours: str
    rows: slice
    form: Form = "rows"
    d_head: int = 0  # if rows are grouped by head

    def view(self, parameter: Tensor) -> Tensor:
        """The part of our parameter in their order, its axes perhaps split further."""
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
    """Every stored tensor of the parameters of `model`; a shared one comes once."""
    family = family.suit(family, model.config)
    for ours, parameter in model.named_parameters():
        names, form = family.theirs(ours)
        sizes, d_head = [len(parameter) // len(names)] * len(names), 0
        if ".qkv." in ours:
            stack = model.config.stacks[ours.split(".")[1]]
            d_head = stack.d_head
            if len(names) == 3:  # heads may share k and v
                sizes = [heads * d_head for heads in (stack.n_heads, stack.kv_heads, stack.kv_heads)]
        start = 0
        for theirs, size in zip(names, sizes, strict=True):
            yield Piece(theirs, ours, slice(start, start + size), form, d_head)
            start += size
