"""What does a call change and read, how much at a time, and how do its tables become `Cells`?"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.config import NoMLP
from interp.errors import InputError, one_of
from interp.model import Model
from interp.patching.metrics import ANSWERS, Metric, Readout, checked_values, logit_difference, prepared
from interp.patching.pairs import Inputs, Pairs, answers_in, text_read
from interp.patching.patch_sites import PatchSite, last_stack
from interp.patching.plain import PlainRun
from interp.patching.results import POSITIONAL, Cells, Direction
from interp.transformer import Transformer

Values = dict[str, Tensor]  # by metric, `*cells prompt`
Item = TypeVar("Item")
BUDGET = 2 << 30  # bytes that a sweep may take, by default
# stream entries in a pass (rows x d_model): enough to use all cores, few enough for their caches
PASS_ENTRIES = 2048 * 768


@dataclass(frozen=True)
class Plan:
    """A call's checked arguments: the cells of `patch_site` on the axes `by`, and what `readouts` read of the pairs."""

    model: Model
    pairs: Pairs
    patch_site: PatchSite
    by: tuple[str, ...]
    direction: Direction
    readouts: list[Readout]
    plain: list[Readout]  # for unpatched prompts: `readouts`, and the logit difference of the pairs' own answers

    @staticmethod
    def from_arguments(
        model: Model,
        pairs: Pairs,
        metrics: Metric | Sequence[Metric],
        site: str,
        by: Sequence[str],
        direction: Direction = "denoise",
        stack: str | None = None,
        attention: str = "self",
    ) -> "Plan":
        """A plan from a call's arguments; `sweep` explains them."""
        patch_site = PatchSite.from_name(model, site, by, stack, attention)
        direction = "denoise" if one_of("direction", direction, Direction).startswith("denois") else "noise"
        name = patch_site.name(0)
        if pairs.source is not None and "encoder" in {patch_site.stack, patch_site.counted("position")}:
            raise InputError(f"{name} comes from the source, which these pairs share: only their targets differ")
        differing = pairs.differing(patch_site.stack)
        for axis in {*POSITIONAL} & {*by} if pairs.positions else ():
            if patch_site.counted(axis) != differing:
                named = ", ".join(pairs.positions)
                fault = f"the {differing} reads {named}, and {axis} of {name} counts the other text"
                raise InputError(f"{fault}: leave positions out")
        readouts = prepared(model, pairs, metrics)
        bare = pairs.right is None or pairs.wrong is None or any(each.name == ANSWERS for each in readouts)
        plain = readouts if bare else [*readouts, logit_difference().prepare(model, pairs)]
        return Plan(model, pairs, patch_site, tuple(by), direction, readouts, plain)

    def take(self, prompts: Int[Tensor, " some"]) -> "Plan":
        """The same plan for some of the prompts."""
        readouts, plain = ([readout.take(prompts) for readout in each] for each in (self.readouts, self.plain))
        return replace(self, pairs=self.pairs.take(prompts), readouts=readouts, plain=plain)

    @property
    def transformer(self) -> Transformer:
        """The model, as our own class."""
        assert isinstance(self.model, Transformer)
        return self.model

    @property
    def inputs(self) -> tuple[Inputs, Inputs]:
        """The patched prompts, and those that the patches come from."""
        clean, corrupt = self.pairs.inputs
        return (corrupt, clean) if self.direction == "denoise" else (clean, corrupt)

    @property
    def shape(self) -> list[int]:
        """The shape of a table of all cells; position axes have an entry per column, not per name."""
        site = self.patch_site
        return [site.size(axis) or self.pairs.read_by(site.counted(axis)).ids.shape[1] for axis in self.by]

    def unchanged(self, values: Values) -> Values:
        """Tables in which no cell has an effect."""
        return {each.name: values[each.name].expand(*self.shape, -1).clone() for each in self.readouts}

    def cells(self, values: Values, base: Values, source: Values, **fields: Any) -> Cells:
        """`Cells` from tables by `columns` (NaN beyond a prompt's text) and metrics of `base` and `source` prompts."""
        site, (clean, corrupt) = self.patch_site, (source, base) if self.direction == "denoise" else (base, source)
        for index, axis in enumerate(self.by):
            if axis in POSITIONAL:
                beyond = self.columns(axis) >= self.pairs.read_by(site.counted(axis)).lengths  # entry prompt
                for name, table in values.items():
                    missing = table.movedim(index, -2).masked_fill(beyond.to(table.device), torch.nan)
                    values = values | {name: missing.movedim(-2, index)}
        if fields.get("kind", "sweep") == "sweep":
            fields["labels"] = self.labels
        place = {"site": site.site, "stack": site.stack, "attention": site.attention, "positions": (*self.names,)}
        place |= {"direction": self.direction, "axes": self.by, "clean": clean, "corrupt": corrupt}
        return Cells(values=values, **(place | fields))

    @cached_property
    def names(self) -> dict[str, Int[Tensor, " prompt"]]:
        """The named positions on position axes; names for the same token in all prompts are merged, `S2=END`."""
        names: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, columns in self.pairs.positions.items() if {*POSITIONAL} & {*self.by} else ():
            names[(*columns.tolist(),)].append(name)
        return {"=".join(equal): self.pairs.positions[equal[0]] for equal in names.values()}

    def columns(self, axis: str) -> Int[Tensor, "entry prompt"]:
        """The position in each prompt for each entry of an axis: a name's position, or the same column in all."""
        if self.names:
            return torch.stack([*self.names.values()])
        ids = self.pairs.read_by(self.patch_site.counted(axis)).ids
        return torch.arange(ids.shape[1], device=ids.device)[:, None].expand(-1, len(ids))

    @property
    def labels(self) -> dict[str, tuple[str | None, ...]]:
        """The token at each entry of the position axes, if all prompts have the same one there."""
        labels: dict[str, tuple[str | None, ...]] = {}
        for prefix, axis in [("key_" * (axis == "key"), axis) for axis in self.by if axis in POSITIONAL]:
            for name, inputs in zip(("token", "corrupt_token"), self.pairs.inputs, strict=True):
                batch = text_read(inputs, self.patch_site.counted(axis))
                tokenizer = self.model.tokenizer if batch is inputs[0] else answers_in(self.model)
                columns = self.columns(axis)
                ids = batch.ids.gather(1, columns.T).T
                unique = [{*row[at < batch.lengths].tolist()} for row, at in zip(ids, columns, strict=True)]
                name_of = (lambda *_: None) if tokenizer is None else tokenizer.label
                labels[prefix + name] = tuple(name_of(*ids) if len(ids) == 1 else None for ids in unique)
        return labels

    def by_name(self, table: Float[Tensor, "*cells prompt"] | Bool[Tensor, "*cells prompt"]) -> Tensor:
        """A table of all positions, reduced to `columns`: each prompt's own position for every name."""
        for index, axis in enumerate(self.by if self.names else ()):
            if axis in POSITIONAL:
                moved = table.movedim(index, -2)
                columns = self.columns(axis).to(table.device)
                table = moved.gather(-2, columns.expand(*moved.shape[:-2], -1, -1)).movedim(-2, index)
        return table

    def of_names(self, table: Bool[np.ndarray, "*cells prompt"]) -> Bool[np.ndarray, "*all prompt"]:
        """The inverse of `by_name` for a selection: the entries, in the table of all positions, of a prompt's names."""
        if not self.names:
            return table
        columns = self.columns("position").cpu().numpy()
        selected, (*cells, prompt) = np.zeros((*self.shape, len(self.pairs)), dtype=bool), np.nonzero(table)
        named = [columns[at, prompt] if axis in POSITIONAL else at for axis, at in zip(self.by, cells, strict=True)]
        selected[(*named, prompt)] = True
        return selected

    def selected(self, prompts: Int[Tensor, " some"]) -> Bool[np.ndarray, "*all"]:
        """The cells, in a table of all positions, that some of the prompts name; all cells if there are no names."""
        sizes = zip(self.by, self.shape, strict=True)
        shape = [len(self.names) if self.names and axis in POSITIONAL else size for axis, size in sizes]
        table = np.zeros([*shape, len(self.pairs)], dtype=bool)
        table[..., prompts.cpu().numpy()] = True
        return np.asarray(self.of_names(table).any(-1))


def read_values(model: Transformer, plain: PlainRun, readouts: Sequence[Readout]) -> Values:
    """The metrics of an unpatched run, checked: every metric must give one finite number per prompt."""
    values = {readout.name: readout.from_final(model, readout.at_reads(plain.final)) for readout in readouts}
    return checked_values(values, len(plain.final))


def shares(model: Transformer, pairs: Pairs, budget: int, patch_site: PatchSite | None = None) -> tuple[int, int]:
    """For how many prompts both plain runs are held at once, and how much of the budget is left for passes."""
    numbers = 0
    for name, config in model.config.stacks.items():
        attentions = 2 if config.cross_attention else 1
        heads = 2 * attentions * (config.n_heads + config.kv_heads) * config.d_head
        numbers += config.n_layers * pairs.read_by(name).ids.shape[1] * ((3 + 2 * attentions) * config.d_model + heads)
    alone = 2 * numbers * model.last.embed.token.weight.element_size()
    one_cell = positions_changed(model, pairs, patch_site) * _row_bytes(model, pairs)
    check_budget(budget, alone + one_cell, pairs)
    grouped = 2 * alone  # groups of several prompts copy their part of the run
    count = min(budget // 2, budget - one_cell) // grouped
    return (1, budget - alone) if count < 2 else (count, budget - min(count, len(pairs)) * grouped)


def _row_bytes(model: Transformer, pairs: Pairs, recorded: int = 0) -> int:
    """The most bytes that one row (a cell, prompt and position) takes in a pass."""
    widest = 0
    for name, config in model.config.stacks.items():
        mlp = 0 if isinstance(config.mlp, NoMLP) else 4 * config.d_mlp
        width = 6 * config.d_model + mlp + 2 * (config.n_heads + 2 * config.kv_heads) * config.d_head
        stacks = {name, "encoder"} if config.cross_attention else {name}
        longest = max(int(pairs.read_by(each).lengths.max()) for each in stacks)
        widest = max(widest, width + 3 * config.n_heads * longest)
    return (widest + recorded) * model.last.embed.token.weight.element_size()


def rows_at_once(model: Model, share: int = 1) -> int:
    """How many rows (cells x prompts x positions) fill a pass, divided by `share` if each row takes more memory."""
    return PASS_ENTRIES // (share * model.config.d_model)


def fitting(
    items: Iterable[Item],
    size: Callable[[Item], int],
    limit: int,
    key: Callable[[Item], object] = lambda _: None,
    enough: float = inf,
) -> Iterator[list[Item]]:
    """Groups of neighbours with one `key`, of total size at most `limit` (or one item), closed at `enough`."""
    party: list[Item] = []
    total = 0
    for item in items:
        if party and (key(item) != key(party[0]) or total >= enough or total + size(item) > limit):
            yield party
            party, total = [], 0
        party.append(item)
        total += size(item)
    if party:
        yield party


def positions_changed(model: Transformer, pairs: Pairs, patch_site: PatchSite | None = None) -> int:
    """The most positions that one cell can change in any prompt; an encoder's cells change all of both texts."""
    stack = last_stack(model) if patch_site is None else patch_site.stack
    lengths = pairs.read_by(stack).lengths
    changed = lengths - pairs.first_reached(stack) if model.config.stacks[stack].causal else lengths
    onward = 0 if stack == last_stack(model) else pairs.read_by(last_stack(model)).lengths
    return int((changed + onward).max())


def row_limit(
    model: Transformer, pairs: Pairs, budget: int, patch_site: PatchSite | None = None, recorded: int = 0
) -> int:
    """How many rows a pass carries: at least one cell's in one prompt, which must fit if numbers are `recorded`."""
    one_cell, row = positions_changed(model, pairs, patch_site), _row_bytes(model, pairs, recorded)
    if recorded:
        check_budget(budget, one_cell * row, pairs)
    return max(one_cell, min(rows_at_once(model), budget // row))


def check_budget(budget: int, least: int, pairs: Pairs, part: str = "cell of a prompt") -> None:
    """Raise an InputError if the budget is below `least` bytes, the need of one `part`."""
    if budget < least:
        size = f"one {part} of {pairs.clean.ids.shape[1]} positions"
        raise InputError(f"a budget of {budget} bytes is too small for {size}: expected at least {least}")
