"""Exact sweeps: every cell of a site patched, at a fraction of one forward pass per cell.

A cell at layer l and position p changes nothing below l nor, in a causal stack, before p. So it starts at its own layer
with only the rows that it changes. Groups of prompts and chunks of their cells share passes. `sweep_by_forward` is the
plain way; both give the same numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import ceil
from operator import attrgetter

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.model import Model
from interp.patching.by_forward import sweep_by_forward, unpatched_by_forward
from interp.patching.changed_rows import AtReads, Suffix
from interp.patching.engine import resume
from interp.patching.metrics import Metric, Readout, prepared
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName, last_stack
from interp.patching.patches import Region, SitePatches, sweep_by_resuming
from interp.patching.plain import PlainRun
from interp.patching.preparation import BUDGET, Plan, Values, fitting, read_values, row_limit, shares
from interp.patching.results import Cells, Direction
from interp.transformer import Transformer

Selection = Bool[np.ndarray, "*cells"]


@torch.no_grad()
def sweep(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    budget: int = BUDGET,
) -> Cells:
    """Patch every cell of `site` and measure what each does, exactly.

    Args:
        model: a transformer with an output layer.
        pairs: clean and corrupted prompts, equally long within a pair.
        metrics: what to read, one or several.
        site: any that `run` can edit, by its name in a layer (`z`, `resid_pre`, `mlp.post`) or outside the layers
            (`embed`, `resid_final`, `logits`: one layer, 0).
        by: the cells' axes: `layer`, then any of `head` (key/value heads for `k` and `v`), `position`, for `pattern`
            and `scores` `query` and `key`, in feed-forwards `neuron` or `expert`. Positions count each prompt's own
            tokens (for keys and values of cross-attention, the source's). If the pairs name positions, an axis has one
            entry per name, and no other position is patched.
        direction: `denoise` (`denoising`) puts clean activations into the corrupted prompt, `noise` (`noising`)
            corrupted ones into the clean prompt.
        stack: `encoder` or `decoder`; by default the one that the output layer reads.
        attention: `self` or `cross`: whose `z`, `q`, `k`, `v`, `pattern` or `scores`.
        budget: bytes that the sweep may take; prompts and cells are split into as many parts as that needs.

    A site that cannot differ between the prompts, and a budget too small for one cell, are an `InputError`.
    """
    if not isinstance(model, Transformer):
        return sweep_by_forward(model, pairs, metrics, site, by, direction, stack=stack, attention=attention)
    plan = Plan.from_arguments(model, pairs, metrics, site, by, direction, stack, attention)
    tables, ends = [], []
    n_prompts, rest = shares(model, pairs, budget, plan.patch_site)
    for prompts in torch.arange(len(pairs), device=pairs.last.device).split(n_prompts):
        part = plan.take(prompts)
        runs = PlainRun.from_both(model, *part.inputs)
        base, source = (read_values(model, run, part.plain) for run in runs)
        tables.append(swept(part, runs, base, rest))
        ends.append((base, source))
    values = {name: plan.by_name(table) for name, table in _joined(tables).items()}
    return plan.cells(values, *(_joined(parts) for parts in zip(*ends, strict=True)))


@torch.no_grad()
def unpatched(
    model: Model, pairs: Pairs, metrics: Metric | Sequence[Metric], *, budget: int = BUDGET
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics of the clean and the corrupted prompts, by name: is there a difference that patching can move?

    They equal `clean` and `corrupt` of `Cells`. For the arguments see `sweep`.
    """
    readouts, parts = prepared(model, pairs, metrics), []
    if not isinstance(model, Transformer):
        return unpatched_by_forward(model, pairs, readouts)
    for prompts in torch.arange(len(pairs), device=pairs.last.device).split(shares(model, pairs, budget)[0]):
        part = [readout.take(prompts) for readout in readouts]
        parts.append([read_values(model, run, part) for run in PlainRun.from_both(model, *pairs.take(prompts).inputs)])
    clean, corrupt = (_joined(values) for values in zip(*parts, strict=True))
    return clean, corrupt


def swept(plan: Plan, runs: Sequence[PlainRun], base: Values, budget: int) -> Values:
    """Metrics, `*by prompt`, of the first run with each cell patched from the second.

    Cells that can have no effect keep the plain run's value (`base`). Position axes count columns.
    """
    values = plan.unchanged(base)
    if plan.patch_site.in_engine(plan.by):
        limit = row_limit(plan.transformer, plan.pairs, budget, plan.patch_site)
        groups = [(group, plan.selected(group.prompts)) for group in prompt_groups(plan, runs, limit)]
        chunks = [chunk for group, selected in groups for chunk in group.chunks(limit, selected)]
        fill(plan.transformer, values, chunks, limit)
    else:
        sweep_by_resuming(plan, runs, values, budget)
    return values


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}


@dataclass(frozen=True, eq=False)
class PromptGroup:
    """Prompts that are swept together, with one first changed position and one length, and their cells."""

    by: tuple[str, ...]
    prompts: Int[Tensor, " prompt"]
    first: int
    lengths: dict[str, int]  # of each stack's texts; the longest, in a stack that is not swept
    base: PlainRun
    patches: SitePatches
    readouts: list[Readout]
    suffixes: dict[int, Suffix] = field(default_factory=dict)

    @property
    def patch_site(self) -> PatchSite:
        """What is patched."""
        return self.patches.patch_site

    def regions(self) -> Iterator[Region]:
        """A layer's cells that can have an effect, as regions; heads or neurons are not told apart here."""
        site, rows, by_unit = self.patch_site, [None], bool({*self.patch_site.units} & {*self.by})
        if axis := next((axis for axis in ("position", "query") if axis in self.by), None):
            rows = range(self.first if site.counted(axis) == site.stack else 0, self.lengths[site.counted(axis)])
        # a changed query redistributes its attention over all keys, including unchanged ones
        keys = range(self.lengths[site.counted("key")]) if "key" in self.by else [None]
        for row, key in product(rows, keys):
            if site.causal and site.attention == "self" and row is not None and key is not None and key > row:
                continue
            yield Region(by_unit, row, key)

    def first_reached(self, region: Region) -> int:
        """The first position whose stream the patch can change."""
        if not self.patch_site.causal:
            return 0
        if self.patch_site.attention == "cross":
            return self.first if region.position is None or self.patch_site.of_keys else region.position
        return max(self.first, region.key or 0) if region.position is None else region.position

    def chunks(self, limit: int, selected: Selection) -> "Iterator[Chunk]":
        """All selected cells that can have an effect, in chunks of at most `limit` rows."""
        for region in self.regions() if selected.any() else ():
            first = self.first_reached(region)
            if first <= self.last_read:
                yield from self.chunks_of(region, first, limit, selected)

    def chunks_of(self, region: Region, first: int, limit: int, selected: Selection) -> "Iterator[Chunk]":
        """The selected cells of a region, layer by layer, that change positions from `first` on."""
        for layer in range(self.patch_site.n_layers):
            heads = np.flatnonzero(selected[self.entry(layer, region)]).tolist()  # [0] if cells are not heads
            step = max(1, limit // self.suffix(first).rows) if heads else 1
            for begin in range(0, len(heads), step):
                yield Chunk(self, self.suffix(first), layer, region, heads[begin : begin + step])

    @cached_property
    def last_read(self) -> int:
        """The last position that a metric reads."""
        return int(max(readout.positions.max() for readout in self.readouts))

    def suffix(self, first: int) -> Suffix:
        """What cells that change positions from `first` on share."""
        if first not in self.suffixes:
            reads = [torch.cat([readout.positions for readout in self.readouts], 1)]
            self.suffixes[first] = Suffix.in_stack(self.patches.model, self.base, self.patch_site.stack, first, reads)
        return self.suffixes[first]

    def entry(self, layer: int, region: Region) -> tuple[int | slice | None, ...]:
        """The region's index in the table of all cells."""
        indices = {"position": region.position, "query": region.position, "key": region.key}
        return (layer, *(indices.get(axis, slice(None)) for axis in self.by[1:]))


def prompt_groups(
    plan: Plan, runs: Sequence[PlainRun], limit: int, *, alone: bool = False, alike: Tensor | None = None
) -> Iterator[PromptGroup]:
    """Groups of prompts with one length, one first changed position (if causal) and one row of `alike`; or `alone`."""
    pairs, site, model = plan.pairs, plan.patch_site, plan.transformer
    texts = {name: pairs.read_by(name) for name in model.config.stacks}
    stack_lengths = texts[site.stack].lengths
    first = pairs.first_reached(site.stack) if site.causal else torch.zeros_like(stack_lengths)
    onward = 0 if site.stack == last_stack(model) else texts[last_stack(model)].ids.shape[1]
    keys = torch.cat([first[:, None], stack_lengths[:, None], *([] if alike is None else [alike])], 1)
    for key in keys.unique(dim=0):
        start, length = key.tolist()[:2]
        members = (keys == key).all(1).nonzero()[:, 0]
        for prompts in members.split(1 if alone else max(1, limit // (length - start + onward))):
            lengths = {name: int(text.lengths[prompts].max()) for name, text in texts.items()}
            base, source = (run.take(prompts, lengths) for run in runs)
            readouts = [readout.take(prompts) for readout in plan.readouts]
            patches = SitePatches(model, base, source, site)
            yield PromptGroup(plan.by, prompts, start, lengths, base, patches, readouts)


@dataclass(frozen=True)
class Chunk:
    """Cells that enter together: a region's cells in one layer, only those of `heads` if each head is a cell."""

    group: PromptGroup
    suffix: Suffix
    layer: int
    region: Region
    heads: list[int]

    @property
    def rows(self) -> int:
        """Cells x prompts x positions that the chunk adds to a pass."""
        return len(self.heads) * self.suffix.rows

    def put(self, values: dict[str, Tensor], measured: Sequence[Float[Tensor, "cell prompt"]]) -> None:
        """Write the cells' metrics into the tables of all cells."""
        for readout, value in zip(self.group.readouts, measured, strict=True):
            rows = values[readout.name][self.group.entry(self.layer, self.region)]
            if self.region.by_head:
                rows[torch.tensor(self.heads, device=rows.device)[:, None], self.group.prompts] = value
            else:
                rows[self.group.prompts] = value[0]


def passes(chunks: Sequence[Chunk], limit: int) -> Iterator[list[Chunk]]:
    """Split chunks, in order, into passes of about equally many rows."""
    total = sum(chunk.rows for chunk in chunks)
    return fitting(chunks, attrgetter("rows"), limit, enough=total / max(1, ceil(total / limit)))


def fill(model: Transformer, values: dict[str, Tensor], chunks: Sequence[Chunk], limit: int) -> None:
    """Measure some cells and write their metrics into the tables."""
    for party in passes(sorted(chunks, key=lambda chunk: chunk.layer), limit):
        entering = [each.group.patches.enter(each.suffix, each.layer, each.region, each.heads) for each in party]
        arrived = resume(model, entering)
        for suffix in dict.fromkeys(chunk.suffix for chunk in party):
            put([chunk for chunk in party if chunk.suffix is suffix], values, arrived[suffix.onward or suffix])
        for group in {chunk.group for chunk in party} - {party[-1].group}:
            group.patches.forget()


def put(chunks: Sequence[Chunk], values: dict[str, Tensor], arrived: AtReads) -> None:
    """Write into the tables the metrics of chunks that arrived together, from the stream at the read positions."""
    group, sizes = chunks[0].group, [len(chunk.heads) for chunk in chunks]
    model, widths = group.patches.model, [readout.positions.shape[1] for readout in group.readouts]
    finals = zip(group.readouts, model.last.norm(arrived).split(widths, -2), strict=True)
    measured = [readout.from_final(model, final).split(sizes) for readout, final in finals]
    for chunk, *parts in zip(chunks, *measured, strict=True):
        chunk.put(values, parts)
