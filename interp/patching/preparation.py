"""What a call changes and what it reads, checked once; and the one way from its tables to `Cells`.

Prompts of unequal length align where they say the same: where pairs name positions, cells go by these names.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.model import Model
from interp.patching.cell_tables import POSITIONAL
from interp.patching.metrics import Metric, Readout, checked_values, prepared, with_answers
from interp.patching.pairs import Inputs, Pairs, answers_in
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun
from interp.patching.results import Cells, Direction, checked_direction
from interp.transformer import Transformer

Values = dict[str, Tensor]  # by metric, `*cells prompt`


@dataclass(frozen=True)
class Plan:
    """Cells of `patch_site` on the axes `by`, and what `readouts` read of some pairs when one is changed.

    `plain` are the metrics of unchanged prompts: those, and the logit difference of the pairs' own answers.
    """

    model: Model
    pairs: Pairs
    patch_site: PatchSite
    by: tuple[str, ...]
    direction: Direction
    readouts: list[Readout]
    plain: list[Readout]

    @staticmethod
    def of(
        model: Model,
        pairs: Pairs,
        metrics: Metric | Sequence[Metric],
        site: str,
        by: Sequence[str],
        direction: Direction = "denoise",
        stack: str | None = None,
        attention: str = "self",
    ) -> "Plan":
        """The arguments of a call, as `sweep` explains them."""
        patch_site = PatchSite.of(model, site, by, stack, attention)
        plan = Plan(model, pairs, patch_site, tuple(by), checked_direction(direction), [], [])
        plan.check()
        readouts = prepared(model, pairs, metrics)
        return replace(plan, readouts=readouts, plain=with_answers(model, pairs, readouts))

    def check(self) -> None:
        """Refuse a site at which pairs cannot differ, and axes of the text whose positions have no names."""
        site, pairs = self.patch_site, self.pairs
        if pairs.source is not None and (site.stack == "encoder" or (site.attention == "cross" and site.of_keys)):
            raise InputError(
                f"{site.name(0)} is made of the source, which these pairs share: they differ in their targets alone"
            )
        stack = pairs.differing(site.stack)
        for axis in {*POSITIONAL} & {*self.by} if pairs.positions else ():
            if site.counted(axis) != stack:
                raise InputError(
                    f"{', '.join(pairs.positions)} are positions of what the {stack} reads, and {axis} of "
                    f"{site.name(0)} counts the other text: leave positions out"
                )

    def take(self, prompts: Int[Tensor, " some"]) -> "Plan":
        """The same of some of the prompts."""
        readouts, plain = ([readout.take(prompts) for readout in each] for each in (self.readouts, self.plain))
        return replace(self, pairs=self.pairs.take(prompts), readouts=readouts, plain=plain)

    @property
    def transformer(self) -> Transformer:
        """The model, of ours."""
        assert isinstance(self.model, Transformer)
        return self.model

    @property
    def inputs(self) -> tuple[Inputs, Inputs]:
        """The prompts that are changed, and those that the change comes from."""
        clean, corrupt = self.pairs.inputs
        return (corrupt, clean) if self.direction == "denoise" else (clean, corrupt)

    def runs(self) -> tuple[PlainRun, PlainRun]:
        """Of both, everything that a cell may leave as it was, or is changed to."""
        return PlainRun.of_both(self.transformer, *self.inputs)

    @property
    def shape(self) -> list[int]:
        """Of a table of all cells, by position where axes count positions."""
        return self.patch_site.shape(self.pairs, self.by)

    def unchanged(self, values: Values) -> Values:
        """Tables in which no cell changes anything."""
        return {each.name: values[each.name].expand(*self.shape, -1).clone() for each in self.readouts}

    def cells(self, values: Values, own: Values, other: Values, **more: Any) -> Cells:
        """Tables by `columns` as cells, missing beyond a prompt's text; `own` are the metrics of unchanged prompts,
        `other` of those that the change comes from."""
        site, clean, corrupt = self.patch_site, *((other, own) if self.direction == "denoise" else (own, other))
        for at, axis in enumerate(self.by):
            if axis in POSITIONAL:
                beyond = self.columns(axis) >= self.pairs.read_by(site.counted(axis)).lengths  # entry prompt
                for name, table in values.items():
                    missing = table.movedim(at, -2).masked_fill(beyond.to(table.device), torch.nan)
                    values = values | {name: missing.movedim(-2, at)}
        if more.get("kind", "sweep") == "sweep":
            more["labels"] = self.labels
        place = {"site": site.site, "stack": site.stack, "attention": site.attention, "positions": (*self.names,)}
        return Cells(
            direction=self.direction, axes=self.by, values=values, clean=clean, corrupt=corrupt, **(place | more)
        )

    # Positions.

    @cached_property
    def names(self) -> dict[str, Int[Tensor, " prompt"]]:
        """The named positions that axes count, where they do; names of one token in all prompts are one, `S2=END`."""
        names: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, at in self.pairs.positions.items() if {*POSITIONAL} & {*self.by} else ():
            names[(*at.tolist(),)].append(name)
        return {"=".join(same): self.pairs.positions[same[0]] for same in names.values()}

    def columns(self, axis: str) -> Int[Tensor, "entry prompt"]:
        """The position in each prompt that each entry of an axis stands for: that of a name, or the same in all."""
        if self.names:
            return torch.stack([*self.names.values()])
        ids = self.pairs.read_by(self.patch_site.counted(axis)).ids
        return torch.arange(ids.shape[1], device=ids.device)[:, None].expand(-1, len(ids))

    @property
    def labels(self) -> dict[str, tuple[str | None, ...]]:
        """What stands at each entry of the axes that count positions, where all prompts have the same token there.

        Columns are `token` and `corrupt_token`, of keys `key_token` and `key_corrupt_token`.
        """
        found: dict[str, tuple[str | None, ...]] = {}
        for prefix, axis in [("key_" * (axis == "key"), axis) for axis in self.by if axis in POSITIONAL]:
            for name, (batch, target) in zip(("token", "corrupt_token"), self.pairs.inputs, strict=True):
                decoded = target is not None and self.patch_site.counted(axis) == "decoder"
                tokenizer, read = (
                    (answers_in(self.model), target) if decoded and target else (self.model.tokenizer, batch)
                )
                columns = self.columns(axis)
                ids = read.ids.gather(1, columns.T).T
                unique = [{*own[at < read.lengths].tolist()} for own, at in zip(ids, columns, strict=True)]
                found[prefix + name] = tuple(
                    tokenizer.label(*ids) if tokenizer is not None and len(ids) == 1 else None for ids in unique
                )
        return found

    def by_name(self, table: Float[Tensor, "*cells prompt"] | Bool[Tensor, "*cells prompt"]) -> Tensor:
        """A table of all positions by `columns`: each prompt's own position of every name."""
        for at, axis in enumerate(self.by if self.names else ()):
            if axis in POSITIONAL:
                moved = table.movedim(at, -2)
                columns = self.columns(axis).to(table.device)
                table = moved.gather(-2, columns.expand(*moved.shape[:-2], -1, -1)).movedim(-2, at)
        return table

    def of_names(self, table: Bool[np.ndarray, "*cells prompt"]) -> Bool[np.ndarray, "*all prompt"]:
        """The inverse for what is wanted: of the table of all positions those that a prompt's names point to."""
        if not self.names:
            return table
        columns = self.columns("position").cpu().numpy()
        found, (*places, prompt) = np.zeros((*self.shape, len(self.pairs)), dtype=bool), np.nonzero(table)
        named = [columns[at, prompt] if axis in POSITIONAL else at for axis, at in zip(self.by, places, strict=True)]
        found[(*named, prompt)] = True
        return found

    def wanted(self, prompts: Int[Tensor, " some"]) -> Bool[np.ndarray, "*all"]:
        """Of a table of all positions the cells that some of the prompts name; all where there are no names."""
        sizes = zip(self.by, self.shape, strict=True)
        table = np.zeros(
            [*(len(self.names) if self.names and axis in POSITIONAL else n for axis, n in sizes), len(self.pairs)],
            dtype=bool,
        )
        table[..., prompts.cpu().numpy()] = True
        return np.asarray(self.of_names(table).any(-1))


def read_values(model: Transformer, plain: PlainRun, readouts: Sequence[Readout]) -> Values:
    """The metrics of an unpatched run, checked: every metric must give one finite number a prompt."""
    values = {readout.name: readout.of(model, readout.at_reads(plain.final)) for readout in readouts}
    return checked_values(values, len(plain.final))
