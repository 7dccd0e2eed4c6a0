"""What does a model lose without a part of it? Heads, layers, neurons or positions replaced by what says nothing.

What stands in their place is a value typed by its meaning: what the part did for another prompt (as a rule), the mean
over a corpus, or zero. A part that a prompt needs lowers the metric; other parts may compensate, so the drop is a lower
bound.

`ablate` knocks out every cell of a grid, each alone; `ablate_cells` takes a list of cells, each alone, and
`ablate_in_order` one after the other, each with all before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.model import Model
from interp.patching.memory import BUDGET
from interp.patching.metrics import Metric, Readout, prepared
from interp.patching.named_positions import by_name, check_names
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun
from interp.patching.replacements import Alone, Replacement
from interp.patching.results import chosen
from interp.patching.resumption import Cell, measure_sets
from interp.patching.sweeps import blank_beyond, read_values, swept
from interp.running import Tokens
from interp.transformer import Transformer, with_parts


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
        name = chosen(self.values, metric, "this ablation has")
        return self.plain[name] - self.values[name]


class Options(TypedDict, total=False):
    """What every ablation takes besides its cells.

    target: what the decoder reads where there is an encoder, which reads the prompts.
    stack, attention: as in `sweep`.
    mean: for `mean`, what `mean_activation` gave for this site; by default the mean over the prompts.
    donors: for `resample`, prompts to draw from (sources and targets where there is an encoder); by default the
        prompts, none from itself.
    seed: of the draw.
    budget: bytes of activations that one pass may hold.
    """

    target: Tokens | None
    stack: str | None
    attention: str
    mean: Tensor | None
    donors: Tokens | tuple[Tokens, Tokens] | None
    seed: int
    budget: int


@torch.no_grad()
def ablate(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    kind: str = "resample",
    **options: Unpack[Options],
) -> Ablation:
    """Ablate every cell of `site`, each alone, exactly.

    Args:
        model: a transformer with an output layer.
        prompts: what is run, padded on the right; of `Pairs` the clean prompts, with their answers.
        metrics: what to read, one or several, with their answers (`logit_difference(" he", " she")`).
        site, by: as in `sweep`. Keys that a query does not see stay unseen where `scores` are ablated.
        kind: `resample`, another prompt's activation at the same position, one other prompt drawn for each (Chan 2022,
            "Causal scrubbing"); `mean`, over real positions of a corpus; `zero`, which no prompt may ever have there,
            so that what is lost is also the cost of a strange input. Of `scores` and `pattern`, whose keys are their
            own prompt's, `zero` alone.
        options: those of `Options`.

    Returns:
        Ablation: values `*by prompt`.

    Raises:
        InputError: no such site, axis or kind; a mean of the wrong shape; no other prompt to draw from.
    """
    model = with_parts(model, "an ablation")
    by, stack, attention = tuple(by), options.get("stack"), options.get("attention", "self")
    asked = _Asked.of(model, prompts, metrics, PatchSite.of(model, site, by, stack, attention), kind, options)
    check_names(asked.alone, asked.patch_site, by)
    if site == "z" or (asked.patch_site.in_engine and not asked.patch_site.units):  # the plain run has these
        runs = asked.plain, asked.replaced()
        how = asked.readouts, asked.values, site, by, asked.budget
        values = swept(model, asked.alone, runs, *how, stack=stack, attention=attention)
    else:
        shape = asked.patch_site.shape(asked.alone, by)
        found = asked.measure(by, [[cell] for cell in product(*map(range, shape))])
        values = {name: value.view(*shape, -1) for name, value in found.items()}
        blank_beyond(values, by, asked.alone, asked.patch_site)
        values = {name: by_name(value, by, asked.alone) for name, value in values.items()}
    return Ablation(site, kind, by, values, asked.values)


def ablate_cells(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str = "z",
    kind: str = "resample",
    **options: Unpack[Options],
) -> Ablation:
    """Ablate each of some cells alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of streams.

    The other arguments are those of `ablate`.

    Returns:
        Ablation: values `cell prompt`, in the order given.

    Raises:
        InputError: as `ablate`, or a cell that the model lacks.
    """
    model = with_parts(model, "an ablation")
    patch_site = PatchSite.of(model, site, stack=options.get("stack"), attention=options.get("attention", "self"))
    cells = _checked(patch_site, cells)
    asked = _Asked.of(model, prompts, metrics, patch_site, kind, options)
    values = asked.measure(("layer", *patch_site.units), [[cell] for cell in cells])
    return Ablation(site, kind, ("cell",), values, asked.values)


def ablate_in_order(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    order: Sequence[Cell],
    site: str = "z",
    kind: str = "resample",
    **options: Unpack[Options],
) -> Ablation:
    """Ablate cells one after the other, each with all before it: how fast the metric falls, and what it falls to.

    Cells and arguments are those of `ablate_cells`.

    Returns:
        Ablation: values `step prompt`; at step i, cells 0 to i of `order` are ablated together.

    Raises:
        InputError: as `ablate_cells`, or a cell named twice.
    """
    model = with_parts(model, "an ablation")
    patch_site = PatchSite.of(model, site, stack=options.get("stack"), attention=options.get("attention", "self"))
    cells = _checked(patch_site, order)
    if len({*cells}) != len(cells):
        raise InputError(f"an order names each cell once: expected {len({*cells})} cells, got {len(cells)}")
    asked = _Asked.of(model, prompts, metrics, patch_site, kind, options)
    values = asked.measure(("layer", *patch_site.units), [cells[: step + 1] for step in range(len(cells))])
    return Ablation(site, kind, ("step",), values, asked.values)


def _checked(patch_site: PatchSite, cells: Sequence[Cell]) -> list[Cell]:
    """The cells, negative indices counted from the end.

    Raises:
        InputError: no cell, or one that the model lacks.
    """
    sizes = {axis: patch_site.size(axis) or 0 for axis in ("layer", *patch_site.units)}
    if not len(cells):
        raise InputError(f"expected at least one cell ({', '.join(sizes)}) to ablate, got none")
    for cell in cells:
        if len(cell) != len(sizes) or not all(-n <= at < n for at, n in zip(cell, sizes.values(), strict=True)):
            limits = ", ".join(f"{name} 0-{size - 1}" for name, size in sizes.items())
            raise InputError(f"no cell {tuple(cell)} of {patch_site.site}: expected ({limits})")
    return [tuple(at % size for at, size in zip(cell, sizes.values(), strict=True)) for cell in cells]


@dataclass(frozen=True)
class _Asked:
    """What is ablated, checked: the prompts with their own run and metrics, and what comes instead in each layer."""

    model: Transformer
    patch_site: PatchSite
    alone: Alone
    readouts: list[Readout]
    plain: PlainRun
    values: dict[str, Float[Tensor, " prompt"]]
    instead: list[Tensor]
    budget: int

    @staticmethod
    @torch.no_grad()
    def of(
        model: Transformer,
        prompts: Tokens | Pairs,
        metrics: Metric | Sequence[Metric],
        patch_site: PatchSite,
        kind: str,
        options: Options,
    ) -> "_Asked":
        alone = Alone.of(model, prompts, options.get("target"))
        drawn = options.get("mean"), options.get("donors"), options.get("seed", 0)
        instead = Replacement(model, patch_site, alone, kind, *drawn).layers()
        readouts, plain = prepared(model, alone, metrics), PlainRun.of(model, *alone.inputs[0])
        values = read_values(model, plain, readouts)
        return _Asked(model, patch_site, alone, readouts, plain, values, instead, options.get("budget", BUDGET))

    def replaced(self) -> PlainRun:
        """A run that has at the site what comes instead, to patch from."""
        own = self.plain.of_stack(self.patch_site.stack)
        kept = zip(self.instead, own[self.patch_site.local], strict=True)
        own = own.putting(self.patch_site.local, [theirs.to(ours.dtype).expand_as(ours) for theirs, ours in kept])
        return own if own.stack == self.plain.stack else replace(self.plain, source=own)

    def measure(self, by: Sequence[str], sets: Sequence[Sequence[Cell]]) -> dict[str, Float[Tensor, "set prompt"]]:
        """Each metric with each set of cells ablated together."""
        args = self.model, self.alone, self.plain, self.readouts, self.patch_site, by, sets
        found = measure_sets(*args, self.instead.__getitem__, self.budget)
        return dict(zip((readout.name for readout in self.readouts), found, strict=True))
