"""The plain way: one whole forward pass a cell. Slow, obvious, and what every fast path is compared with."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from interp.edits import patch
from interp.model import Model, Site
from interp.patching.metrics import Metric, Readout, prepared, with_answers
from interp.patching.named_positions import POSITIONAL, check_names, columns_named, labels_of, names_of
from interp.patching.pairs import Inputs, Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName
from interp.patching.results import Direction, Sweep, checked_direction
from interp.running import Run, run
from interp.tap import Edit


def sweep_by_forward(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Sweep:
    """Patch every cell of `site` in turn, each with one plain forward pass over all prompts.

    Arguments and result are those of `interp.patching.sweep`.
    """
    direction = checked_direction(direction)
    by, patch_site = tuple(by), PatchSite.of(model, site, by, stack, attention)
    readouts = prepared(model, pairs, metrics)
    base, source = pairs.inputs[::-1] if direction == "denoise" else pairs.inputs
    healthy = run_inputs(model, source, capture=patch_site.names)
    check_names(pairs, patch_site, by)
    sizes, names = patch_site.shape(pairs, by), names_of(pairs, by)
    sizes = [len(names) if names and axis in POSITIONAL else size for axis, size in zip(by, sizes, strict=True)]
    values = {
        readout.name: torch.full((*sizes, len(pairs)), torch.nan, dtype=healthy.logits.dtype) for readout in readouts
    }
    for cell in product(*map(range, sizes)):
        where, name = dict(zip(by[1:], cell[1:], strict=True)), patch_site.name(cell[0])
        part = {patch_site.own_axis(axis): at for axis, at in where.items()}
        edit = patched(healthy[name], model.sites[name], part)
        if names:
            each = {axis: columns_named(pairs)[at] if axis in POSITIONAL else at for axis, at in part.items()}
            edit = patch(healthy[name], **each)
        out = run_inputs(model, base, edit={name: edit})
        real = within(pairs, patch_site, {} if names else where)
        for readout in readouts:
            values[readout.name][cell] = readout.of_logits(out.logits).cpu().masked_fill(~real, torch.nan)
    clean, corrupt = unpatched_by_forward(model, pairs, with_answers(model, pairs, readouts))
    where = patch_site.stack, patch_site.attention, names, labels_of(model, pairs, patch_site, by)
    return Sweep(site, direction, by, values, clean, corrupt, *where)


def unpatched_by_forward(
    model: Model, pairs: Pairs, readouts: Sequence[Readout]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics of the clean and of the corrupted prompts as they are, by name, one number a prompt."""
    runs = [run_inputs(model, inputs).logits for inputs in pairs.inputs]
    clean, corrupt = ({each.name: each.of_logits(logits).cpu() for each in readouts} for logits in runs)
    return clean, corrupt


def patched(value: Tensor, site: Site, part: Mapping[str, int]) -> Edit:
    """Puts what another run had at a cell, in padding too: what a prompt lacks is left out afterwards (`within`)."""
    region = (..., *(part.get(axis, slice(None)) for axis in site.axes))

    def edit(own: Tensor) -> Tensor:
        changed = own.clone()
        changed[region] = value[region]
        return changed

    return edit


def run_inputs(model: Model, inputs: Inputs, **how: Any) -> Run:
    """Run a model on what it reads, of one or two texts."""
    return run(model, inputs[0], target=inputs[1], **how)


def within(pairs: Pairs, patch_site: PatchSite, where: dict[str, int]) -> Tensor:
    """Prompts whose own texts reach the positions of a cell."""
    found = torch.ones(len(pairs), dtype=torch.bool, device=pairs.last.device)
    for axis in {"position", "query", "key"} & {*where}:
        found &= pairs.read_by(patch_site.counted(axis)).lengths > where[axis]
    return found.cpu()
