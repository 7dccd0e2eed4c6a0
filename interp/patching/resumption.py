"""What does any edit of a run do? The run resumed at the edit's layer, many edits at once on a free leading axis.

A cell is `(layer, ...)`, a place on each of the axes that cells are counted by; cells of a set are edited together. All
sites that `run` can edit are patched and ablated so, for which the engine of sweeps has no shorter way.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from math import prod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patching.memory import most_rows
from interp.patching.patch_sites import OUTSIDE, PatchSite
from interp.patching.plain import PlainRun
from interp.patching.preparation import Plan, Values
from interp.tap import Edit, Tap
from interp.transformer import Stream, Transformer
from interp.visibility import Source, Visibility

Cell = tuple[int, ...]
Instead = Callable[[int], Tensor]  # what is put at the site in a layer, broadcast to `prompt` and its axes


def resumed(
    model: Transformer, plain: PlainRun, patch_site: PatchSite, edits: Mapping[str, Edit], start: int
) -> Tensor:
    """The last stack's final stream with sites edited from layer `start` on; for the site `logits` the logits.

    `plain` is the run of that stack. Edits may put new leading axes before `prompt`; what lies below is not run again.
    """
    tap, run = Tap(edit=edits), None
    for name in model.config.stacks if patch_site.stack != plain.stack else [plain.stack]:
        own, stack, within = plain.of_stack(name), model.stack(name), tap.at(name)
        here = len(stack.blocks) if patch_site.site in OUTSIDE else start
        if name != patch_site.stack or patch_site.site == "embed":
            here = 0
        residual = within("embed", own.resid[0]) if here == 0 else own.resid[here]
        visibility, source = _seen(model, own, run)
        run = stack.resume(residual, visibility, tap=within, start=here, source=source)
    assert run is not None
    logits = model.read(run, tap) if patch_site.site == "logits" else None
    return run if logits is None else logits


def observed(model: Transformer, plain: PlainRun, patch_site: PatchSite, layer: int) -> Tensor:
    """What a run had at a site in one layer, made anew from the stream that entered the layer."""
    own = plain.of_stack(patch_site.stack)
    if patch_site.site in OUTSIDE:
        logits = model.read(own.final) if patch_site.site == "logits" else None
        return own.resid[0] if patch_site.site == "embed" else own.final if logits is None else logits
    tap, name = Tap(capture={patch_site.name(layer)}), patch_site.name(layer)
    block = model.stack(patch_site.stack).blocks[layer]
    visibility, source = _seen(model, own)
    block(own.resid[layer], visibility, tap.at(patch_site.stack).at(str(layer)), None, source)
    return tap.seen[name]


def _seen(model: Transformer, run: PlainRun, source: Stream | None = None) -> tuple[Visibility, Source | None]:
    """What a stack's queries see of their text, and what they read of the encoder's: its final stream, or `source`."""
    visibility = Visibility.of(run.batch, causal=model.config.stacks[run.stack].causal)
    if run.source is None:
        return visibility, None
    return visibility, Source.of(run.source.final if source is None else source, run.source.batch)


@torch.no_grad()
def measure_sets(
    plan: Plan, run: PlainRun, by: Sequence[str], sets: Sequence[Sequence[Cell]], instead: Instead, budget: int
) -> list[Float[Tensor, "set prompt"]]:
    """Each metric with each set's cells, on the axes `by`, replaced together: sets of one lowest layer go in chunks."""
    model, pairs, site = plan.transformer, plan.pairs, plan.patch_site
    tables = [run.final.new_empty(len(sets), len(pairs)) for _ in plan.readouts]
    lengths = {name: pairs.read_by(name).ids.shape[1] for name in model.config.stacks}
    width = lengths[site.stack] + (lengths[run.stack] if run.stack != site.stack else 0)
    if site.site in {"logits", "mlp.experts"}:
        width *= max(1, prod(size or 1 for size in site.sizes) // model.config.d_model)
    most = most_rows(model, pairs, budget, site)
    lowest = [min(cell[0] for cell in cells) for cells in sets]
    for start, group in groupby(sorted(range(len(sets)), key=lowest.__getitem__), lowest.__getitem__):
        together = torch.tensor([*group])
        for prompts in torch.arange(len(pairs), device=run.final.device).split(max(1, most // width)):
            own, readouts = run.take(prompts, lengths), [readout.take(prompts) for readout in plan.readouts]
            for chunk in together.split(max(1, most // (width * len(prompts)))):
                chosen, edits = [sets[at] for at in chunk.tolist()], {}
                for layer in sorted({cell[0] for cells in chosen for cell in cells}):
                    mask, theirs = _mask(site, by, chosen, layer, lengths).to(prompts.device), instead(layer)
                    theirs = theirs[prompts] if theirs.ndim > len(site.axes) else theirs
                    edits[site.name(layer)] = partial(_put, theirs, mask)
                value = resumed(model, own, site, edits, start)
                for table, readout in zip(tables, readouts, strict=True):
                    logits = site.site == "logits"
                    read = readout.of_logits(value) if logits else readout.of(model, readout.at_reads(value))
                    table[chunk[:, None], prompts] = read
    return tables


def _put(theirs: Tensor, mask: Bool[Tensor, "set 1 ..."], plain: Tensor) -> Tensor:
    return torch.where(mask, theirs.to(plain.dtype), plain)


def _mask(
    patch_site: PatchSite, by: Sequence[str], sets: Sequence[Sequence[Cell]], layer: int, lengths: dict[str, int]
) -> Bool[Tensor, "set 1 ..."]:
    """Which entries of a layer's site each set replaces: an axis that tells no cells apart has one entry."""
    widths = [
        patch_site.size(axis) or lengths[patch_site.counted(axis)] if axis in by else 1 for axis in patch_site.axes
    ]
    mask = torch.zeros(len(sets), 1, *widths, dtype=torch.bool)
    for row, cells in zip(mask, sets, strict=True):
        for cell in cells:
            if cell[0] == layer:
                where = dict(zip(by, cell, strict=True))
                row[0, *(where.get(axis, 0) for axis in patch_site.axes)] = True
    return mask


def sweep_by_resuming(plan: Plan, runs: tuple[PlainRun, PlainRun], values: Values, budget: int) -> None:
    """Put into the tables each cell of the first run with what the second has there.

    Cells that no change can reach stay as they are: in a causal stack those before the prompts differ.
    """
    own, other = runs
    pairs, site = plan.pairs, plan.patch_site
    reached = torch.ones(*plan.shape, len(pairs), dtype=torch.bool, device=pairs.last.device)
    for at, axis in enumerate(plan.by):
        if axis in {"position", "query"} and site.counted(axis) == site.stack:
            column = torch.arange(plan.shape[at], device=reached.device)[:, None]
            live = column < pairs.read_by(site.stack).lengths
            if site.causal:
                read = torch.cat([readout.positions for readout in plan.readouts], 1).amax(1)
                live &= (column >= pairs.first_reached(site.stack)) & (column <= read)
            reached &= live.view(-1, *[1] * (reached.ndim - at - 2), len(pairs))
    if cells := [tuple(cell) for cell in reached.any(-1).nonzero().tolist()]:
        theirs = lru_cache(maxsize=1)(lambda layer: observed(plan.transformer, other, site, layer))
        measured = measure_sets(plan, own, plan.by, [[cell] for cell in cells], theirs, budget)
        at = tuple(torch.tensor(cells).T)
        for readout, value in zip(plan.readouts, measured, strict=True):
            table = values[readout.name]
            table[at] = torch.where(reached[at], value, table[at])
