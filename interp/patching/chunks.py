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
from interp.patching.patch_sites import PatchSite, last_stack
from interp.patching.plain import PlainRun
from interp.patching.preparation import Plan
from interp.patching.site_patches import SitePatches, Where
from interp.transformer import Transformer


@dataclass(frozen=True, eq=False)
class GroupSweep:
    """The cells of prompts that are swept together: those with the same first changed position and the same length.

    `lengths` are those of each stack's texts, the longest where they differ: only in the stack that is not swept.
    """

    by: tuple[str, ...]
    prompts: Int[Tensor, " prompt"]
    first: int
    lengths: dict[str, int]
    base: PlainRun
    patches: SitePatches
    readouts: list[Readout]
    suffixes: dict[int, Suffix] = field(default_factory=dict)

    @property
    def patch_site(self) -> PatchSite:
        """What is patched."""
        return self.patches.patch_site

    def wheres(self) -> Iterator[Where]:
        """The cells of a layer that can have an effect, an axis of heads or neurons aside."""
        site, rows, by_unit = self.patch_site, [None], bool({*self.patch_site.units} & {*self.by})
        if axis := next((axis for axis in ("position", "query") if axis in self.by), None):
            rows = range(self.first if site.counted(axis) == site.stack else 0, self.lengths[site.counted(axis)])
        # a changed query spreads its attention anew over all keys, also over those that are as they were
        keys = range(self.lengths[site.counted("key")]) if "key" in self.by else [None]
        for row, key in product(rows, keys):
            if site.causal and site.attention == "self" and row is not None and key is not None and key > row:
                continue
            yield Where(by_unit, row, key)

    def first_reached(self, where: Where) -> int:
        """The first position whose stream the patch can change."""
        if not self.patch_site.causal:
            return 0
        if self.patch_site.attention == "cross":
            return self.first if where.position is None or self.patch_site.of_keys else where.position
        return max(self.first, where.key or 0) if where.position is None else where.position

    def chunks(self, most: int, wanted: Bool[np.ndarray, "*cells"]) -> "Iterator[Chunk]":
        """All wanted cells that can have an effect, at most so many rows of them at a time."""
        for where in self.wheres() if wanted.any() else ():
            first = self.first_reached(where)
            if first <= self.last_read:
                yield from self.chunks_of(where, first, most, wanted)

    def chunks_of(self, where: Where, first: int, most: int, wanted: Bool[np.ndarray, "*cells"]) -> "Iterator[Chunk]":
        """The wanted cells of `where`, layer by layer, that change positions from `first` on."""
        for layer in range(self.patch_site.n_layers):
            heads = np.flatnonzero(wanted[self.entry(layer, where)]).tolist()  # [0] where cells are no heads
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
            reads = torch.cat([readout.positions for readout in self.readouts], 1)
            self.suffixes[first] = Suffix.of(self.patches.model, self.base, self.patch_site.stack, first, [reads])
        return self.suffixes[first]

    def measure(self, arrived: AtReads) -> list[Float[Tensor, "cell prompt"]]:
        """Metrics from the stream out of the last block at the read positions."""
        model, sizes = self.patches.model, [readout.positions.shape[1] for readout in self.readouts]
        finals = model.last.norm(arrived).split(sizes, -2)
        return [readout.of(model, final) for readout, final in zip(self.readouts, finals, strict=True)]

    def entry(self, layer: int, where: Where) -> tuple[int | slice | None, ...]:
        """Where the cells lie in the table of all cells."""
        places = {"position": where.position, "query": where.position, "key": where.key}
        return (layer, *(places.get(axis, slice(None)) for axis in self.by[1:]))


def group_sweeps(
    plan: Plan,
    runs: tuple[PlainRun, PlainRun],
    most: int,
    *,
    alone: bool = False,
    alike: Int[Tensor, "prompt _"] | None = None,
) -> Iterator[GroupSweep]:
    """Prompts by length, and in a causal stack by first changed position: nothing is computed that cannot change.

    The runs are those of the stack that the metrics read. A group's changed positions fill one pass at most; or each
    prompt is a group `alone`. Prompts whose rows of `alike` differ share no group.
    """
    pairs, site, model = plan.pairs, plan.patch_site, plan.transformer
    swept, texts = pairs.read_by(site.stack).lengths, {name: pairs.read_by(name) for name in model.config.stacks}
    first = pairs.first_reached(site.stack) if site.causal else torch.zeros_like(swept)
    onward = 0 if site.stack == last_stack(model) else texts[last_stack(model)].ids.shape[1]
    keys = torch.cat([first[:, None], swept[:, None], *([] if alike is None else [alike])], 1)
    for key in keys.unique(dim=0):
        start, length = key.tolist()[:2]
        together = (keys == key).all(1).nonzero()[:, 0]
        for prompts in together.split(1 if alone else max(1, most // (length - start + onward))):
            lengths = {name: int(text.lengths[prompts].max()) for name, text in texts.items()}
            base, source = (run.take(prompts, lengths) for run in runs)
            reads = [readout.take(prompts) for readout in plan.readouts]
            yield GroupSweep(plan.by, prompts, start, lengths, base, SitePatches(model, base, source, site), reads)


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

    def put(self, values: dict[str, Tensor], measured: Sequence[Float[Tensor, "cell prompt"]]) -> None:
        """The cells' metrics into the tables of all cells."""
        for readout, value in zip(self.sweep.readouts, measured, strict=True):
            rows = values[readout.name][self.sweep.entry(self.layer, self.where)]
            if self.where.by_head:
                rows[torch.tensor(self.heads, device=rows.device)[:, None], self.sweep.prompts] = value
            else:
                rows[self.sweep.prompts] = value[0]


def passes(chunks: Sequence[Chunk], most: int) -> Iterator[list[Chunk]]:
    """Chunks that share a pass, in their order, about as many rows each time."""
    total = sum(chunk.rows for chunk in chunks)
    full = total / ceil(total / most) if chunks else 0
    party: list[Chunk] = []
    for chunk in chunks:
        rows = sum(one.rows for one in party)
        if party and (rows >= full or rows + chunk.rows > most):
            yield party
            party = []
        party.append(chunk)
    if party:
        yield party


def fill(model: Transformer, values: dict[str, Tensor], chunks: Sequence[Chunk], most: int) -> None:
    """Measure some cells and put their metrics into the tables."""
    for party in passes(sorted(chunks, key=lambda chunk: chunk.layer), most):
        read = resume(model, [chunk.enter() for chunk in party])
        for suffix in dict.fromkeys(chunk.suffix for chunk in party):
            put([chunk for chunk in party if chunk.suffix is suffix], values, read[suffix.onward or suffix])
        for sweep in {chunk.sweep for chunk in party} - {party[-1].sweep}:
            sweep.patches.forget()


def put(chunks: Sequence[Chunk], values: dict[str, Tensor], arrived: AtReads) -> None:
    """The metrics of chunks that arrived together into the tables of all cells."""
    measured = [value.split([len(chunk.heads) for chunk in chunks]) for value in chunks[0].sweep.measure(arrived)]
    for chunk, *parts in zip(chunks, *measured, strict=True):
        chunk.put(values, parts)
