"""What does any edit of a run do? The run resumed at the edit's layer, many edits at once on a free leading axis.

A cell is `(layer, ...)`, a place on each of the axes that cells are counted by; cells of a set are edited together. All
sites that `run` can edit are patched and ablated so, for which the engine of sweeps has no shorter way.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patching.memory import most_rows
from interp.patching.metrics import Readout
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun
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
        here = len(stack.blocks) if patch_site.outside else start
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
    if patch_site.outside:
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
    model: Transformer,
    pairs: Pairs,
    plain: PlainRun,
    readouts: Sequence[Readout],
    patch_site: PatchSite,
    by: Sequence[str],
    sets: Sequence[Sequence[Cell]],
    instead: Instead,
    budget: int,
) -> list[Float[Tensor, "set prompt"]]:
    """Each metric with each set's cells replaced together: sets of one lowest layer go through in chunks.

    Raises:
        InputError: a metric that does not give one number a prompt.
    """
    last = plain.final
    found = [last.new_empty(len(sets), len(pairs)) for _ in readouts]
    lengths = {name: pairs.read_by(name).ids.shape[1] for name in model.config.stacks}
    width = lengths[patch_site.stack] + (lengths[plain.stack] if plain.stack != patch_site.stack else 0)
    if patch_site.site in {"logits", "mlp.experts"}:
        width *= max(1, patch_site.entries // model.config.d_model)
    most = most_rows(model, pairs, budget, patch_site)
    lowest = [min(cell[0] for cell in cells) for cells in sets]
    for start, group in groupby(sorted(range(len(sets)), key=lowest.__getitem__), lowest.__getitem__):
        together = torch.tensor([*group])
        for prompts in torch.arange(len(pairs), device=last.device).split(max(1, most // width)):
            own, some = plain.take(prompts, lengths), [readout.take(prompts) for readout in readouts]
            for chunk in together.split(max(1, most // (width * len(prompts)))):
                edits = _edits(patch_site, by, [sets[at] for at in chunk.tolist()], instead, prompts, lengths)
                value = resumed(model, own, patch_site, edits, start)
                for table, readout in zip(found, some, strict=True):
                    logits = patch_site.site == "logits"
                    read = readout.of_logits(value) if logits else readout.of(model, readout.at_reads(value))
                    table[chunk[:, None], prompts] = read
    return found


def _edits(
    patch_site: PatchSite,
    by: Sequence[str],
    sets: Sequence[Sequence[Cell]],
    instead: Instead,
    prompts: Int[Tensor, " prompt"],
    lengths: dict[str, int],
) -> dict[str, Edit]:
    """For each layer of any cell, the edit that puts what stands there instead, on a new leading axis."""
    edits = {}
    for layer in sorted({cell[0] for cells in sets for cell in cells}):
        mask, theirs = _mask(patch_site, by, sets, layer, lengths).to(prompts.device), instead(layer)
        theirs = theirs[prompts] if theirs.ndim > len(patch_site.axes) else theirs
        edits[patch_site.name(layer)] = partial(_put, theirs, mask)
    return edits


def _put(theirs: Tensor, mask: Bool[Tensor, "set 1 ..."], plain: Tensor) -> Tensor:
    """What is there instead where `mask` is true."""
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


def sweep_by_resuming(
    model: Transformer,
    pairs: Pairs,
    runs: tuple[PlainRun, PlainRun],
    readouts: Sequence[Readout],
    values: dict[str, Float[Tensor, "*cells prompt"]],
    patch_site: PatchSite,
    by: Sequence[str],
    budget: int,
) -> None:
    """Put into the tables each cell of the first run with what the second has there.

    Cells that no change can reach stay as they are.
    """
    plain, source = runs
    asked = _reached(pairs, readouts, patch_site, by)
    cells = [tuple(cell) for cell in asked.any(-1).nonzero().tolist()]
    if not cells:
        return
    theirs = lru_cache(maxsize=1)(lambda layer: observed(model, source, patch_site, layer))
    found = measure_sets(model, pairs, plain, readouts, patch_site, by, [[cell] for cell in cells], theirs, budget)
    at = tuple(torch.tensor(cells).T)
    for readout, value in zip(readouts, found, strict=True):
        table = values[readout.name]
        table[at] = torch.where(asked[at], value, table[at])


def _reached(
    pairs: Pairs, readouts: Sequence[Readout], patch_site: PatchSite, by: Sequence[str]
) -> Bool[Tensor, "*cells prompt"]:
    """Which cells can change what is read of which prompts: in a causal stack none before the prompts differ."""
    shape = patch_site.shape(pairs, by)
    found = torch.ones(*shape, len(pairs), dtype=torch.bool, device=pairs.last.device)
    counted = [axis for axis in ("position", "query") if axis in by and patch_site.counted(axis) == patch_site.stack]
    axis = next(iter(counted), None)
    if axis is None:
        return found
    at = torch.arange(shape[by.index(axis)], device=found.device)[:, None]
    live = at < pairs.read_by(patch_site.stack).lengths
    if patch_site.causal:
        read = torch.cat([readout.positions for readout in readouts], 1).amax(1)
        live &= (at >= pairs.first_reached(patch_site.stack)) & (at <= read)
    after = [1] * (len(shape) - 1 - by.index(axis))
    return found & live.view(-1, *after, len(pairs))
