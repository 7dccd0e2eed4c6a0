"""The plain way to intervene: one whole forward pass a cell. Slow, obvious, and what every fast path is compared with.

An intervention is the edits of all sites that a cell changes. A sweep's cell is as in the other prompt's run. A path
leads from one sender to receivers and takes two passes: the first lets the sender alone be as in the other prompt and
records what the receivers get; the second gives them that, and nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from interp.edits import SelectiveEdit, patch
from interp.model import Model
from interp.patching.metrics import Metric, Readout, prepared, with_answers
from interp.patching.named_positions import POSITIONAL, cells_of, check_names, columns_named, names_of, ordered
from interp.patching.pairs import Inputs, Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName, site_name
from interp.patching.paths import THROUGH, Receiver, Sender, Through, check_paths, path_name
from interp.patching.results import Cells, Direction, checked_direction
from interp.running import Run, run
from interp.tap import Edit
from interp.transformer import Transformer, with_parts

Edits = dict[str, Edit | SelectiveEdit]  # by site
Place = Mapping[str, int | Tensor]  # by axis of a site, its entry or, of positions, one a prompt


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
) -> Cells:
    """Patch every cell of `site` in turn, each with one plain forward pass over all prompts.

    Arguments and result are those of `interp.patching.sweep`.
    """
    direction, patch_site = checked_direction(direction), PatchSite.of(model, site, tuple(by), stack, attention)
    theirs = run_inputs(model, ordered(pairs, direction)[1], capture=patch_site.names)

    def edits(layer: int, place: Place) -> Edits:
        return {patch_site.name(layer): patch(theirs[patch_site.name(layer)], **place)}

    return _cells(model, pairs, metrics, patch_site, tuple(by), direction, edits)


def path_patch_by_forward(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    receivers: Sequence[Receiver],
    sender: Sender = "z",
    by: Sequence[str] = ("layer", "head"),
    through: Through = "nothing",
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Cells:
    """Patch the paths from every sender in turn, each with two plain forward passes over all prompts.

    Arguments and result are those of `interp.patching.path_patch`.
    """
    transformer, direction = with_parts(model, "path patching"), checked_direction(direction)
    patch_site = check_paths(transformer, pairs, receivers, sender, tuple(by), through, stack, attention)
    inputs, others = ordered(pairs, direction)
    base, other = (run_inputs(transformer, each, capture="*") for each in (inputs, others))
    read = {_site_read(transformer, patch_site.stack, receiver) for receiver in receivers}

    def edits(layer: int, place: Place) -> Edits:
        name = patch_site.name(layer)
        sent: Edits = {name: patch(other[name], **place)}
        first = run_inputs(transformer, inputs, edit=_kept(base, patch_site, layer, through) | sent, capture=read)
        return _received(transformer, patch_site.stack, first, receivers, pairs)

    site = path_name(sender, receivers)
    return _cells(transformer, pairs, metrics, patch_site, tuple(by), direction, edits, site=site)


def _cells(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    patch_site: PatchSite,
    by: tuple[str, ...],
    direction: Direction,
    edits: Callable[[int, Place], Edits],
    **more: Any,
) -> Cells:
    """The metrics with each cell's `edits`, which are those of a layer and a place on the site's axes."""
    check_names(pairs, patch_site, by)
    readouts, names = prepared(model, pairs, metrics), names_of(pairs, by)
    clean, corrupt = unpatched_by_forward(model, pairs, with_answers(model, pairs, readouts))
    sizes = patch_site.shape(pairs, by)
    sizes = [len(names) if names and axis in POSITIONAL else size for axis, size in zip(by, sizes, strict=True)]
    values = {each.name: clean[each.name].new_empty(*sizes, len(pairs)) for each in readouts}

    def entry(axis: str, at: int) -> int | Tensor:
        if axis not in POSITIONAL:
            return at
        # where a prompt is too short any position will do: that is left out afterwards
        return (
            columns_named(pairs)[at] if names else (pairs.read_by(patch_site.counted(axis)).lengths - 1).clamp(max=at)
        )

    for cell in product(*map(range, sizes)):
        place = {patch_site.own_axis(axis): entry(axis, at) for axis, at in zip(by[1:], cell[1:], strict=True)}
        logits = run_inputs(model, ordered(pairs, direction)[0], edit=edits(cell[0], place)).logits
        for readout in readouts:
            values[readout.name][cell] = readout.of_logits(logits).cpu()
    return cells_of(model, pairs, patch_site, by, direction, values, clean, corrupt, named=bool(names), **more)


def unpatched_by_forward(
    model: Model, pairs: Pairs, readouts: Sequence[Readout]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics of the clean and of the corrupted prompts as they are, by name, one number a prompt."""
    runs = [run_inputs(model, inputs).logits for inputs in pairs.inputs]
    clean, corrupt = ({each.name: each.of_logits(logits).cpu() for each in readouts} for logits in runs)
    return clean, corrupt


def run_inputs(model: Model, inputs: Inputs, **how: Any) -> Run:
    """Run a model on what it reads, of one or two texts."""
    return run(model, inputs[0], target=inputs[1], **how)


def _kept(base: Run, patch_site: PatchSite, layer: int, through: Through) -> Edits:
    """Everything that the first pass keeps as the base run has it; the sender's own attention is not."""
    writes = {"self": "attn_out", "cross": "cross_attn_out"}[patch_site.attention]
    own = site_name(patch_site.stack, layer, writes if patch_site.site == "z" else patch_site.site)
    layers = range(patch_site.n_layers)
    sites = [site_name(patch_site.stack, each, kind) for each in layers for kind in THROUGH[through]]
    return {site: patch(base[site]) for site in sites if site != own and site in base.activations}


def _received(model: Transformer, stack: str, first: Run, receivers: Sequence[Receiver], pairs: Pairs) -> Edits:
    """Edits that give all receivers what they got in the first pass."""
    places: dict[str, list[tuple[Receiver, Tensor]]] = defaultdict(list)
    for receiver in receivers:
        site = _site_read(model, stack, receiver)
        value = first[site]
        if receiver.part == "mlp":  # the feed-forward alone reads what was recorded, so what it writes says it all
            assert receiver.layer is not None
            value = model.stack(stack).blocks[receiver.layer].feed_forward.out(value)
            site = site_name(stack, receiver.layer, "mlp_out")
        places[site].append((receiver, value))
    return {site: _giving(values, pairs, stack) for site, values in places.items()}


def _site_read(model: Transformer, stack: str, receiver: Receiver) -> str:
    """Where to see what a receiver reads."""
    config = model.config.stacks[stack]
    if receiver.layer is None:
        return f"{stack}.resid_final"
    stream = "resid_pre" if config.parallel else "resid_cross" if config.cross_attention else "resid_mid"
    return site_name(stack, receiver.layer, stream if receiver.part == "mlp" else receiver.part)


def _giving(values: list[tuple[Receiver, Tensor]], pairs: Pairs, stack: str) -> Edit:
    def edit(plain: Tensor) -> Tensor:
        changed = plain.clone()
        for receiver, value in values:
            head = slice(None) if receiver.head is None else receiver.head
            columns = receiver.columns(pairs, stack)
            region = (slice(None), slice(None)) if columns is None else (torch.arange(len(pairs)), columns)
            changed[(*region, head)] = value[(*region, head)]
        return changed

    return edit
