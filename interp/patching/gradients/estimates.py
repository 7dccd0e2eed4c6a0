"""Which cells matter, estimated from gradients? All cells of all sites at the price of three passes over the prompts.

Attribution patching (Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale") replaces a patch by
its first-order effect: what another prompt would put there less what is there, times the metric's gradient there. It is
exact where the way from the cell to the metric is linear. It fails in two known ways, which AtP* (Kramár 2024,
arXiv:2403.00745) repairs: a saturated softmax hides queries and keys (the QK fix computes the patched pattern itself),
and effects along different paths cancel to first order (GradDrop closes one layer's paths at a time).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.errors import InputError
from interp.patching.gradients.qk_fix import qk_fixed
from interp.patching.gradients.tape import BUDGET, Tape, prepare, record, some, split
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Inputs, Pairs
from interp.patching.results import Direction, Sweep
from interp.patching.spots import Spot, site_name
from interp.patching.sweeping.lots import sizes
from interp.patching.sweeping.sweep import blank_beyond, check_reach
from interp.places import sites as sites_of
from interp.sight import Sight
from interp.transformer import Transformer

Sites = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Magnitudes:
    """How large the effect of each cell may be, without its sign: one value a cell and prompt, in the metric's unit.

    A mean of absolute values has no direction: it ranks cells for a closer look and is no share of anything. Cells lie
    on `axes`; positions beyond a prompt's text are NaN.
    """

    site: str
    direction: Direction
    axes: tuple[str, ...]
    values: dict[str, Float[Tensor, "*cells prompt"]]

    def mean(self, metric: str | None = None) -> Float[Tensor, "*cells"]:
        """The mean over prompts, of the first metric by default: the contribution c of Kramár 2024, equation 11."""
        name = next(iter(self.values)) if metric is None else metric
        if name not in self.values:
            raise InputError(f"these magnitudes have no metric {metric!r}: they have {', '.join(self.values)}")
        return self.values[name].nanmean(-1)


def attribution_patching(
    model: Transformer,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    sites: Sites,
    direction: Direction = "denoise",
    *,
    stack: str | None = None,
    attention: str = "self",
    qk_fix: bool = False,
    budget: int = BUDGET,
) -> dict[str, Sweep]:
    """Estimate what `sweep` measures, for several sites from one backward pass a metric.

    attribution_patching(model, pairs, logit_difference(), {"z": ("layer", "head"), "resid_pre": ("layer", "position")})

    A cell's estimate is the sum over its entries of (other prompt's activation - own) x gradient at the own prompt.

    Args:
        model: a transformer with an output layer.
        pairs: clean and corrupted prompts.
        metrics: what to read; it must have a gradient. At the clean prompts (`noise`) that of `kl_divergence` is 0.
        sites: for each site, its cells' axes; both as in `sweep`.
        direction: `denoise` differentiates at the corrupted prompts, `noise` at the clean ones.
        stack, attention: as in `sweep`.
        qk_fix: for `q` and `k`, compute the pattern that the patched cell gives and take that difference times the
            gradient at the pattern, so that the softmax is not linearised (Kramár 2024, section 3.1).
        budget: bytes of activations that one pass may hold; prompts go through in as many parts as that takes.

    Returns:
        dict: a site's `Sweep`, its values the unpatched prompt's value plus the estimate, so that all that is made of
        an exact sweep can be made of it.

    Raises:
        InputError: no such site or axis, a metric without a gradient or without one number a prompt, a budget too
            small for one prompt.
    """
    plan = _Plan.of(model, pairs, metrics, sites, direction, (stack, attention), qk_fix=qk_fix)
    estimates, clean, corrupt = plan.tables(), plan.numbers(), plan.numbers()
    own, other = (corrupt, clean) if direction == "denoise" else (clean, corrupt)
    for part in plan.parts(budget):
        tape = part.tape()
        for readout in part.readouts:
            own[readout.name][part.prompts] = tape.values[readout.name].detach()
            other[readout.name][part.prompts] = part.source.values[readout.name]
            for site, estimate in part.estimates(tape, readout.name).items():
                estimates[site][readout.name][..., part.prompts] = estimate
    return {
        site: Sweep(
            site,
            direction,
            plan.sites[site],
            plan.blanked(site, {name: own[name] + value for name, value in tables.items()}),
            clean,
            corrupt,
            plan.spot(site).stack,
            plan.spot(site).attention,
        )
        for site, tables in estimates.items()
    }


def atp_star(
    model: Transformer,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    sites: Sites,
    direction: Direction = "denoise",
    *,
    stack: str | None = None,
    attention: str = "self",
    budget: int = BUDGET,
) -> dict[str, Magnitudes]:
    """AtP* (Kramár 2024): attribution patching with the QK fix and GradDrop, as magnitudes.

    For each layer in turn, of all stacks, one backward pass lets no gradient through what the layer adds to the stream,
    only past it. A cell's magnitude is the mean of the absolute estimates over these passes (equation 11), which keeps
    a cell whose paths cancel. The pass that drops a cell's own layer finds nothing, so the sum is divided by one less
    than the number of layers; the residual stream (`resid_*`) lies beside all layers and is divided by it whole.

    Arguments are those of `attribution_patching`.

    Returns:
        dict: a site's `Magnitudes`, values `*cells prompt`, never negative.

    Raises:
        InputError: as `attribution_patching`, or a model of one layer, of which none can be dropped.
    """
    layers = [(name, layer) for name, config in model.config.stacks.items() for layer in range(config.n_layers)]
    n_layers = len(layers)
    if n_layers < 2:
        raise InputError("GradDrop leaves out one layer at a time: expected a model of at least 2 layers, got 1")
    plan = _Plan.of(model, pairs, metrics, sites, direction, (stack, attention), qk_fix=True)
    totals = plan.tables()
    for part in plan.parts(budget):
        for dropped in layers:
            tape = part.tape(dropped)
            for readout in part.readouts:
                for site, estimate in part.estimates(tape, readout.name).items():
                    totals[site][readout.name][..., part.prompts] += estimate.abs()
    passes = {site: n_layers if site.startswith("resid") else n_layers - 1 for site in sites}
    return {
        site: Magnitudes(
            site,
            direction,
            plan.sites[site],
            plan.blanked(site, {name: total / passes[site] for name, total in tables.items()}),
        )
        for site, tables in totals.items()
    }


@dataclass(frozen=True)
class _Plan:
    """What is asked, checked."""

    model: Transformer
    pairs: Pairs
    readouts: list[Readout]
    base: Inputs
    source: Inputs
    sites: dict[str, tuple[str, ...]]
    where: tuple[str | None, str]  # the stack, and which attention
    qk_fix: bool

    @staticmethod
    def of(
        model: Transformer,
        pairs: Pairs,
        metrics: Metric | Sequence[Metric],
        sites: Sites,
        direction: Direction,
        where: tuple[str | None, str],
        *,
        qk_fix: bool,
    ) -> "_Plan":
        if not isinstance(sites, Mapping) or not sites:
            raise InputError(f'expected the axes of each site, {{"z": ("layer", "head")}}; got {sites!r}')
        sites = {site: tuple(by) for site, by in sites.items()}
        for site, by in sites.items():
            check_reach(model, pairs, Spot.of(model, site, by, *where))
        return _Plan(model, pairs, *prepare(model, pairs, metrics, direction), sites, where, qk_fix)

    def spot(self, site: str) -> Spot:
        """The site in its stack."""
        return Spot.of(self.model, site, ("layer",), *self.where)

    def tables(self) -> dict[str, dict[str, Float[Tensor, "*cells prompt"]]]:
        """Zeros for every site, metric, cell and prompt."""
        found = {}
        for site, by in self.sites.items():
            shape = sizes(self.pairs, self.spot(site), by)
            found[site] = {name: number.expand(*shape, -1).clone() for name, number in self.numbers().items()}
        return found

    def numbers(self) -> dict[str, Float[Tensor, " prompt"]]:
        """A zero for every metric and prompt."""
        weight = self.model.last.embed.token.weight
        return {readout.name: weight.new_zeros(len(self.pairs)).detach() for readout in self.readouts}

    def blanked(self, site: str, tables: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same tables, NaN at positions beyond a prompt's own text."""
        blank_beyond(tables, self.sites[site], self.pairs, self.spot(site))
        return tables

    def parts(self, budget: int) -> "Iterator[_Part]":
        """Prompts that fit together, both runs made."""
        rows = bool({"q", "k"} & {*self.sites}) if self.qk_fix else bool({"pattern", "scores"} & {*self.sites})
        for prompts in split(self.model, self.pairs, budget, rows=rows):
            yield self._part(prompts)

    def _part(self, prompts: Int[Tensor, " prompt"]) -> "_Part":
        readouts, source = [readout.take(prompts) for readout in self.readouts], some(self.source, prompts)
        with torch.no_grad():
            tape = record(self.model, source, readouts, self.names())
        return _Part(self, prompts, readouts, some(self.base, prompts), tape)

    def names(self) -> list[str]:
        """What to capture, in both runs alike: they use the same kernels, and what is equal differs by exactly 0."""
        wanted = {*self.sites}
        if self.qk_fix and {"q", "k"} & wanted:
            wanted |= {"q", "k", "pattern"}
        return [name for site in sorted(wanted) for name in self.layers(site)]

    def layers(self, site: str) -> list[str]:
        """The site's full name in each layer."""
        return self.spot(site).names


@dataclass(frozen=True)
class _Part:
    """Some of the prompts; what the change comes from is run."""

    plan: _Plan
    prompts: Int[Tensor, " prompt"]
    readouts: list[Readout]
    base: Inputs
    source: Tape

    def tape(self, dropped: tuple[str, int] | None = None) -> Tape:
        """The prompts' own pass, to be differentiated; what layer `dropped` adds to the stream counts as constant."""
        plan = self.plan
        closed = {} if dropped is None else {out: Tensor.detach for out in _outputs(plan.model, *dropped)}
        with torch.enable_grad():
            return record(plan.model, self.base, self.readouts, plan.names(), closed)

    def estimates(self, tape: Tape, metric: str) -> dict[str, Float[Tensor, "*cells prompt"]]:
        """First-order effects on one metric of all cells of all sites, from one backward pass."""
        plan = self.plan
        fixed = {"q", "k"} if plan.qk_fix else set()
        at = {site: plan.layers("pattern" if site in fixed else site) for site in plan.sites}  # where to differentiate
        gradients = tape.gradients(metric, [*dict.fromkeys(name for names in at.values() for name in names)])
        found = {}
        for site, by in plan.sites.items():
            axes = plan.spot(site).axes
            products = (self._products(tape, site, layer, gradients[name]) for layer, name in enumerate(at[site]))
            found[site] = torch.stack([_cells(each, axes, by) for each in products])
        return found

    def _products(self, tape: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """Difference times gradient of every entry, on the site's axes after `prompt`; the QK fix has no `d_head`."""
        plan = self.plan
        name = plan.layers(site)[layer]
        if plan.qk_fix and site in {"q", "k"}:
            ours, theirs = (
                {part: run.seen[plan.layers(part)[layer]].detach() for part in ("q", "k")}
                for run in (tape, self.source)
            )
            by = plan.sites[site]
            how = {"alone": "position" in by, "by_head": "head" in by}
            return qk_fixed(*self._attention(layer), site, ours, theirs, gradient, **how)
        difference = self.source.seen[name] - tape.seen[name].detach()
        if site == "scores":
            difference = difference.nan_to_num()  # a masked key is at -inf in both
        return difference * gradient

    def _attention(self, layer: int) -> tuple[Attention, Sight]:
        """Where the plan's queries meet its keys, and who sees whom."""
        stack, (batch, target) = self.plan.spot("q").stack, self.base
        block = self.plan.model.stack(stack).blocks[layer]
        asking = batch if target is None or stack == "encoder" else target
        sight = Sight.of(asking, causal=block.attn.config.causal)
        if self.plan.where[1] == "self":
            return block.attn, sight
        assert block.cross_attn is not None
        padding = batch.mask if batch.padded else None
        n_keys = batch.ids.shape[1]
        return block.cross_attn, Sight(sight.positions, sight.columns, n_keys, False, padding, False, across=True)


def _outputs(model: Transformer, stack: str, layer: int) -> list[str]:
    """What a layer adds to the stream."""
    known = sites_of(model)
    names = [site_name(stack, layer, part) for part in ("attn_out", "cross_attn_out", "mlp_out")]
    return [name for name in names if name in known]


def _cells(products: Tensor, axes: Sequence[str], by: Sequence[str]) -> Float[Tensor, "*cells prompt"]:
    """Sums over the axes that `by` does not name; what is left, in its order, before `prompt`."""
    axes = axes[: products.ndim - 1]
    kept = [axis for axis in axes if axis in by]
    dropped = [place for place, axis in enumerate(axes, 1) if axis not in by]
    summed = products.sum(dropped) if dropped else products
    return summed.permute(*(1 + kept.index(axis) for axis in by[1:]), 0)
