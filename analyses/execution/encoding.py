"""How do we store a lot's result in a file without pickle? Tensors as safetensors, the rest as JSON in its header."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load, save
from torch import Tensor

_MANY = 16  # a longer list of numbers of one kind is stored as a tensor
_KINDS = {bool: "bool", int: "int64", float: "float64"}
_OURS = ("interp.", "models.", "analyses.")  # only plain classes of these are restored


def encoded(value: Any) -> bytes:
    """Numbers, text, tensors, arrays, tables, and lists, sets, mappings and plain classes of ours that hold them.

    Anything else is a `TypeError`.
    """
    tensors: dict[str, list[Tensor]] = {}
    plain = json.dumps(_plain(value, tensors))
    shapes = {dtype: [tuple(part.shape) for part in parts] for dtype, parts in tensors.items()}
    flat = {dtype: torch.cat([part.flatten() for part in parts]) for dtype, parts in tensors.items()}
    return save(flat, {"shapes": json.dumps(shapes), "value": plain})  # a tensor costs more than its numbers


def decoded(content: bytes) -> Any:
    """Reverse `encoded`; a `ValueError` if the content is damaged."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])["__metadata__"]
    flat, tensors = load(content), dict[str, list[Tensor]]()
    for dtype, shapes in json.loads(header["shapes"]).items():
        parts = flat[dtype].split([*map(prod, shapes)])
        tensors[dtype] = [*map(Tensor.view, parts, shapes)]
    return json.loads(header["value"], object_hook=partial(_restored, tensors))  # called for the innermost first


def _plain(value: Any, tensors: dict[str, list[Tensor]]) -> Any:  # noqa: PLR0911 (one return for each kind of value)
    match value:
        case None | bool() | str():
            return value
        case np.generic():
            return _plain(value.item(), tensors)
        case int() | float():
            return value
        case Tensor() if value.layout is torch.strided:
            return {"tensor": _put(value, tensors)}
        case np.ndarray() if value.dtype.kind != "O":
            return {"array": _put(torch.tensor(value), tensors)}
        case pd.DataFrame():
            index = None if isinstance(value.index, pd.RangeIndex) else value.index.tolist()
            columns = [[name, str(value[name].dtype), _column(value[name], tensors)] for name in value]
            return {"frame": [columns, index, len(value)]}
        case Counter() | Mapping():
            kind = "counter" if isinstance(value, Counter) else "table"
            return {kind: [[_plain(each, tensors) for each in item] for item in value.items()]}
        case set() | frozenset():
            return {"set": [_plain(each, tensors) for each in sorted(value)]}
        case list() | tuple() if type(value) in (list, tuple):
            kind = _KINDS.get(type(value[0])) if len(value) > _MANY and len({*map(type, value)}) == 1 else None
            if kind and (numbers := np.array(value)).dtype == kind:  # none of them is too large
                entries: Any = {"numbers": _put(torch.from_numpy(numbers), tensors)}
            else:
                entries = [_plain(each, tensors) for each in value]
            return entries if isinstance(value, list) else {"tuple": entries}
    names = getattr(value, "_fields", None) or ([each.name for each in fields(value)] if is_dataclass(value) else None)
    if names is None or isinstance(value, type) or not type(value).__module__.startswith(_OURS):
        raise TypeError(f"{type(value).__name__} is not a plain value: expected numbers, text, tensors and tables")
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    return {"class": [kind, [[name, _plain(getattr(value, name), tensors)] for name in names]]}


def _put(tensor: Tensor, tensors: dict[str, list[Tensor]]) -> Any:
    """Add a tensor to those of its dtype; returns the dtype and its number there."""
    same = tensors.setdefault(str(tensor.dtype), [])
    same.append(tensor.detach().cpu())
    return [str(tensor.dtype), len(same) - 1]


def _column(column: Any, tensors: dict[str, list[Tensor]]) -> Any:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind != "O":
        return _plain(column.to_numpy(), tensors)
    return [None if each is pd.NA else _plain(each, tensors) for each in column]


def _restored(tensors: Mapping[str, list[Tensor]], coded: dict[str, Any]) -> Any:
    ((kind, content),) = coded.items()
    match kind:
        case "tuple":
            return tuple(content)
        case "class":
            return _class(content[0])(**dict(content[1]))
        case "tensor" | "array" | "numbers":
            dtype, number = content
            tensor = tensors[dtype][number]
            return tensor if kind == "tensor" else tensor.numpy() if kind == "array" else tensor.tolist()
        case "counter" | "table":
            return dict(content) if kind == "table" else Counter(dict(content))
        case "set":
            return set(content)
        case "frame":
            columns, index, rows = content
            series = {name: pd.Series(column, dtype=dtype, index=range(rows)) for name, dtype, column in columns}
            frame = pd.DataFrame(series, index=range(rows), columns=[name for name, *_ in columns])
            return frame if index is None else frame.set_axis(index)
    raise ValueError(f"{kind} is not a kind of value")


@cache
def _class(name: str) -> Any:
    module, _, path = name.partition(":")
    if not module.startswith(_OURS):
        raise ValueError(f"{name} is not one of our classes")
    value: Any = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    if not isinstance(value, type) or not (is_dataclass(value) or hasattr(value, "_fields")):
        raise ValueError(f"{name} is not a plain class")
    return value
