"""What does a model lose without a part of it? Heads, layers, neurons or positions replaced by what says nothing.

What stands in their place is a value typed by its meaning: what the part did for another prompt (as a rule), the mean
over a corpus, or zero. A part that a prompt needs lowers the metric; other parts may compensate, so the drop is a lower
bound.

`ablate` knocks out every cell of a grid, each alone; `ablate_cells` takes a list of cells, each alone, and
`ablate_in_order` one after the other, each with all before it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypedDict, Unpack
from warnings import warn

import torch
from torch import Tensor

from interp.errors import InputError, InputWarning
from interp.indices import is_number
from interp.model import Model
from interp.patching.memory import BUDGET
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, StackName
from interp.patching.plain import PlainRun
from interp.patching.preparation import Plan, Values, read_values
from interp.patching.replacements import Alone, Kind, replacements
from interp.patching.results import Cells
from interp.patching.resumption import Cell, measure_sets
from interp.patching.sweeps import swept
from interp.running import Tokens
from interp.transformer import with_parts

_ONE_ANSWER = (
    "the model gives all prompts the same answer, so they take little of it from each other: give pairs, whose "
    "corrupted prompts are drawn from, or prompts of another answer as donors="
)


class Options(TypedDict, total=False):
    """What every ablation takes besides its cells.

    target: what the decoder reads where there is an encoder, which reads the prompts.
    stack, attention: as in `sweep`.
    mean: for `mean`, what `mean_activation` gave for this site; by default the mean over all tokens of the prompts.
    donors: for `resample`, prompts to draw from (sources and targets where there is an encoder); by default the
        corrupted prompts of pairs, a prompt's own among them; else the other prompts. Where all have the same answer
        these take nothing of it from each other, and an `InputWarning` says so.
    seed: of the draw.
    budget: bytes of activations that one pass may hold.
    """

    target: Tokens | None
    stack: StackName | None
    attention: Attending
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
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Cells:
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
        Cells: values `*by prompt`.

    Raises:
        InputError: no such site, axis, kind or option; a mean of the wrong shape; no other prompt to draw from.
    """
    ablation = _Ablation(model, prompts, metrics, site, by, kind, options)
    plan = ablation.plan
    if site == "z" or (plan.patch_site.in_engine(plan.by) and not plan.patch_site.units):  # the plain run has these
        values = swept(plan, (ablation.run, ablation.replaced()), ablation.values, ablation.budget)
    else:
        sets = ablation.measure(plan.by, [[cell] for cell in product(*map(range, plan.shape))])
        values = {name: value.view(*plan.shape, -1) for name, value in sets.items()}
    values = {name: plan.by_name(value) for name, value in values.items()}
    return plan.cells(values, ablation.values, {}, kind=kind)


def ablate_cells(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str = "z",
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Cells:
    """Ablate each of some cells alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of streams.

    The other arguments are those of `ablate`.

    Returns:
        Cells: values `cell prompt`, in the order given.

    Raises:
        InputError: as `ablate`, or a cell that the model lacks.
    """
    return _Ablation(model, prompts, metrics, site, ("layer",), kind, options).listed(cells, "cell")


def ablate_in_order(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    order: Sequence[Cell],
    site: str = "z",
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Cells:
    """Ablate cells one after the other, each with all before it: how fast the metric falls, and what it falls to.

    Cells and arguments are those of `ablate_cells`.

    Returns:
        Cells: values `step prompt`; at step i, cells 0 to i of `order` are ablated together.

    Raises:
        InputError: as `ablate_cells`, or a cell named twice.
    """
    return _Ablation(model, prompts, metrics, site, ("layer",), kind, options).listed(order, "step")


class _Ablation:
    """The prompts with their plain run and its metrics, and what replaces the site in each layer."""

    @torch.no_grad()
    def __init__(
        self,
        model: Model,
        prompts: Tokens | Pairs,
        metrics: Metric | Sequence[Metric],
        site: str,
        by: Sequence[str],
        kind: Kind,
        options: Options,
    ):
        if unknown := options.keys() - Options.__annotations__.keys():
            raise InputError(f"no option {', '.join(unknown)} here: expected {', '.join(Options.__annotations__)}")
        model, self.kind, self.budget = with_parts(model, "an ablation"), kind, options.get("budget", BUDGET)
        alone = Alone.of(model, prompts, options.get("target"))
        where = options.get("stack"), options.get("attention", "self")
        self.plan = Plan.of(model, alone, metrics, site, by, "noise", *where)
        donors = options.get("donors")
        if donors is None and kind == "resample" and isinstance(prompts, Pairs):
            first, second = prompts.to(model.device).inputs[1]
            if prompts.reaches(self.plan.patch_site.stack):
                donors = first if second is None else (first, second)
        drawn = options.get("mean"), donors, options.get("seed", 0)
        self.instead = replacements(model, self.plan.patch_site, alone, kind, *drawn)
        self.run = PlainRun.of(model, *alone.inputs[0])
        self.values = read_values(model, self.run, self.plan.plain)
        if donors is None and kind == "resample":
            both = [(each.tokens, self.values[each.name] < 0) for each in self.plan.readouts if each.tokens is not None]
            if any(len(answers.gather(1, wrong.long()[:, None]).unique()) == 1 for answers, wrong in both):
                warn(_ONE_ANSWER, InputWarning, stacklevel=4)

    def replaced(self) -> PlainRun:
        """A run that has the replacements at the site, to patch from."""
        site = self.plan.patch_site
        run = self.run.of_stack(site.stack)
        layers = zip(self.instead, run[site.local], strict=True)
        run = run.putting(site.local, [theirs.to(plain.dtype).expand_as(plain) for theirs, plain in layers])
        return run if run.stack == self.run.stack else replace(self.run, source=run)

    def measure(self, by: Sequence[str], sets: Sequence[Sequence[Cell]]) -> Values:
        """Each metric, `set prompt`, with each set of cells ablated together."""
        tables = measure_sets(self.plan, self.run, by, sets, self.instead.__getitem__, self.budget)
        return dict(zip((readout.name for readout in self.plan.readouts), tables, strict=True))

    def listed(self, cells: Sequence[Cell], axis: str) -> Cells:
        """The metrics with each cell ablated (`cell`), or each with all before it (`step`)."""
        site, units = self.plan.patch_site, ("layer", *self.plan.patch_site.units)
        sizes = {axis: site.size(axis) or 0 for axis in units}
        if not len(cells):
            raise InputError(f"expected at least one cell ({', '.join(sizes)}) to ablate, got none")
        places = [(*cell,) if isinstance(cell, Iterable) and not is_number(cell) else (cell,) for cell in cells]
        for place in places:
            exist = [is_number(at) and -size <= at < size for at, size in zip(place, sizes.values(), strict=False)]
            if len(place) != len(sizes) or not all(exist):
                limits = ", ".join(f"{name} 0-{size - 1}" for name, size in sizes.items())
                raise InputError(f"no cell {place} of {site.site}: expected ({limits})")
        places = [tuple(int(at) % sizes[unit] for at, unit in zip(place, units, strict=True)) for place in places]
        if axis == "step" and len({*places}) != len(places):
            raise InputError(f"an order names each cell once: expected {len({*places})} cells, got {len(places)}")
        sets = [places[: at + 1] if axis == "step" else [places[at]] for at in range(len(places))]
        more = {"kind": self.kind, "cells": (*places,), "units": units}
        return replace(self.plan, by=(axis,)).cells(self.measure(units, sets), self.values, {}, **more)
