"""Ready-made edits for `run`: what to put at a site, and at which heads or positions of it.

Any function from tensor to tensor is an edit too; these know the axes of the site they are used at.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from interp.errors import InputError, inside
from interp.generation.continued import Continued
from interp.model import Site
from interp.tap import Edit
from interp.tokens import TokenBatch

Index = int | slice | list[int] | Tensor
Change = Callable[[Tensor], Tensor | None]  # a new value, or None to leave what is there as it is
Region = tuple[Any, ...]


@dataclass(frozen=True)
class SelectiveEdit:
    """Change a part of a site's value, chosen by the names of its axes (`head=5`, `position=-1`).

    Positions (`position`, `query`, `key`) are each text's own, as receivers and lenses count them: negative ones from
    its end, whatever padding stands there. A tensor gives one a text. Where text is written (`generate`), negative ones
    count from the prompt's end, and `step` says in which steps: 0 reads the prompt, s the s-th token written.
    """

    change: Callable[[Tensor, Region], Tensor]  # the part, and how it is indexed
    where: dict[str, Index]
    made_of: tuple[Any, ...] | None = None  # its kind and values, which tell it from others; None of a user's function

    def bind(self, site: Site, texts: Mapping[str, TokenBatch]) -> Edit:
        """The edit for `site`, of whose axes some count positions of `texts`.

        Raises:
            InputError: an axis that the site lacks, or an index outside it or outside a text.
        """
        if "step" in self.where:
            return self._bind_in_steps(site, texts)
        if not self.where:
            return self._bind_everywhere(site)
        for axis, index in self.where.items():
            if axis not in site.axes:
                raise InputError(f"{site.name} has no axis {axis!r}: its axes are {', '.join(site.axes)}")
            size = site.sizes[site.axes.index(axis)]
            if size is not None:
                _check(site, axis, index, size)
        ragged = {axis: texts[axis] for axis in self.where if axis in texts and self._is_ragged(axis, texts[axis])}
        columns = {axis: self._columns(site, axis, text) for axis, text in ragged.items() if not self._is_slice(axis)}
        kept = {
            axis: text.within(index) for axis, text in ragged.items() if isinstance(index := self.where[axis], slice)
        }

        def edit(value: Tensor) -> Tensor:
            changed = value.clone()
            try:
                region = self._each_own(site, value.shape, columns, {*kept}) if columns else self._region(site, {*kept})
                changed[region] = self.change(value[region], region)
            except (IndexError, RuntimeError) as error:
                shape = tuple(value.shape)
                raise InputError(f"cannot edit {site.name}, of shape {shape}, at {self.where}: {error}") from error
            for axis, own in kept.items():
                changed = torch.where(_along(site, axis, own), changed, value)
            return changed

        return edit

    def _bind_everywhere(self, site: Site) -> Edit:
        def edit(value: Tensor) -> Tensor:
            try:
                return self.change(value, (...,)).expand(value.shape)
            except RuntimeError as error:
                raise InputError(f"cannot edit {site.name}, of shape {tuple(value.shape)}: {error}") from error

        return edit

    def _bind_in_steps(self, site: Site, texts: Mapping[str, TokenBatch]) -> Edit:
        """The same where `step` says in which steps of writing."""
        axis = _read_along(site)
        text = texts.get(axis)
        if not isinstance(text, Continued):
            raise InputError(f"{site.name} has no steps here: they are counted by `generate`, in the text it writes")
        everywhere = replace(self, where={axis: index for axis, index in self.where.items() if axis != "step"})
        change, at = everywhere.bind(site, texts), _along(site, axis, text.at_steps(self.where["step"]))
        return lambda value: torch.where(at, change(value), value)

    def columns_read(self, site: Site, text: Continued) -> Tensor:
        """Which columns of what is written the edit may change, `position`, as far as it selects by step or position.

        Raises:
            InputError: a position outside the text, or a step that there cannot be.
        """
        axis, found = _read_along(site), torch.ones_like(text.mask)
        if "step" in self.where:
            found = found & text.at_steps(self.where["step"])
        if axis in self.where:
            index = self.where[axis]
            if isinstance(index, slice):
                found = found & text.within(index)
            else:
                found = found & torch.zeros_like(found).scatter(1, text.columns(index), True)
        return found.any(0)

    def _is_slice(self, axis: str) -> bool:
        return isinstance(self.where[axis], slice)

    def _is_ragged(self, axis: str, text: TokenBatch) -> bool:
        """Whether the axis stands at other columns in one text than in another."""
        return isinstance(self.where[axis], Tensor) or text.padded or isinstance(text, Continued)

    def _columns(self, site: Site, axis: str, text: TokenBatch) -> Tensor:
        index = self.where[axis]
        assert not isinstance(index, slice)
        with inside(f"cannot edit {site.name} at {axis}={index}"):
            found = text.columns(index)
        return found if isinstance(index, list) else found[:, 0]

    def _region(self, site: Site, kept: Collection[str]) -> Region:
        """Indices for `...` and the site's axes; lists of several axes are crossed, not paired."""
        lists = [axis for axis in site.axes if isinstance(self.where.get(axis), list)]

        def index(axis: str) -> Any:
            wanted = slice(None) if axis in kept else self.where.get(axis, slice(None))
            if not isinstance(wanted, list):
                return wanted
            return torch.tensor(wanted, dtype=torch.long).reshape(-1, *[1] * (len(lists) - 1 - lists.index(axis)))

        return (..., *map(index, site.axes))

    def _each_own(self, site: Site, shape: torch.Size, columns: Mapping[str, Tensor], kept: Collection[str]) -> Region:
        """The same where `columns` differ from text to text: all axes are crossed with the texts."""
        sizes = dict(zip(site.axes, shape[-len(site.axes) :], strict=True))
        named: dict[str, Tensor] = {}
        for axis, size in sizes.items():
            index = slice(None) if axis in kept else self.where.get(axis, slice(None))
            named[axis] = (
                columns[axis]
                if axis in columns
                else torch.tensor(range(size)[index] if isinstance(index, slice) else index)
            )
        # of each axis with several entries a dimension after that of the texts
        several = [axis for axis, index in named.items() if index.ndim - (axis in columns)]
        texts = len(next(iter(columns.values())))

        def placed(axis: str) -> Tensor:
            width = [named[axis].shape[-1] if each == axis else 1 for each in several]
            return named[axis].reshape(texts if axis in columns else 1, *width)

        first = torch.arange(texts, device=next(iter(columns.values())).device).reshape(-1, *[1] * len(several))
        return (..., first, *(placed(axis).to(first.device) for axis in sizes))


def _along(site: Site, axis: str, of_texts: Tensor) -> Tensor:
    """What is given for each text's columns, `prompt position`, along one axis of a site."""
    behind = [1] * len(site.axes)
    behind[site.axes.index(axis)] = of_texts.shape[1]
    return of_texts.view(-1, *behind)


def _read_along(site: Site) -> str:
    """The axis of the positions that are read when a site gets its value."""
    return "query" if "query" in site.axes else "position"


def _check(site: Site, axis: str, index: Index, size: int) -> None:
    wanted = [index] if isinstance(index, int | str) else index if isinstance(index, list) else []
    for each in wanted:
        if not isinstance(each, Integral) or not -size <= int(each) < size:
            raise InputError(f"no {axis} {each} at {site.name}: it has {axis} 0-{size - 1}")


def on_a_copy(function: Change) -> Edit:
    """A function of a value that may write over what it is given, and may return nothing to leave it as it is.

    Others hold the value too (the stream out of a block is the stream into the next), so it is given a copy. To write
    over that and return nothing is refused: it would be lost, or stand for something, and either surprises.
    """

    if not callable(function):
        raise InputError(f"expected an edit: zero(), put(value), ..., or a function of the value; got {function!r}")

    def edit(value: Tensor) -> Tensor:
        copy = value.clone()
        before = copy._version
        found = function(copy)
        written = copy._version != before
        if found is None and written:
            raise InputError("this edit writes over its value and returns nothing: return the value that is to stand")
        return value if found is None or (found is copy and not written) else found

    return edit


def _like(value: Tensor | float, part: Tensor) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=part.dtype, device=part.device)
    except TypeError as error:
        raise InputError(f"expected a tensor or a number, got {value!r}") from error


def zero(**where: Index) -> SelectiveEdit:
    """Put zeros at `where` (`head=5`, `position=[3, -1]`); everywhere without it."""
    return SelectiveEdit(lambda part, _: torch.zeros_like(part), where, ("zero",))


def put(value: Tensor | float, **where: Index) -> SelectiveEdit:
    """Put `value` at `where`; it broadcasts to the part that it replaces."""
    return SelectiveEdit(lambda part, _: _like(value, part), where, ("put", value))


def scale(factor: float, **where: Index) -> SelectiveEdit:
    """Multiply what is at `where` by `factor`."""
    return SelectiveEdit(lambda part, _: part * factor, where, ("scale", factor))


def add(value: Tensor | float, **where: Index) -> SelectiveEdit:
    """Add `value` at `where`, as steering does with a direction; it broadcasts to the part that it is added to."""
    return SelectiveEdit(lambda part, _: part + _like(value, part), where, ("add", value))


def change(function: Change, **where: Index) -> SelectiveEdit:
    """Put at `where` what a function of your own makes of what is there; where it returns None, that stays."""
    own = on_a_copy(function)
    return SelectiveEdit(lambda part, _: own(part), where)


def patch(value: Tensor, **where: Index) -> SelectiveEdit:
    """Put what another run had at `where`: `value` is that run's whole activation at the same site.

    Where texts are padded, that run's have to be as long as those that are edited.
    """
    return SelectiveEdit(lambda _, region: value[region], where, ("patch", value))
