"""Ready-made edits for `run`: what to put at a site, and at which heads or positions of it.

Any function from tensor to tensor is an edit too; these know the axes of the site they are used at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.errors import InputError
from interp.model import Site
from interp.tap import Edit

Index = int | slice | list[int]
Region = tuple[Any, ...]


@dataclass(frozen=True)
class SelectiveEdit:
    """Change a part of a site's value, chosen by the names of its axes (`head=5`, `position=-1`)."""

    change: Callable[[Tensor, Region], Tensor]  # the part, and how it is indexed
    where: dict[str, Index]

    def bind(self, site: Site) -> Edit:
        """The edit for `site`.

        Raises:
            InputError: an axis that the site lacks, or an index outside it.
        """
        for axis, index in self.where.items():
            if axis not in site.axes:
                raise InputError(f"{site.name} has no axis {axis!r}: its axes are {', '.join(site.axes)}")
            size = site.sizes[site.axes.index(axis)]
            if size is not None:
                _check(site, axis, index, size)
        region = self._region(site)

        def edit(value: Tensor) -> Tensor:
            changed = value.clone()
            try:
                changed[region] = self.change(value[region], region)
            except (IndexError, RuntimeError) as error:
                shape = tuple(value.shape)
                raise InputError(f"cannot edit {site.name}, of shape {shape}, at {self.where}: {error}") from error
            return changed

        return edit

    def _region(self, site: Site) -> Region:
        """Indices for `...` and the site's axes; lists of several axes are crossed, not paired."""
        lists = [axis for axis in site.axes if isinstance(self.where.get(axis), list)]

        def index(axis: str) -> Any:
            wanted = self.where.get(axis, slice(None))
            if not isinstance(wanted, list):
                return wanted
            return torch.tensor(wanted, dtype=torch.long).reshape(-1, *[1] * (len(lists) - 1 - lists.index(axis)))

        return (..., *map(index, site.axes))


def _check(site: Site, axis: str, index: Index, size: int) -> None:
    wanted = [index] if isinstance(index, int) else index if isinstance(index, list) else []
    for each in wanted:
        if not -size <= each < size:
            raise InputError(f"no {axis} {each} at {site.name}: it has {axis} 0-{size - 1}")


def zero(**where: Index) -> SelectiveEdit:
    """Put zeros at `where` (`head=5`, `position=[3, 4]`); everywhere without it."""
    return SelectiveEdit(lambda part, _: torch.zeros_like(part), where)


def put(value: Tensor | float, **where: Index) -> SelectiveEdit:
    """Put `value` at `where`; it broadcasts to the part that it replaces."""
    return SelectiveEdit(lambda part, _: torch.as_tensor(value, dtype=part.dtype, device=part.device), where)


def scale(factor: float, **where: Index) -> SelectiveEdit:
    """Multiply what is at `where` by `factor`."""
    return SelectiveEdit(lambda part, _: part * factor, where)


def patch(value: Tensor, **where: Index) -> SelectiveEdit:
    """Put what another run had at `where`: `value` is that run's whole activation at the same site."""
    return SelectiveEdit(lambda _, region: value[region], where)
