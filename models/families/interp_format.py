"""Our own format, for what no family can express: the configuration as JSON, weights under our own names.

A part is an object that names its kind, as `models.plain_tables` reads it: {"kind": "Rotary", "base": 10000.0, ...}.
"""

import dataclasses
from typing import Any

from interp import config as parts
from interp.config import TransformerConfig
from interp.errors import InputError
from models.families.family import Family, rows
from models.families.fields import Fields
from models.plain_tables import Reader

KINDS: dict[str, type[Any]] = {
    name: kind for name, kind in vars(parts).items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
FIELD = "transformer"
READER = Reader("config.json", KINDS)


def config(fields: Fields) -> TransformerConfig:
    """The configuration that a config.json spells out."""
    spelled = READER.part(fields.get(FIELD), FIELD)
    if not isinstance(spelled, TransformerConfig):
        raise InputError(f'config.json: {FIELD} must be an object of kind "TransformerConfig"')
    return spelled


def raw(config: TransformerConfig) -> dict[str, Any]:
    """The field that spells out the configuration."""
    return {FIELD: _spelled(config)}


def _spelled(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        entries = {field.name: _spelled(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **entries}
    return [_spelled(each) for each in value] if isinstance(value, tuple) else value


# weights that a family does not name have our names
FAMILY = Family("interp", config, raw, {"output": rows("output")}, harmless=frozenset({"tie_word_embeddings"}))
