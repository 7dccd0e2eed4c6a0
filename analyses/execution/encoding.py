"""How is what a lot returned kept in a file, without pickle? Tensors as safetensors, all else as JSON in the header."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load, save
from torch import Tensor

_MANY, _LARGEST = 16, 1 << 63  # of more whole numbers than that a list is kept as a tensor, if each fits into one
_OURS = ("interp.", "models.", "analyses.")  # whose plain classes are read again


def encoded(value: Any) -> bytes:
    """Numbers, text, tensors, arrays, tables, and lists, sets, mappings and plain classes of ours that hold them.

    Anything else is a `TypeError`.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _plain(value, tensors)
    return save(tensors, {"value": json.dumps(skeleton)})


def decoded(content: bytes) -> Any:
    """What was encoded; a `ValueError` where the content is damaged."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    return _restored(json.loads(header["__metadata__"]["value"]), load(content))


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:  # noqa: PLR0911 (one a kind of value)
    match value:
        case None | bool() | str():
            return value
        case np.generic():
            return _plain(value.item(), tensors)
        case int() | float():
            return value
        case Tensor():
            return {"tensor": _put(value, tensors)}
        case np.ndarray() if value.dtype.kind != "O":
            return {"array": _put(torch.tensor(value), tensors)}
        case pd.DataFrame():
            index = None if isinstance(value.index, pd.RangeIndex) else value.index.tolist()
            columns = [[name, str(value[name].dtype), _column(value[name], tensors)] for name in value]
            return {"frame": columns, "index": index, "rows": len(value)}
        case Counter() | Mapping():
            kind = "counter" if isinstance(value, Counter) else "table"
            return {kind: [[_plain(each, tensors) for each in item] for item in value.items()]}
        case set() | frozenset():
            return {"set": [_plain(each, tensors) for each in sorted(value)]}
        case list() | tuple() if type(value) in (list, tuple):
            if len(value) > _MANY and all(type(each) is int and abs(each) < _LARGEST for each in value):
                entries: Any = {"ids": _put(torch.tensor(value), tensors)}
            else:
                entries = [_plain(each, tensors) for each in value]
            return entries if isinstance(value, list) else {"tuple": entries}
    names = getattr(value, "_fields", None) or ([each.name for each in fields(value)] if is_dataclass(value) else None)
    if names is None or isinstance(value, type) or not type(value).__module__.startswith(_OURS):
        raise TypeError(f"{type(value).__name__} is no plain value: expected numbers, text, tensors and tables")
    kind = f"{type(value).__module__}:{type(value).__qualname__}"
    return {"class": kind, "fields": {name: _plain(getattr(value, name), tensors) for name in names}}


def _put(tensor: Tensor, tensors: dict[str, Tensor]) -> Any:
    """The name of a tensor; of one with few rows their places, their values and its shape."""
    if tensor.is_sparse:
        rows = tensor.coalesce()
        return {"rows": [_put(part, tensors) for part in (rows.indices(), rows.values())], "shape": [*tensor.shape]}
    name = str(len(tensors))
    tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return name


def _column(column: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind != "O":
        return _plain(column.to_numpy(), tensors)
    return [None if each is pd.NA else _plain(each, tensors) for each in column]


def _restored(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:  # noqa: PLR0911, PLR0912 (one a kind of value)
    def restored(each: Any) -> Any:
        return _restored(each, tensors) if isinstance(each, list | dict) else each  # most are words and numbers

    match skeleton:
        case list():
            return [*map(restored, skeleton)]
        case {"tensor": place}:
            return _tensor(place, tensors)
        case {"array": place}:
            return _tensor(place, tensors).numpy()
        case {"frame": columns, "index": index, "rows": rows}:
            series = {
                name: pd.Series(restored(column), dtype=kind, index=range(rows)) for name, kind, column in columns
            }
            frame = pd.DataFrame(series, index=range(rows), columns=[name for name, *_ in columns])
            return frame if index is None else frame.set_axis(index)
        case {"counter": items}:
            return Counter({restored(key): restored(value) for key, value in items})
        case {"table": items}:
            return {restored(key): restored(value) for key, value in items}
        case {"set": entries}:
            return {*map(restored, entries)}
        case {"tuple": entries}:
            return tuple(restored(entries))
        case {"ids": place}:
            return tensors[place].tolist()
        case {"class": kind, "fields": parts}:
            module, _, name = kind.partition(":")
            if not module.startswith(_OURS):
                raise ValueError(f"{kind} is no class of ours")
            value: Any = import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
            if not isinstance(value, type) or not (is_dataclass(value) or hasattr(value, "_fields")):
                raise ValueError(f"{kind} is no plain class")
            return value(**{part: restored(each) for part, each in parts.items()})
    return skeleton


def _tensor(place: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    if isinstance(place, str):
        return tensors[place]
    rows, values = (tensors[part] for part in place["rows"])
    return torch.sparse_coo_tensor(rows, values, place["shape"], check_invariants=True, is_coalesced=True)
