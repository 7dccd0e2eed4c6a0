"""Prompts of unequal length align where they say the same: cells that go by the names of positions."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.model import Model
from interp.patching.cell_tables import POSITIONAL
from interp.patching.pairs import Inputs, Pairs, answers_in
from interp.patching.patch_sites import PatchSite
from interp.patching.results import Cells, Direction


def check_names(pairs: Pairs, patch_site: PatchSite, by: Sequence[str]) -> None:
    """Whether the axes that are asked for count the text whose positions have names.

    Raises:
        InputError: they count the other text.
    """
    stack = pairs.differing(patch_site.stack)
    for axis in {*POSITIONAL} & {*by} if pairs.positions else ():
        if patch_site.counted(axis) != stack:
            raise InputError(
                f"{', '.join(pairs.positions)} are positions of what the {stack} reads, and {axis} of "
                f"{patch_site.name(0)} counts the other text: leave positions out"
            )


def distinct_positions(pairs: Pairs) -> dict[str, Int[Tensor, " prompt"]]:
    """Named positions, each once: names of one token in every prompt are one cell, `S2=END`."""
    names: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, at in pairs.positions.items():
        names[(*at.tolist(),)].append(name)
    return {"=".join(same): pairs.positions[same[0]] for same in names.values()}


def names_of(pairs: Pairs, by: Sequence[str]) -> tuple[str, ...]:
    """The names that a table's position axes count, where they do."""
    return (*distinct_positions(pairs),) if {*POSITIONAL} & {*by} else ()


def labels_of(
    model: Model, pairs: Pairs, patch_site: PatchSite, by: Sequence[str]
) -> dict[str, tuple[str | None, ...]]:
    """What stands at each place of the axes that count positions, where all prompts have the same token there.

    Columns are `token` and `corrupt_token`, of keys `key_token` and `key_corrupt_token`.
    """
    found: dict[str, tuple[str | None, ...]] = {}
    for prefix, axis in [("key_" * (axis == "key"), axis) for axis in by if axis in POSITIONAL]:
        for name, (batch, target) in zip(("token", "corrupt_token"), pairs.inputs, strict=True):
            decoded = target is not None and patch_site.counted(axis) == "decoder"
            tokenizer, read = (answers_in(model), target) if decoded and target else (model.tokenizer, batch)
            places = [read.ids.gather(1, at[:, None]) for at in distinct_positions(pairs).values()]
            places = places or [read.ids[read.lengths > at, at] for at in range(read.ids.shape[1])]
            unique = [there.unique().tolist() for there in places]
            found[prefix + name] = tuple(
                tokenizer.label(ids[0]) if tokenizer is not None and len(ids) == 1 else None for ids in unique
            )
    return found


def columns_named(pairs: Pairs) -> Int[Tensor, "name prompt"]:
    """The position of each name in each prompt."""
    return torch.stack([*distinct_positions(pairs).values()])


def wanted(pairs: Pairs, prompts: Int[Tensor, " some"], by: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Of a table of all cells those that some of the prompts name; all of them where there are no names."""
    found = np.ones(shape, dtype=bool)
    if not pairs.positions:
        return found
    columns = columns_named(pairs)[:, prompts.to(pairs.last.device)].unique().cpu().numpy()
    for at, axis in enumerate(by):
        if axis in POSITIONAL:
            named = np.isin(np.arange(shape[at]), columns)
            found &= named.reshape([-1 if other == at else 1 for other in range(len(shape))])
    return found


def by_name(
    table: Float[Tensor, "*cells prompt"] | Bool[Tensor, "*cells prompt"], by: Sequence[str], pairs: Pairs
) -> Tensor:
    """A table whose position axes count names: each prompt's own column of every name."""
    if pairs.positions:
        columns = columns_named(pairs).to(table.device)
        for at, axis in enumerate(by):
            if axis in POSITIONAL:
                moved = table.movedim(at, -2)
                table = moved.gather(-2, columns.expand(*moved.shape[:-2], -1, -1)).movedim(-2, at)
    return table


def of_names(
    table: Bool[np.ndarray, "*cells prompt"], by: Sequence[str], pairs: Pairs, shape: Sequence[int]
) -> Bool[np.ndarray, "*all prompt"]:
    """The inverse for what is asked for: of all cells (`shape`) those that a prompt's names point to."""
    if not pairs.positions:
        return table
    columns = columns_named(pairs).cpu().numpy()
    found, (*places, prompt) = np.zeros(shape, dtype=bool), np.nonzero(table)
    named = [columns[at, prompt] if axis in POSITIONAL else at for axis, at in zip(by, places, strict=True)]
    found[(*named, prompt)] = True
    return found


def cells_of(
    model: Model,
    pairs: Pairs,
    patch_site: PatchSite,
    by: tuple[str, ...],
    direction: Direction,
    values: dict[str, Float[Tensor, "*cells prompt"]],
    clean: dict[str, Float[Tensor, " prompt"]],
    corrupt: dict[str, Float[Tensor, " prompt"]],
    *,
    named: bool = False,
    **more: Any,
) -> Cells:
    """Tables of all positions, or of the `named` ones, as cells: those beyond a prompt's text are missing."""
    if not named:
        values = {name: by_name(_within(table, by, pairs, patch_site), by, pairs) for name, table in values.items()}
    if more.get("kind", "sweep") == "sweep":
        more["labels"] = labels_of(model, pairs, patch_site, by)
    place = {"site": patch_site.site, "stack": patch_site.stack, "attention": patch_site.attention}
    given = {**place, "positions": names_of(pairs, by), **more}
    return Cells(direction=direction, axes=by, values=values, clean=clean, corrupt=corrupt, **given)


def _within(table: Float[Tensor, "*cells prompt"], by: tuple[str, ...], pairs: Pairs, patch_site: PatchSite) -> Tensor:
    """The table with positions beyond a prompt's own text missing."""
    for at, axis in enumerate(by):
        if axis in POSITIONAL:
            column = torch.arange(table.shape[at], device=table.device)[:, None]
            beyond = column >= pairs.read_by(patch_site.counted(axis)).lengths.to(table.device)  # position prompt
            table = table.movedim(at, -2).masked_fill(beyond, torch.nan).movedim(-2, at)
    return table


def ordered(pairs: Pairs, direction: Direction) -> tuple[Inputs, Inputs]:
    """The prompts that are changed, and those that the change comes from."""
    clean, corrupt = pairs.inputs
    return (corrupt, clean) if direction == "denoise" else (clean, corrupt)
