"""What does a model lose without a part of it? Heads, layers, neurons or positions replaced by what says nothing.

What stands in their place is a value typed by its meaning: zero, the mean over a corpus, or what the part did for
another prompt. A part that a prompt needs lowers the metric; other parts may compensate, so the drop is a lower bound.

`ablate` knocks out every cell of a grid, each alone, on the machinery of sweeps: the replaced activations are one more
run to patch from. `ablate_cells` takes a list of cells, each alone, and `ablate_in_order` one after the other, each
with all before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Inputs, Pairs, some_prompts
from interp.patching.plain import PlainRun
from interp.patching.replacing import SWEPT, UNIT, Alone, Part, Replacement
from interp.patching.spots import Spot
from interp.patching.sweeping.memory import BUDGET
from interp.patching.sweeping.sweep import read_values, swept
from interp.running import Tokens
from interp.sight import Source
from interp.tap import Edit, Tap
from interp.transformer import Stream, Transformer

Cell = tuple[int, ...]  # layer, then head or neuron where the site has such an axis
_ROWS = 1536  # rows (cells x prompts x positions) that one pass carries: more fall out of the processor's caches


@dataclass(frozen=True)
class Ablation:
    """Each metric with a cell ablated, one value a cell and prompt, and `plain`: with nothing ablated.

    `axes` are those of the cells (`layer`, `head`, `position`), or `cell` for a list of them, `step` for an order.
    Positions beyond a prompt's text are NaN.
    """

    site: str
    kind: str
    axes: tuple[str, ...]
    values: dict[str, Float[Tensor, "*cells prompt"]]
    plain: dict[str, Float[Tensor, " prompt"]]

    def drop(self, metric: str | None = None) -> Float[Tensor, "*cells prompt"]:
        """How much lower the metric is without the cell, in the metric's unit (by default the first metric)."""
        name = next(iter(self.values)) if metric is None else metric
        if name not in self.values:
            raise InputError(f"this ablation has no metric {metric!r}: it has {', '.join(self.values)}")
        return self.plain[name] - self.values[name]


@torch.no_grad()
def ablate(
    model: Transformer,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    kind: str = "zero",
    *,
    target: Tokens | None = None,
    stack: str | None = None,
    attention: str = "self",
    mean: Tensor | None = None,
    donors: Tokens | tuple[Tokens, Tokens] | None = None,
    seed: int = 0,
    budget: int = BUDGET,
) -> Ablation:
    """Ablate every cell of `site`, each alone, exactly.

    Args:
        model: a transformer with an output layer.
        prompts: what is run, padded on the right; of `Pairs` the clean prompts, with their answers.
        metrics: what to read, one or several, with their answers (`logit_difference(" he", " she")`).
        site: `z` (heads), `attn_out` or `mlp_out` (layers), `resid_pre`, `resid_mid` or `resid_post`; where there is
            cross-attention also `cross_attn_out` and `resid_cross`.
        by: the cells' axes: `layer`, then any of `head` (for `z`) and `position`.
        kind: `zero`; `mean`, over real positions of a corpus; `resample`, another prompt's activation at the same
            position, one other prompt drawn for each (Chan 2022, "Causal scrubbing").
        target: what the decoder reads where there is an encoder, which reads `prompts`.
        stack, attention: as in `sweep`.
        mean: for `mean`, what `mean_activation` gave for this site; by default the mean over `prompts`.
        donors: for `resample`, prompts to draw from (sources and targets where there is an encoder); by default
            `prompts`, none from itself.
        seed: of the draw.
        budget: bytes of activations that one pass may hold.

    Returns:
        Ablation: values `*by prompt`.

    Raises:
        InputError: no such site, axis or kind; a mean of the wrong shape; no other prompt to draw from.
    """
    by, spot = tuple(by), Spot.of(model, site, by, stack, attention)
    if site not in SWEPT:
        raise InputError(f"cannot ablate {site!r}: expected one of {', '.join(SWEPT)}; patch it with `sweep` instead")
    alone, part = Alone.of(model, prompts, target), Part.of(model, site, stack, attention)
    readouts = _prepare(model, alone, metrics)
    plain = PlainRun.of(model, *alone.inputs[0])
    values = read_values(model, plain, readouts)
    instead = Replacement(model, part, alone, kind, mean, donors, seed).layers()
    own = plain.of_stack(spot.stack)
    kept = own[spot.local]
    layers = [theirs.to(ours.dtype).expand_as(ours) for theirs, ours in zip(instead, kept, strict=True)]
    own = own.putting(spot.local, layers)
    ablated = own if own.stack == plain.stack else replace(plain, source=own)
    where = {"stack": stack, "attention": attention}
    found = swept(model, alone, (plain, ablated), readouts, values, site, by, budget, **where)
    return Ablation(site, kind, by, found, values)


def ablate_cells(
    model: Transformer,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str = "z",
    kind: str = "zero",
    *,
    target: Tokens | None = None,
    stack: str | None = None,
    attention: str = "self",
    mean: Tensor | None = None,
    donors: Tokens | tuple[Tokens, Tokens] | None = None,
    seed: int = 0,
) -> Ablation:
    """Ablate each of some cells alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of the outs.

    The other arguments are those of `ablate`; sites are `z`, `mlp.post`, `attn_out` and `mlp_out`.

    Returns:
        Ablation: values `cell prompt`, in the order given.

    Raises:
        InputError: as `ablate`, or a cell that the model lacks.
    """
    alone, part = Alone.of(model, prompts, target), Part.of(model, site, stack, attention)
    cells = _check_cells(part, cells)
    replacement = Replacement(model, part, alone, kind, mean, donors, seed)
    return _ablate_sets(model, alone, metrics, replacement, cells, torch.eye(len(cells), dtype=torch.bool), "cell")


def ablate_in_order(
    model: Transformer,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    order: Sequence[Cell],
    site: str = "z",
    kind: str = "zero",
    *,
    target: Tokens | None = None,
    stack: str | None = None,
    attention: str = "self",
    mean: Tensor | None = None,
    donors: Tokens | tuple[Tokens, Tokens] | None = None,
    seed: int = 0,
) -> Ablation:
    """Ablate cells one after the other, each with all before it: how fast the metric falls, and what it falls to.

    Cells and arguments are those of `ablate_cells`.

    Returns:
        Ablation: values `step prompt`; at step i, cells 0 to i of `order` are ablated together.

    Raises:
        InputError: as `ablate_cells`, or a cell named twice.
    """
    alone, part = Alone.of(model, prompts, target), Part.of(model, site, stack, attention)
    cells = _check_cells(part, order)
    if len({*cells}) != len(cells):
        raise InputError(f"an order names each cell once: expected {len({*cells})} cells, got {len(cells)}")
    replacement = Replacement(model, part, alone, kind, mean, donors, seed)
    steps = torch.ones(len(cells), len(cells), dtype=torch.bool).tril()
    return _ablate_sets(model, alone, metrics, replacement, cells, steps, "step")


def _check_cells(part: Part, cells: Sequence[Cell]) -> list[Cell]:
    """The cells, negative indices counted from the end.

    Raises:
        InputError: a site that is not ablated by list, no cell, or one that the model lacks.
    """
    if part.site not in UNIT:
        raise InputError(f"cannot ablate {part.site!r} by a list of cells: expected one of {', '.join(UNIT)}")
    place, unit = part.place, UNIT[part.site]
    names = ("layer",) if unit is None else ("layer", "neuron" if unit == "d_mlp" else unit)
    sizes = [part.config.n_layers, *([] if unit is None else [place.sizes[place.axes.index(unit)] or 0])]
    if not len(cells):
        raise InputError(f"expected at least one cell ({', '.join(names)}) to ablate, got none")
    found = []
    for cell in map(tuple, cells):
        if len(cell) != len(sizes) or not all(-size <= at < size for at, size in zip(cell, sizes, strict=True)):
            limits = ", ".join(f"{name} 0-{size - 1}" for name, size in zip(names, sizes, strict=True))
            raise InputError(f"no cell {cell} of {part.site}: expected ({limits})")
        found.append(tuple(at % size for at, size in zip(cell, sizes, strict=True)))
    return found


def _prepare(model: Transformer, alone: Alone, metrics: Metric | Sequence[Metric]) -> list[Readout]:
    return [metric.prepare(model, alone) for metric in ([metrics] if isinstance(metrics, Metric) else metrics)]


@torch.no_grad()
def _ablate_sets(
    model: Transformer,
    alone: Alone,
    metrics: Metric | Sequence[Metric],
    replacement: Replacement,
    cells: list[Cell],
    sets: Bool[Tensor, "set cell"],
    axis: str,
) -> Ablation:
    """Each set of cells ablated together. Sets go through on a free axis: what lies below all of them is run once."""
    readouts, part = _prepare(model, alone, metrics), replacement.part
    plain = read_values(model, PlainRun.of(model, *alone.inputs[0]), readouts)
    instead = replacement.layers()
    values = {name: value.new_empty(len(sets), len(value)) for name, value in plain.items()}
    for prompts, some in _passes(sets, alone):
        edits: dict[str, Edit] = {}
        for layer, name in enumerate(part.names):
            mask = _mask(part, layer, cells, sets[some]).to(model.device)
            if bool(mask.any()):
                theirs = instead[layer]
                own = theirs[prompts] if replacement.kind == "resample" else theirs
                edits[name] = _putting(own, mask)
        batch, target = alone.inputs[0]
        inputs = some_prompts(batch, prompts), target and some_prompts(target, prompts)
        final = _final(model, inputs, Tap(edit=edits))
        rows = torch.arange(len(prompts), device=model.device)[:, None]
        for readout in readouts:
            own = readout.take(prompts)
            values[readout.name][some, prompts] = own.of(model, final[..., rows, own.positions, :])
    return Ablation(part.site, replacement.kind, (axis,), values, plain)


def _final(model: Transformer, inputs: Inputs, tap: Tap) -> Stream:
    """The last stack's final stream, which an edit may have given new leading axes."""
    final, read = None, None
    for name, batch in zip(model.config.stacks, inputs, strict=False):
        assert batch is not None
        final = model.stack(name)(batch, tap.at(name), read)
        read = Source.of(final, batch)
    assert final is not None
    return final


def _putting(value: Tensor, mask: Bool[Tensor, "set 1 1 ..."]) -> Edit:
    """The edit that puts `value` where `mask` is true, on a new leading axis where there is none yet."""
    return lambda plain: torch.where(mask, value.to(plain.dtype), plain)


def _mask(part: Part, layer: int, cells: list[Cell], sets: Bool[Tensor, "set cell"]) -> Bool[Tensor, "set 1 1 ..."]:
    """Which parts of a layer's site each set ablates: `set 1 1 head 1`, `set 1 1 neuron` or `set 1 1 1`."""
    here = [at for at, cell in enumerate(cells) if cell[0] == layer]
    if UNIT[part.site] is None:
        return sets[:, here].any(1)[:, None, None, None]
    units = torch.tensor([cells[at][1] for at in here], dtype=torch.long)
    count = part.config.n_heads if part.site == "z" else part.config.d_mlp
    mask = torch.zeros(len(sets), count, dtype=torch.bool)
    for unit, at in zip(units.tolist(), here, strict=True):
        mask[:, unit] |= sets[:, at]
    return mask[:, None, None, :, None] if part.site == "z" else mask[:, None, None]


def _passes(sets: Tensor, alone: Alone) -> Iterator[tuple[Int[Tensor, " prompt"], slice]]:
    """Prompts and sets that go through together."""
    n_prompts = len(alone)
    width = sum(texts.ids.shape[1] for texts in alone.inputs[0] if texts is not None)
    everyone = torch.arange(n_prompts, device=alone.clean.ids.device)
    for prompts in everyone.split(max(1, _ROWS // width)):
        at_once = max(1, _ROWS // (width * len(prompts)))
        for start in range(0, len(sets), at_once):
            yield prompts, slice(start, min(start + at_once, len(sets)))
