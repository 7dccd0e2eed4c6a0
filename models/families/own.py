"""Our own format, for what no family can say: the configuration spelled out as JSON, weights under our own names.

A part is an object that names its kind: {"kind": "Rotary", "base": 10000.0, ...}. Fields that are absent have their
default.
"""

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from interp import config as parts
from interp.config import TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, Form

KINDS: dict[str, type[Any]] = {
    name: kind for name, kind in vars(parts).items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
FIELD = "transformer"


def config(fields: Fields) -> TransformerConfig:
    """The configuration that a config.json spells out."""
    found = _part(fields.get(FIELD), FIELD)
    if not isinstance(found, TransformerConfig):
        raise InputError(f'config.json: {FIELD} must be an object of kind "TransformerConfig"')
    return found


def raw(config: TransformerConfig) -> dict[str, Any]:
    """A config.json that spells out the configuration."""
    return {"model_type": "interp", FIELD: _spelled(config)}


def _spelled(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        entries = {field.name: _spelled(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **entries}
    return [_spelled(each) for each in value] if isinstance(value, tuple) else value


def _part(value: Any, place: str) -> Any:
    kind = KINDS.get(str(value.get("kind"))) if isinstance(value, Mapping) else None
    if kind is None:
        raise InputError(
            f'config.json: {place} must be an object with a "kind", one of {", ".join(KINDS)}; got {value!r}'
        )
    hints = get_type_hints(kind)
    given = {name: each for name, each in value.items() if name != "kind"}
    if unknown := given.keys() - hints.keys():
        raise InputError(f"config.json: {place}, a {kind.__name__}, has no {', '.join(sorted(unknown))}")
    if lacking := {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING} - given.keys():
        raise InputError(f"config.json: {place}, a {kind.__name__}, lacks {', '.join(sorted(lacking))}")
    return kind(**{name: _fitting(each, hints[name], f"{place}.{name}") for name, each in given.items()})


def _fitting(value: Any, expected: Any, place: str) -> Any:
    """`value` as one of the kinds that are expected at its place."""
    kinds: Iterable[Any] = get_args(expected) if get_origin(expected) in {Union, types.UnionType} else [expected]
    for kind in kinds:
        if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
            return value
        if get_origin(kind) is tuple and isinstance(value, list):
            return tuple(_fitting(each, get_args(kind)[0], place) for each in value)
        if kind in KINDS.values() and isinstance(value, Mapping) and value.get("kind") == kind.__name__:
            return _part(value, place)
        if kind in {int, float, bool, types.NoneType} and type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
    raise InputError(f"config.json: {place} must be {getattr(expected, '__name__', expected)}, got {value!r}")


class Own(Family):
    """Weights have the names of our parameters."""

    @property
    def head(self) -> str:
        """The output layer's weight."""
        return "output.weight"

    def theirs(self, parameter: str) -> tuple[list[str], Form]:
        """The parameter itself."""
        return [parameter], "rows"


FAMILY = Own(config, raw, weights={}, prefix="", ignored="", harmless="tie_word_embeddings")
