"""What does a model lose without a part of it? Heads, layers, neurons or positions lose their information.

The default replacement is the part's activation for another prompt; a corpus mean or zero are the others. Without a
part that a prompt needs the metric falls. Other parts may compensate, so the drop is a lower bound.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, TypedDict, Unpack
from warnings import warn

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from interp.devices import pick
from interp.errors import InputError, InputWarning, one_of, whole_number
from interp.indices import is_number
from interp.model import Model
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs, check_padding, text_read
from interp.patching.patch_sites import OF_ROWS, Attending, PatchSite, StackName
from interp.patching.patches import Cell, measure_sets
from interp.patching.plain import PlainRun, plain_run
from interp.patching.preparation import BUDGET, Plan, Values, read_values
from interp.patching.results import Cells
from interp.patching.sweeps import swept
from interp.running import Tokens, as_batches, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer, with_parts

Kind = Literal["resample", "mean", "zero"]
_ONE_ANSWER = (
    "the model gives all prompts the same answer, so they take little of it from each other: give pairs, whose "
    "corrupted prompts are drawn from, or prompts of another answer as donors="
)


class Options(TypedDict, total=False):
    """What every ablation takes besides its cells.

    target: what the decoder of an encoder-decoder reads; the encoder reads the prompts.
    stack, attention: as in `sweep`.
    mean: for `mean`, the result of `mean_activation` for this site; by default the mean over all tokens of the prompts.
    donors: for `resample`, prompts to draw from ((sources, targets) for an encoder-decoder); by default the pairs'
        corrupted prompts, else the other prompts, with an `InputWarning` if all have the same answer.
    seed: seeds the draw.
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
        prompts: what is run, padded on the right; from `Pairs` the clean prompts and their answers.
        metrics: what to read, one or several, with their answers (`logit_difference(" he", " she")`).
        site, by: as in `sweep`. If `scores` are ablated, keys that a query does not see stay unseen.
        kind: `resample`, the activation at the same position of another prompt, drawn for each (Chan 2022, "Causal
            scrubbing"); `mean`, over real positions of a corpus; `zero`, an unusual input that may cost something by
            itself, and the only kind for `scores` and `pattern`.
        options: see `Options`.
    """
    ablation = _Ablation(model, prompts, metrics, site, by, kind, options)
    plan = ablation.plan
    if site == "z" or (plan.patch_site.in_engine(plan.by) and not plan.patch_site.units):  # the plain run has these
        values = swept(plan, (ablation.run, ablation.replaced()), ablation.values, ablation.budget)
    else:
        values = ablation.measure(plan.by, [[cell] for cell in product(*map(range, plan.shape))])
        values = {name: value.view(*plan.shape, -1) for name, value in values.items()}
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
    """Ablate listed cells, each alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of streams.

    For the other arguments see `ablate`. The result's axis is `cell`, in the order given.
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
    """Ablate cells cumulatively: step i of the axis `step` ablates cells 0 to i of `order` together.

    For the arguments see `ablate_cells`.
    """
    return _Ablation(model, prompts, metrics, site, ("layer",), kind, options).listed(order, "step")


class _Ablation:
    """The prompts with their plain run and its metrics, and what replaces the site in each layer."""

    @torch.no_grad()
    def __init__(
        self, model: Model, prompts: Any, metrics: Any, site: str, by: Sequence[str], kind: Kind, options: Options
    ):
        if unknown := options.keys() - Options.__annotations__.keys():
            raise InputError(f"no option {', '.join(unknown)} here: expected {', '.join(Options.__annotations__)}")
        model, self.kind, self.budget = with_parts(model, "an ablation"), kind, options.get("budget", BUDGET)
        alone = _Alone.from_prompts(model, prompts, options.get("target"))
        place = options.get("stack"), options.get("attention", "self")
        self.plan = Plan.from_arguments(model, alone, metrics, site, by, "noise", *place)
        donors = options.get("donors")
        if donors is None and kind == "resample" and isinstance(prompts, Pairs):
            first, second = prompts.to(model.device).inputs[1]
            if prompts.source is None or self.plan.patch_site.stack == "decoder":  # else both are equal there
                donors = first if second is None else (first, second)
        drawing = options.get("mean"), donors, options.get("seed", 0)
        self.instead = _replacements(model, self.plan.patch_site, alone, kind, *drawing)
        self.run = plain_run(model, alone.inputs[0])
        self.values = read_values(model, self.run, self.plan.plain)
        if donors is None and kind == "resample":
            signs = ((each.tokens, self.values[each.name] < 0) for each in self.plan.readouts)
            answers = (tokens.gather(1, wrong.long()[:, None]) for tokens, wrong in signs if tokens is not None)
            if any(len(tokens.unique()) == 1 for tokens in answers):
                warn(_ONE_ANSWER, InputWarning, stacklevel=4)

    def replaced(self) -> PlainRun:
        """The plain run with its site replaced in every layer."""
        site, run = self.plan.patch_site, self.run.in_stack(self.plan.patch_site.stack)
        theirs = [value.to(plain).expand_as(plain) for value, plain in zip(self.instead, run[site.local], strict=True)]
        run = replace(run, activations=run.activations | {site.local: theirs})
        return run if run.stack == self.run.stack else replace(self.run, source=run)

    def measure(self, by: Sequence[str], sets: Sequence[Sequence[Cell]]) -> Values:
        return measure_sets(self.plan, self.run, by, sets, self.instead.__getitem__, self.budget)

    def listed(self, cells: Sequence[Cell], axis: str) -> Cells:
        site, units = self.plan.patch_site, ("layer", *self.plan.patch_site.units)
        sizes = {unit: site.size(unit) or 0 for unit in units}
        if not len(cells):
            raise InputError(f"expected at least one cell ({', '.join(sizes)}) to ablate, got none")
        tuples = [(*cell,) if isinstance(cell, Iterable) and not is_number(cell) else (cell,) for cell in cells]
        for cell in tuples:
            exist = [is_number(at) and -size <= at < size for at, size in zip(cell, sizes.values(), strict=False)]
            if len(cell) != len(sizes) or not all(exist):
                limits = ", ".join(f"{name} 0-{size - 1}" for name, size in sizes.items())
                raise InputError(f"no cell {cell} of {site.site}: expected ({limits})")
        cells = [tuple(int(at) % size for at, size in zip(cell, sizes.values(), strict=True)) for cell in tuples]
        if axis == "step" and len({*cells}) != len(cells):
            raise InputError(f"an order names each cell once: expected {len({*cells})} cells, got {len(cells)}")
        sets = [cells[: step + 1] if axis == "step" else [cells[step]] for step in range(len(cells))]
        fields = {"kind": self.kind, "cells": (*cells,), "units": units}
        return replace(self.plan, by=(axis,)).cells(self.measure(units, sets), self.values, {}, **fields)


class _Alone(Pairs):
    """Prompts without a corrupted twin, for metrics that take read positions from pairs: any position may change."""

    def __post_init__(self) -> None:
        check_padding("prompts to ablate", self.clean)
        self.check_fixed()

    @property
    def first_changed(self) -> Int[Tensor, " prompt"]:
        return torch.zeros_like(self.last)

    @staticmethod
    def from_prompts(model: Transformer, prompts: Tokens | Pairs, target: Tokens | None = None) -> "_Alone":
        if not isinstance(prompts, Pairs):
            batch, decoded = as_batches(model, prompts, target)
            return _Alone(batch, batch, target=decoded)
        if target is not None:
            raise InputError("pairs have their own targets: expected none")
        pairs = prompts.to(model.device)
        batch, decoded = pairs.inputs[0]
        return _Alone(batch, batch, pairs.right, pairs.wrong, target=decoded, positions=pairs.positions)


@torch.no_grad()
def mean_activation(
    model: Model,
    texts: Tokens | Iterable[Tokens | tuple[Tokens, Tokens]],
    site: str = "z",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Float[Tensor, "layer ..."]:
    """The mean of a site over all real positions of texts, with one text or batch in memory at a time.

    It is `layer head d_head` for `z`, `layer d_mlp` for `mlp.post`, `layer d_model` for the stream. `texts` are one or
    more texts or batches (`TokenBatch`, or ids); for an encoder-decoder pairs (sources, targets). For the other
    arguments see `ablate`.
    """
    patch_site = PatchSite.from_name(model, site, stack=stack, attention=attention)
    _check_kind(patch_site.site, "mean")
    return _mean(model, patch_site, [texts] if isinstance(texts, str | Tensor | TokenBatch) else texts)


def _check_kind(site: str, kind: str) -> None:
    if kind != "zero" and site in OF_ROWS:
        raise InputError(f"cannot ablate {site!r} by kind={kind!r}: prompts differ in their keys; expected 'zero'")


def _mean(model: Model, patch_site: PatchSite, texts: Iterable[Any]) -> Float[Tensor, "layer ..."]:
    two, total, count = len(model.config.stacks) > 1, torch.zeros((), dtype=torch.float64), 0
    for text in texts:
        if two and (not isinstance(text, tuple) or len(text) != 2):
            raise InputError("this model reads two texts: expected (sources, targets), one such pair or more")
        first, second = text if two else (text, None)
        out = run(model, first, capture=patch_site.names, target=second)
        mask = text_read((out.tokens, out.target), patch_site.counted("position")).mask
        # double precision: a long corpus must not lose its last batches to rounding
        sums = torch.stack([pick(out[name], (mask,)).double().sum(0) for name in patch_site.names])
        total = sums + total.to(model.device)
        count += int(mask.sum())
    if not count:
        raise InputError("a mean needs at least one text: got none")
    return (total / count).to(model.dtype)


def _replacements(
    model: Transformer, patch_site: PatchSite, prompts: Pairs, kind: Kind, mean: Tensor | None, donors: Any, seed: int
) -> list[Tensor]:
    """What replaces a site's activations in each layer (see `ablate`); it broadcasts to `prompt ...`."""
    one_of("kind", kind, Kind)
    for name, value, user in [("mean", mean, "mean"), ("donors", donors, "resample")]:
        if value is not None and kind != user:
            raise InputError(f"{name}= is not used by kind={kind!r}: leave it out")
    _check_kind(patch_site.site, kind)
    if kind == "zero":
        return [torch.zeros((), device=model.device)] * patch_site.n_layers
    if kind == "resample":
        return _resampled(model, patch_site, prompts, donors, seed)
    first, second = prompts.inputs[0]
    mean = _mean(model, patch_site, [first if second is None else (first, second)]) if mean is None else mean
    expected = (patch_site.n_layers, *patch_site.sizes[1:])
    if mean.shape != expected:
        raise InputError(f"the mean of {patch_site.site} must have shape {expected}, got {tuple(mean.shape)}")
    return list(mean.to(model.device))


def _resampled(model: Transformer, patch_site: PatchSite, prompts: Pairs, donors: Any, seed: int) -> list[Tensor]:
    two = len(model.config.stacks) > 1
    if donors is not None and two and not isinstance(donors, tuple):
        raise InputError("this model reads two texts: expected donors=(sources, targets)")
    texts: Any = donors if two else (donors, None)
    inputs = prompts.inputs[0] if donors is None else as_batches(model, *texts)
    stack = patch_site.counted("position")
    donor_batch, batch = text_read(inputs, stack), prompts.read_by(stack)
    check_padding("donors", donor_batch)
    fits = (donor_batch.lengths[None] >= batch.lengths[:, None]).cpu()  # a donor is at least as long as its prompt
    if donors is None:
        fits.fill_diagonal_(False)
    if not bool(fits.any(1).all()):
        prompt = int((~fits.any(1)).nonzero()[0])
        advice = "give longer ones as donors=, or ablate by kind='mean'"
        raise InputError(f"no other prompt has the {int(batch.lengths[prompt])} tokens of prompt {prompt}: {advice}")
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    draw = torch.multinomial(fits.float(), 1, generator=generator)[:, 0].to(batch.lengths.device)
    width = batch.ids.shape[1]  # no prompt is longer than its donor; columns beyond both hold padding
    out = run(model, inputs[0], capture=patch_site.names, target=inputs[1])
    values = [out[name][draw.to(out[name].device)] for name in patch_site.names]  # negative padding (below) crops
    return [F.pad(value, [0, 0] * (value.ndim - 2) + [0, width - value.shape[1]]) for value in values]
