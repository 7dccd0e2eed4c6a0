"""Values spelled out as plain tables of JSON or TOML; one line names a field that is unknown or of a wrong kind.

A part is a table that names its kind, {"kind": "Rotary", "base": 10000.0}, or that name alone where all fields of the
kind have a default. Fields that are absent have their default.
"""

import dataclasses
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from interp.errors import InputError, inside

_UNFIT = object()


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that is most like `name`."""
    return get_close_matches(name, [*names], n=1, cutoff=0.0)[0]


@dataclass(frozen=True)
class Reader:
    """Reads dataclasses from tables; every refusal says where in `source`, what was expected and what came."""

    source: str  # the name for messages: "config.json"
    kinds: Mapping[str, type[Any]]  # possible dataclasses, by the name of their kind
    table: str = "an object"  # the word for a table there

    def part(self, value: Any, place: str) -> Any:
        """The value of a table that names its kind; InputError if the kind or a field is unknown, missing or wrong."""
        table = {"kind": value} if isinstance(value, str) and value in self.kinds else value
        named = table.get("kind") if isinstance(table, Mapping) else None
        kind = self.kinds.get(str(named))
        if kind is None or not isinstance(table, Mapping):
            close = f'"{named}", to which {nearest(named, self.kinds)} is nearest' if isinstance(named, str) else None
            raise InputError(
                f'{self.source}: {place} must be {self.table} with a "kind", one of {", ".join(self.kinds)}; '
                f"got {close or repr(value)}"
            )
        values = {name: each for name, each in table.items() if name != "kind"}
        return self.fields(kind, values, place, f"{place}, a {named},")

    def fields(self, kind: type[Any], values: Mapping[str, Any], place: str, called: str | None = None) -> Any:
        """A dataclass from a table of its fields, at a `place`; messages about its fields call it `called`."""
        hints, called = get_type_hints(kind), called or place
        self.check_names(values, hints, called)
        self.check_complete(kind, values, called)
        parts = {name: self.fitting(each, hints[name], f"{place}.{name}") for name, each in values.items()}
        with inside(f"{self.source}: {place}"):
            return kind(**parts)

    def check_names(self, keys: Iterable[str], names: Collection[str], called: str) -> None:
        """Refuse a key that is not among `names`, and name the nearest."""
        for name in keys:
            if name not in names:
                instead = f"the nearest is {nearest(name, names)}" if names else "it has no fields"
                raise InputError(f"{self.source}: {called} has no {name}; {instead}")

    def check_complete(self, kind: type[Any], keys: Collection[str], called: str) -> None:
        """Refuse a table that lacks a field without a default."""
        missing = dataclasses.MISSING
        required = [each for each in dataclasses.fields(kind) if each.default is missing is each.default_factory]
        if lacking := [field.name for field in required if field.name not in keys]:
            raise InputError(f"{self.source}: {called} lacks {', '.join(sorted(lacking))}")

    def fitting(self, value: Any, expected: Any, place: str) -> Any:
        """`value` as one of the kinds that are expected at its place; InputError if it has none of them."""
        for kind in _alternatives(expected):
            part = self._as_kind(value, kind, place)
            if part is not _UNFIT:
                return part
        raise InputError(f"{self.source}: {place} must be {_wording(expected)}, got {value!r}")

    def _as_kind(self, value: Any, kind: Any, place: str) -> Any:
        """`value` as one kind; `_UNFIT` where it does not fit."""
        part: Any = _UNFIT
        if get_origin(kind) is Literal:
            part = value if isinstance(value, str) and value in get_args(kind) else _UNFIT
        elif get_origin(kind) is tuple and isinstance(value, list):
            item, *rest = get_args(kind)
            if rest == [...] or len(value) == 1 + len(rest):
                part = tuple(self.fitting(one, item, place) for one in value)
        elif get_origin(kind) is Mapping and isinstance(value, Mapping):
            value_kind = get_args(kind)[1]
            part = {name: self.fitting(each, value_kind, f"{place}.{name}") for name, each in value.items()}
        elif kind is dict and isinstance(value, Mapping):
            part = dict(value)
        elif kind in self.kinds.values() and self._names(value) == kind.__name__:
            part = self.part(value, place)
        elif kind in {int, float, bool, str, types.NoneType} and type(value) is kind:
            part = value
        elif kind is float and type(value) is int:
            part = float(value)
        return part

    @staticmethod
    def _names(value: Any) -> Any:
        return value.get("kind") if isinstance(value, Mapping) else value


def _alternatives(expected: Any) -> tuple[Any, ...]:
    return get_args(expected) if get_origin(expected) in {Union, types.UnionType} else (expected,)


def _wording(expected: Any) -> str:
    """A kind in words."""
    *first, last = [_kind_wording(kind) for kind in _alternatives(expected)]
    return f"{', '.join(first)} or {last}" if first else last


def _kind_wording(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{each}"' for each in get_args(kind))
    if get_origin(kind) is tuple:
        item, *rest = get_args(kind)
        return f"a list of {'' if rest == [...] else f'{1 + len(rest)} of '}{_wording(item)}"
    if get_origin(kind) is Mapping:
        return f"a table of {_wording(get_args(kind)[1])} by name"
    return {types.NoneType: "null", dict: "a table"}.get(kind) or kind.__name__
