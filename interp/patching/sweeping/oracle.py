"""The plain way: one whole forward pass a cell. Slow, obvious, and what every fast path is compared with."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from interp.edits import patch
from interp.errors import InputError
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.results import Direction, Sweep
from interp.places import Site, sites
from interp.running import run
from interp.transformer import Transformer

IN_ATTENTION = ("q", "k", "v", "z", "scores", "pattern")
PATCHABLE = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", *IN_ATTENTION)


def site_name(stack: str, layer: int, site: str) -> str:
    """The full name of a patchable site (`z`, `resid_pre`) in one layer."""
    return f"{stack}.{layer}.{'attn.' if site in IN_ATTENTION else ''}{site}"


def check_site(model: Transformer, site: str, by: Sequence[str]) -> Site:
    """The site in the first layer.

    Raises:
        InputError: no such site in this model, or an axis that it does not have.
    """
    (stack,) = model.config.stacks
    known = sites(model)
    if site not in PATCHABLE or site_name(stack, 0, site) not in known:
        raise InputError(f"no patchable site {site!r} in this model: expected one of {', '.join(PATCHABLE)}")
    found = known[site_name(stack, 0, site)]
    allowed = ["layer", *(axis for axis in found.axes if axis in {"head", "position", "query", "key"})]
    if by[:1] != ("layer",) or len(set(by)) != len(by) or not set(by) <= set(allowed):
        raise InputError(
            f"{site} can be swept by layer first, then any of {', '.join(allowed[1:])}; got {', '.join(by)}"
        )
    return found


def sweep_by_forward(
    model: Transformer,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
) -> Sweep:
    """Patch every cell of `site` in turn, each with one plain forward pass over all prompts.

    Arguments and result are those of `interp.patching.sweep`.
    """
    by = tuple(by)
    place = check_site(model, site, by)
    metrics = [metrics] if isinstance(metrics, Metric) else list(metrics)
    readouts = [metric.prepare(model, pairs) for metric in metrics]
    (stack,) = model.config.stacks
    names = [site_name(stack, layer, site) for layer in range(model.config.n_layers)]
    base, source = (pairs.corrupt, pairs.clean) if direction == "denoise" else (pairs.clean, pairs.corrupt)
    healthy = run(model, source, capture=names)
    counted = dict(zip(place.axes, place.sizes, strict=True))
    sizes = [len(names), *(counted[axis] or base.ids.shape[1] for axis in by[1:])]
    values = {
        readout.name: torch.full((*sizes, len(pairs)), torch.nan, dtype=healthy.logits.dtype) for readout in readouts
    }
    for cell in product(*map(range, sizes)):
        where = dict(zip(by[1:], cell[1:], strict=True))
        out = run(model, base, edit={names[cell[0]]: patch(healthy[names[cell[0]]], **where)})
        real = _within(pairs, where)
        for readout in readouts:
            values[readout.name][cell] = readout.of_logits(out.logits).cpu().masked_fill(~real, torch.nan)
    plain = [
        [{r.name: r.of_logits(run(model, batch).logits).cpu()} for r in readouts]
        for batch in (pairs.clean, pairs.corrupt)
    ]
    clean, corrupt = ({name: value for each in found for name, value in each.items()} for found in plain)
    return Sweep(site, direction, by, values, clean, corrupt)


def _within(pairs: Pairs, where: dict[str, int]) -> Tensor:
    """Prompts whose own text reaches the positions of a cell."""
    last = max((where[axis] for axis in ("position", "query", "key") if axis in where), default=0)
    return (pairs.last >= last).cpu()
