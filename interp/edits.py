"""Ready-made edits for `run`: new values of a site, at some of its heads or positions."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.errors import InputError, inside
from interp.indices import Index, dimensions, entries, is_number
from interp.model import Site
from interp.tap import Edit
from interp.tokens import Continued, TokenBatch

Change = Callable[[Tensor], Tensor | None]  # a new value, or None to leave what is there as it is
Region = tuple[Any, ...]


@dataclass(frozen=True)
class SelectiveEdit:
    """Change a part of a site's value, selected by the names of its axes (`head=5`, `position=-1`).

    An axis takes a whole number, a slice, or a list, tuple or range of numbers; several axes are crossed. Positions
    (`position`, `query`, `key`) are counted in each text without its padding, negative ones from its end. An array or a
    tensor gives each text a position, or a row of several; on other axes it is a list. Texts with the same number of
    selected positions are changed together. For `step`, see `generate`.
    """

    change: Callable[[Tensor], Tensor]  # from the selected part to its new value
    axes: dict[str, Index]
    whole: bool = False  # whether `change` takes and gives the whole value

    def bind(self, site: Site, texts: Mapping[str, TokenBatch]) -> Edit:
        """The edit for `site`; `texts` are those whose positions its axes count."""
        single = {
            axis for axis, index in self.axes.items() if is_number(index) or (axis in texts and dimensions(index) == 1)
        }
        return partial(self._edited, site, _groups(self.entries(site, texts)), single)

    def _edited(self, site: Site, groups: list[dict[str, Tensor]], single: Collection[str], value: Tensor) -> Tensor:
        """`value`, changed for each group of texts; the selected part has none of the axes in `single`."""
        changed = value.clone()
        try:
            for index in groups:
                region = _region(site, value.shape, index, single)
                changed[region] = self.change(value)[region] if self.whole else self.change(value[region])
        except (IndexError, RuntimeError) as error:
            raise InputError(f"it does not fit the shape {(*value.shape,)}: {error}") from error
        return changed

    def entries(self, site: Site, texts: Mapping[str, TokenBatch]) -> dict[str, list[list[int]]]:
        """The entries to change along each selected axis, for each text, or once for all."""
        sizes, rows = dict(zip(site.axes, site.sizes, strict=True)), {}
        for axis, index in self.axes.items():
            if axis not in {*site.axes, "step"}:
                raise InputError(f"{site.name} has no axis {axis!r}: its axes are {', '.join(site.axes)}")
            if (size := sizes.get(axis)) is not None:
                rows[axis] = [entries(index, size, axis, f"at {site.name}")]
            elif axis != "step":
                with inside(f"cannot edit {site.name}"):
                    rows[axis] = texts[axis].column_lists(index)
        if "step" in self.axes:
            text = texts.get(axis := read_axis(site))
            if not isinstance(text, Continued):
                raise InputError(f"{site.name} has no steps here: `generate` counts them, in the text it writes")
            rows[axis] = text.at_steps(rows.get(axis) or text.column_lists(slice(None)), self.axes["step"])
        return {axis: lists[:1] if all(row == lists[0] for row in lists) else lists for axis, lists in rows.items()}


def read_axis(site: Site) -> str:
    """The axis of a site that counts the positions a pass reads."""
    return "query" if "query" in site.axes else "position"


def _groups(selection: Mapping[str, list[list[int]]]) -> list[dict[str, Tensor]]:
    """Texts grouped by their numbers of entries: each axis' entries, `text entry`, and under `prompt` the texts."""
    n_texts, by_counts = max(map(len, selection.values()), default=1), defaultdict(list)
    for text in range(n_texts):
        by_counts[tuple(len(each[text % len(each)]) for each in selection.values())].append(text)
    groups = []
    for texts in (texts for counts, texts in by_counts.items() if all(counts)):
        rows = {axis: each if len(each) == 1 else [each[text] for text in texts] for axis, each in selection.items()}
        rows |= {"prompt": [[text] for text in texts]} if n_texts > 1 else {}
        groups.append({axis: torch.tensor(each) for axis, each in rows.items()})
    return groups


def _region(site: Site, shape: torch.Size, index: Mapping[str, Tensor], single: Collection[str]) -> Region:
    """The crossed index of `...` and the site's axes that keeps the axes of the part in order."""
    axes = ("prompt", *site.axes)
    numbers = [axes.index(axis) for axis in index]
    span = axes[min(numbers) : max(numbers) + 1] if index else ()
    wide = [axis for axis in span if axis not in {"prompt", *single}]
    region: list[Any] = [...]
    for axis, size in zip(axes, shape[-len(axes) :], strict=True):
        if axis in span:
            rows = index[axis] if axis in index else torch.arange(size)[None]
            rows = rows.view(len(rows), *(rows.shape[1] if axis == each else 1 for each in wide))
            region.append(rows if "prompt" in index else rows[0])
        elif axis != "prompt":
            region.append(slice(None))
    return (*region,)


def on_a_copy(function: Change) -> Edit:
    """An edit from a function of a value's copy; it may return None, without writing, to leave the value as it is."""
    if not callable(function):
        raise InputError(f"expected an edit: zero(), set_to(value), ..., or a function of the value; got {function!r}")

    def edit(value: Tensor) -> Tensor:
        result = function(copy := value.clone())
        if result is None:
            if not torch.allclose(copy, value, rtol=0, atol=0, equal_nan=True):
                raise InputError("it writes over its value and returns nothing: return the new value")
            return value
        if not isinstance(result, Tensor) or not result.is_floating_point():
            kind = result.dtype if isinstance(result, Tensor) else repr(result)
            raise InputError(f"it must return a tensor of floating-point numbers, or nothing to leave it; got {kind}")
        return _like(result, value)

    return edit


def _like(value: Tensor | float, part: Tensor) -> Tensor:
    """Numbers with the dtype and device of the part that they replace."""
    dtype = None if isinstance(value, Tensor | np.ndarray) else part.dtype
    try:
        tensor = torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"expected a tensor or a number, got {value!r}") from error
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise InputError(f"expected real numbers in a dense tensor, got {tensor.dtype} in {tensor.layout}")
    return tensor.to(part)


def zero(**selection: Index) -> SelectiveEdit:
    """Put zeros at `selection` (`head=5`, `position=[3, -1]`); everywhere without it."""
    return set_to(0.0, **selection)


def set_to(value: Tensor | float, **selection: Index) -> SelectiveEdit:
    """Put `value` at `selection`, broadcast to its shape."""
    return SelectiveEdit(partial(_like, value), selection)


def scale(factor: Tensor | float, **selection: Index) -> SelectiveEdit:
    """Multiply the values at `selection` by `factor`."""
    return SelectiveEdit(partial(_product, factor), selection)


def add(value: Tensor | float, **selection: Index) -> SelectiveEdit:
    """Add `value` at `selection`, broadcast to its shape, as steering does with a direction."""
    return SelectiveEdit(partial(_sum, value), selection)


def _product(factor: Tensor | float, part: Tensor) -> Tensor:
    return part * _like(factor, part)


def _sum(value: Tensor | float, part: Tensor) -> Tensor:
    return part + _like(value, part)


def change(function: Change, **selection: Index) -> SelectiveEdit:
    """Put at `selection` your own function of the values there; if it returns None, they stay."""
    return SelectiveEdit(on_a_copy(function), selection)


def patch(value: Tensor, **selection: Index) -> SelectiveEdit:
    """Put another run's values at `selection`: `value` is its whole activation at the same site, padded alike."""
    return SelectiveEdit(partial(_like, value), selection, whole=True)
