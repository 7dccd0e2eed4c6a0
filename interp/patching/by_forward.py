"""The plain way to intervene: one whole forward pass a cell. Slow, obvious, and what every fast path is compared with.

An intervention is the edits of all sites that a cell changes. A sweep's cell is as in the other prompt's run. A path
leads from one sender to receivers and takes two passes: the first lets the sender alone be as in the other prompt and
records what the receivers get; the second gives them that, and nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from interp.edits import SelectiveEdit, patch
from interp.model import Model
from interp.patching.cell_tables import POSITIONAL
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Inputs, Pairs
from interp.patching.patch_sites import Attending, StackName, site_name
from interp.patching.paths import THROUGH, Receiver, Sender, Through, check_paths, path_name
from interp.patching.preparation import Plan
from interp.patching.results import Cells, Direction
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
    plan = Plan.of(model, pairs, metrics, site, by, direction, stack, attention)
    theirs = run_inputs(model, plan.inputs[1], capture=plan.patch_site.names)

    def edits(layer: int, place: Place) -> Edits:
        name = plan.patch_site.name(layer)
        return {name: patch(theirs[name], **place)}

    return cells_by_forward(plan, edits)


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
    model = with_parts(model, "path patching")
    plan = Plan.of(model, pairs, metrics, sender, by, direction, stack, attention)
    check_paths(plan, receivers, through)
    patch_site, inputs = plan.patch_site, plan.inputs[0]
    base, other = (run_inputs(model, each, capture="*") for each in plan.inputs)
    read = {_site_read(model, patch_site.stack, receiver) for receiver in receivers}

    def edits(layer: int, place: Place) -> Edits:
        name, writes = patch_site.name(layer), {"self": "attn_out", "cross": "cross_attn_out"}[patch_site.attention]
        own = site_name(patch_site.stack, layer, writes if sender == "z" else sender)  # which may write as it will
        layers = range(patch_site.n_layers)
        sites = [site_name(patch_site.stack, each, kind) for each in layers for kind in THROUGH[through]]
        kept: Edits = {site: patch(base[site]) for site in sites if site != own and site in base.activations}
        first = run_inputs(model, inputs, edit=kept | {name: patch(other[name], **place)}, capture=read)
        return _received(model, patch_site.stack, first, receivers, pairs)

    return cells_by_forward(plan, edits, site=path_name(sender, receivers))


def cells_by_forward(plan: Plan, edits: Callable[[int, Place], Edits], **more: Any) -> Cells:
    """The metrics with each cell's `edits`, which are those of a layer and a place on the site's axes."""
    pairs, site = plan.pairs, plan.patch_site
    clean, corrupt = unpatched_by_forward(plan.model, pairs, plan.plain)
    # where a prompt is too short any position will do: that is left out afterwards
    columns = {axis: plan.columns(axis) for axis in plan.by if axis in POSITIONAL}
    columns = {axis: at.minimum(pairs.read_by(site.counted(axis)).lengths - 1) for axis, at in columns.items()}
    sizes = [len(columns[axis]) if axis in columns else site.size(axis) or 0 for axis in plan.by]
    values = {each.name: clean[each.name].new_empty(*sizes, len(pairs)) for each in plan.readouts}
    for cell in product(*map(range, sizes)):
        entries = zip(plan.by[1:], cell[1:], strict=True)
        place = {site.own_axis(axis): columns[axis][at] if axis in columns else at for axis, at in entries}
        logits = run_inputs(plan.model, plan.inputs[0], edit=edits(cell[0], place)).logits
        for readout in plan.readouts:
            values[readout.name][cell] = readout.of_logits(logits).cpu()
    ends = (clean, corrupt) if plan.direction == "noise" else (corrupt, clean)
    return plan.cells(values, *ends, **more)


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


def _received(model: Transformer, stack: str, first: Run, receivers: Sequence[Receiver], pairs: Pairs) -> Edits:
    """Edits that give all receivers what they got in the first pass."""
    values: dict[str, Tensor] = {}
    places: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for receiver in receivers:
        site, columns = _site_read(model, stack, receiver), receiver.columns(pairs, stack)
        value = first[site]
        if receiver.part == "mlp":  # the feed-forward alone reads what was recorded, so what it writes says it all
            assert receiver.layer is not None
            value = model.stack(stack).blocks[receiver.layer].feed_forward.out(value)
            site = site_name(stack, receiver.layer, "mlp_out")
        values[site] = value
        region = (slice(None), slice(None)) if columns is None else (torch.arange(len(pairs)), columns)
        places[site].append((*region, slice(None) if receiver.head is None else receiver.head))

    def edit(plain: Tensor, site: str) -> Tensor:
        changed = plain.clone()
        for place in places[site]:
            changed[place] = values[site][place]
        return changed

    return {site: partial(edit, site=site) for site in places}


def _site_read(model: Transformer, stack: str, receiver: Receiver) -> str:
    """Where to see what a receiver reads."""
    config = model.config.stacks[stack]
    if receiver.layer is None:
        return f"{stack}.resid_final"
    stream = "resid_pre" if config.parallel else "resid_cross" if config.cross_attention else "resid_mid"
    return site_name(stack, receiver.layer, stream if receiver.part == "mlp" else receiver.part)
