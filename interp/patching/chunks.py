"""Which cells go through together? Prompts in groups, the cells of a group in chunks, as many chunks as fill a pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import ceil

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patching.changed_rows import AtReads, ChangedRows, Suffix
from interp.patching.engine import resume
from interp.patching.metrics import Readout
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite, last_stack
from interp.patching.plain import PlainRun
from interp.patching.site_patches import SitePatches, Where
from interp.transformer import Transformer


@dataclass(frozen=True)
class Group:
    """Prompts that are swept together: those with the same first changed position and the same length.

    `lengths` are those of each stack's texts, the longest where they differ: only in the stack that is not swept.
    """

    patch_site: PatchSite
    prompts: Int[Tensor, " prompt"]
    first: int
    lengths: dict[str, int]

    @property
    def length(self) -> int:
        """Positions of what the swept stack reads."""
        return self.lengths[self.patch_site.stack]

    def wheres(self, by: tuple[str, ...]) -> Iterator[Where]:
        """The cells of a layer that can have an effect, an axis of heads or neurons aside."""
        across = self.patch_site.attention == "cross"
        rows, by_unit = [None], bool({*self.patch_site.units} & {*by})
        if axis := next((axis for axis in ("position", "query") if axis in by), None):
            own = self.patch_site.counted(axis) == self.patch_site.stack
            rows = range(self.first if own else 0, self.lengths[self.patch_site.counted(axis)])
        # a changed query spreads its attention anew over all keys, also over those that are as they were
        keys = range(self.lengths[self.patch_site.counted("key")]) if "key" in by else [None]
        for row, key in product(rows, keys):
            if self.patch_site.causal and not across and row is not None and key is not None and key > row:
                continue
            yield Where(by_unit, row, key)

    def first_reached(self, where: Where) -> int:
        """The first position whose stream the patch can change."""
        if not self.patch_site.causal:
            return 0
        if self.patch_site.attention == "cross":
            return self.first if where.position is None or self.patch_site.of_keys else where.position
        return max(self.first, where.key or 0) if where.position is None else where.position


def groups(
    model: Transformer,
    pairs: Pairs,
    patch_site: PatchSite,
    most: int,
    *,
    alone: bool = False,
    alike: Int[Tensor, "prompt _"] | None = None,
) -> Iterator[Group]:
    """Prompts by length, and in a causal stack by first changed position: nothing is computed that cannot change.

    A group's changed positions fill one pass at most; or each prompt is a group `alone`. Prompts whose rows of `alike`
    differ share no group.
    """
    own = pairs.read_by(patch_site.stack).lengths
    first = pairs.first_reached(patch_site.stack) if patch_site.causal else torch.zeros_like(own)
    lengths = {stack: pairs.read_by(stack).lengths for stack in model.config.stacks}
    onward = 0 if patch_site.stack == last_stack(model) else pairs.read_by(last_stack(model)).ids.shape[1]
    keys = torch.stack([first, own], 1)
    keys = keys if alike is None else torch.cat([keys, alike], 1)
    for key in keys.unique(dim=0):
        start, length = key.tolist()[:2]
        together = (keys == key).all(1).nonzero()[:, 0]
        for prompts in together.split(1 if alone else max(1, most // (length - start + onward))):
            yield Group(patch_site, prompts, start, {name: int(each[prompts].max()) for name, each in lengths.items()})


@dataclass(frozen=True, eq=False)
class GroupSweep:
    """The cells of one group of prompts: how they enter its runs, and what is read of them."""

    by: tuple[str, ...]
    group: Group
    base: PlainRun
    patches: SitePatches
    readouts: list[Readout]
    suffixes: dict[int, Suffix] = field(default_factory=dict)

    @staticmethod
    def of(
        model: Transformer,
        runs: tuple[PlainRun, PlainRun],
        group: Group,
        readouts: Sequence[Readout],
        by: tuple[str, ...],
    ) -> "GroupSweep":
        """The prompts of `group`; the runs are those of the stack that the metrics read."""
        base, source = (run.take(group.prompts, group.lengths) for run in runs)
        reads = [readout.take(group.prompts) for readout in readouts]
        return GroupSweep(by, group, base, SitePatches(model, base, source, group.patch_site), reads)

    def chunks(self, most: int, wanted: Bool[np.ndarray, "*cells"]) -> "Iterator[Chunk]":
        """All wanted cells that can have an effect, at most so many rows of them at a time."""
        for where in self.group.wheres(self.by) if wanted.any() else ():
            first = self.group.first_reached(where)
            if first <= self.last_read:
                yield from self.chunks_of(where, first, most, wanted)

    def chunks_of(self, where: Where, first: int, most: int, wanted: Bool[np.ndarray, "*cells"]) -> "Iterator[Chunk]":
        """The wanted cells of `where`, layer by layer, that change positions from `first` on."""
        for layer in range(self.group.patch_site.n_layers):
            heads = np.flatnonzero(wanted[self._at(layer, where, slice(None))]).tolist()  # [0] where cells are no heads
            step = max(1, most // self.suffix(first).rows) if heads else 1
            for begin in range(0, len(heads), step):
                yield Chunk(self, self.suffix(first), layer, where, heads[begin : begin + step])

    @cached_property
    def last_read(self) -> int:
        """The last position that a metric reads."""
        return int(max(readout.positions.max() for readout in self.readouts))

    def suffix(self, first: int) -> Suffix:
        """What the cells share that change positions from `first` on."""
        if first not in self.suffixes:
            model, stack = self.patches.model, self.group.patch_site.stack
            reads = torch.cat([readout.positions for readout in self.readouts], 1)
            self.suffixes[first] = Suffix.of(model, self.base, stack, first, [reads])
        return self.suffixes[first]

    def measure(self, arrived: AtReads) -> list[Float[Tensor, "cell prompt"]]:
        """Metrics from the stream out of the last block at the read positions."""
        model, found, at = self.patches.model, [], 0
        final = model.last.norm(arrived)
        for readout in self.readouts:
            found.append(readout.of(model, final[..., at : at + readout.positions.shape[1], :]))
            at += readout.positions.shape[1]
        return found

    def _at(self, layer: int, where: Where, heads: "slice | list[int]") -> tuple[int | slice | list[int] | None, ...]:
        """Where in the table of all cells."""
        at = {"position": where.position, "query": where.position, "key": where.key}
        return (layer, *(at.get(axis, heads) for axis in self.by[1:]))

    def put(
        self, values: dict[str, Tensor], layer: int, where: Where, heads: list[int], found: Sequence[Tensor]
    ) -> None:
        """Metrics, `cell prompt` each, into the tables of all cells."""
        for readout, value in zip(self.readouts, found, strict=True):
            rows = values[readout.name][self._at(layer, where, slice(None))]
            if where.by_head:
                rows[torch.tensor(heads, device=rows.device)[:, None], self.group.prompts] = value
            else:
                rows[self.group.prompts] = value[0]


@dataclass(frozen=True)
class Chunk:
    """Cells that enter together: those of `where` in one layer, of some heads where each head is one."""

    sweep: GroupSweep
    suffix: Suffix
    layer: int
    where: Where
    heads: list[int]

    @property
    def rows(self) -> int:
        """Cells x prompts x positions that they add to a pass."""
        return len(self.heads) * self.suffix.rows

    def enter(self) -> ChangedRows:
        """The cells as they enter a pass."""
        return self.sweep.patches.enter(self.suffix, self.layer, self.where, self.heads)

    def mark(self, table: Bool[Tensor, "*cells prompt"]) -> None:
        """The cells' places in a table of all cells."""
        self.sweep.put({self.sweep.readouts[0].name: table}, self.layer, self.where, self.heads, [table.new_ones(1, 1)])

    def put(self, values: dict[str, Tensor], found: Sequence[Float[Tensor, "cell prompt"]]) -> None:
        """The cells' metrics into the tables of all cells."""
        self.sweep.put(values, self.layer, self.where, self.heads, found)


def passes(chunks: Sequence[Chunk], most: int) -> Iterator[list[Chunk]]:
    """Chunks that share a pass, in their order, about as many rows each time."""
    total = sum(chunk.rows for chunk in chunks)
    full = total / ceil(total / most) if chunks else 0
    some: list[Chunk] = []
    for chunk in chunks:
        rows = sum(one.rows for one in some)
        if some and (rows >= full or rows + chunk.rows > most):
            yield some
            some = []
        some.append(chunk)
    if some:
        yield some


def fill(model: Transformer, values: dict[str, Tensor], chunks: Sequence[Chunk], most: int) -> None:
    """Measure some cells and put their metrics into the tables."""
    for some in passes(sorted(chunks, key=lambda chunk: chunk.layer), most):
        read = resume(model, [chunk.enter() for chunk in some])
        for suffix in dict.fromkeys(chunk.suffix for chunk in some):
            own = [chunk for chunk in some if chunk.suffix is suffix]
            found = own[0].sweep.measure(read[suffix.onward or suffix])
            sizes = [len(chunk.heads) for chunk in own]
            for chunk, *values_of in zip(own, *(value.split(sizes) for value in found), strict=True):
                chunk.put(values, values_of)
        for sweep in {chunk.sweep for chunk in some} - {some[-1].sweep}:
            sweep.patches.forget()
