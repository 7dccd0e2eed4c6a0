"""Which cells matter, estimated from gradients? All cells of all sites at the price of three passes over the prompts.

Attribution patching (Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale") replaces a patch by
its first-order effect: what another prompt would put there less what is there, times the metric's gradient there. It is
exact where the way from the cell to the metric is linear. It fails in two known ways, which AtP* (Kramár 2024,
arXiv:2403.00745) repairs: a saturated softmax hides queries and keys (the QK fix computes the patched pattern itself),
and effects along different paths cancel to first order (GradDrop closes one layer's paths at a time).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.display import DataFrame, Figure, Shown, so_many
from interp.errors import InputError
from interp.model import Model
from interp.patching.cell_tables import ESTIMATED
from interp.patching.gradients.qk_fix import qk_fixed
from interp.patching.gradients.tape import BUDGET, Tape, record, some, split
from interp.patching.metrics import Metric, Readout, prepared, with_answers
from interp.patching.named_positions import cells_of, check_names, ordered
from interp.patching.pairs import Inputs, Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName, site_name
from interp.patching.results import Cells, Direction, checked_direction
from interp.patching.sweeps import check_reach
from interp.sites import sites as sites_of
from interp.statistics import benjamini_hochberg
from interp.transformer import Transformer, with_parts
from interp.visibility import Source, Visibility

Sites = Mapping[str, Sequence[str]]
_OUTPUTS = ("attn_out", "cross_attn_out", "mlp_out")  # what a layer adds to the stream
_WHERE = ("stack", "attention", "site", "layer", "head", "neuron", "expert", "position", "query", "key")


class SiteEstimates(dict[str, Cells], Shown):
    """Estimates by site, `found["z"]` or `found.items()`: each `Cells`, in one table together."""

    __repr__ = Shown.__repr__

    def table(self, *, seed: int = 0) -> DataFrame:
        """The rows of all sites' tables, each axis that a site lacks missing; `q` is over all of them.

        Args:
            seed: of the intervals' resampling.
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        table = pd.concat([cells.table(seed=seed) for cells in self.values()], ignore_index=True)
        table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
        first = [axis for axis in _WHERE if axis in table]
        for axis in first:
            if pd.api.types.is_float_dtype(table[axis]):  # some site lacks it
                table[axis] = table[axis].astype("Int64")
        numbers = [name for name in ESTIMATED if name in table]
        return table.loc[:, [*first, *(name for name in table if name not in {*first, *numbers}), *numbers]]

    def figure(self, site: str | None = None, **how: Any) -> Figure:
        """The figure of one site, by default of the first.

        Args:
            site: which.
            how: of `Cells.figure`: `metric`, `kind`, `title`, `width`, `font_size`, `ax`, ...

        Raises:
            InputError: there is no such site, metric or kind.
        """
        if site is not None and site not in self:
            raise InputError(f"these estimates have no site {site!r}: expected {' or '.join(self)}")
        return self[next(iter(self)) if site is None else site].figure(**how)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The largest estimates of each site and metric."""
        first = next(iter(self.values()))
        facts = {
            f"largest of {site} on {metric}": cells.largest(metric)
            for site, cells in self.items()
            for metric in cells.values
        }
        kind = "Estimated magnitudes" if first.kind == "magnitudes" else "Estimated effects"
        prompts = next(iter(first.values.values())).shape[-1]
        return f"{kind}, {first.direction}: {so_many(len(self), 'site')}, over {so_many(prompts, 'prompt')}", facts


def attribution_patching(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    sites: Sites,
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    qk_fix: bool = False,
    budget: int = BUDGET,
) -> SiteEstimates:
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
        SiteEstimates: by site `Cells`, its values the unpatched prompt's value plus the estimate, so that all that is
        made of an exact sweep can be made of it; and of all of them a table.

    Raises:
        InputError: no such site or axis, a metric without a gradient or without one number a prompt, a budget too
            small for one prompt.
    """
    plan = _Plan(with_parts(model, "attribution patching"), pairs, metrics, sites, direction, stack, attention, qk_fix)
    estimates, own, other = plan.totals(budget)
    clean, corrupt = (other, own) if plan.direction == "denoise" else (own, other)
    tables = {site: {name: own[name] + value for name, value in each.items()} for site, each in estimates.items()}
    return plan.cells(tables, clean, corrupt)


def atp_star(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    sites: Sites,
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    budget: int = BUDGET,
) -> SiteEstimates:
    """AtP* (Kramár 2024): attribution patching with the QK fix and GradDrop, as magnitudes.

    For each layer in turn, of all stacks, one backward pass lets no gradient through what the layer adds to the stream,
    only past it. A cell's magnitude is the mean of the absolute estimates over these passes (equation 11), which keeps
    a cell whose paths cancel. The pass that drops a cell's own layer finds nothing, so the sum is divided by one less
    than the number of layers; the residual stream (`resid_*`) lies beside all layers and is divided by it whole.

    Arguments are those of `attribution_patching`.

    Returns:
        SiteEstimates: by site `Cells` of magnitudes, never negative: a mean of absolute values has no direction. It
            ranks cells for a closer look and is no share of anything.

    Raises:
        InputError: as `attribution_patching`, or a model of one layer, of which none can be dropped.
    """
    model = with_parts(model, "AtP*")
    layers = [(name, layer) for name, config in model.config.stacks.items() for layer in range(config.n_layers)]
    if len(layers) < 2:
        raise InputError("GradDrop leaves out one layer at a time: expected a model of at least 2 layers, got 1")
    plan = _Plan(model, pairs, metrics, sites, direction, stack, attention, qk_fix=True)
    totals, *_ = plan.totals(budget, layers)
    passes = {site: len(layers) - (not site.startswith("resid")) for site in totals}
    tables = {site: {name: total / passes[site] for name, total in each.items()} for site, each in totals.items()}
    return plan.cells(tables, {}, {}, kind="magnitudes")


Numbers = dict[str, Float[Tensor, "... prompt"]]  # by metric


class _Plan:
    """The checked arguments. For the QK fix `patch_sites` has those that it needs beside the sites to estimate."""

    def __init__(
        self,
        model: Transformer,
        pairs: Pairs,
        metrics: Metric | Sequence[Metric],
        sites: Sites,
        direction: Direction,
        stack: str | None,
        attention: str,
        qk_fix: bool,
    ):
        if not isinstance(sites, Mapping) or not sites:
            raise InputError(f'expected the axes of each site, {{"z": ("layer", "head")}}; got {sites!r}')
        self.model, self.pairs = model, pairs
        self.direction: Direction = checked_direction(direction)
        self.by = {site: tuple(by) for site, by in sites.items()}
        self.patch_sites = {site: PatchSite.of(model, site, by, stack, attention) for site, by in self.by.items()}
        for site, patch_site in self.patch_sites.items():
            check_reach(pairs, patch_site)
            check_names(pairs, patch_site, self.by[site])
            if site == "logits":
                raise InputError("the logits are what metrics read: expected sites before them")
        self.qk_fix = qk_fix and bool({"q", "k"} & {*self.by})
        for site in ("q", "k", "pattern") if self.qk_fix else ():
            self.patch_sites[site] = PatchSite.of(model, site, ("layer",), stack, attention)
        self.readouts = prepared(model, pairs, metrics)
        self.base, self.source = ordered(pairs, self.direction)

    def cells(self, tables: Mapping[str, Numbers], clean: Numbers, corrupt: Numbers, **more: Any) -> SiteEstimates:
        """Tables of values by site as cells."""
        made = SiteEstimates()
        for site, values in tables.items():
            place, direction = self.patch_sites[site], self.direction
            made[site] = cells_of(
                self.model, self.pairs, place, self.by[site], direction, values, clean, corrupt, **more
            )
        return made

    def totals(
        self, budget: int, dropped: Sequence[tuple[str, int]] = ()
    ) -> tuple[dict[str, Numbers], Numbers, Numbers]:
        """Each site's estimates by metric, or sums of their sizes over passes that each drop a layer.

        With them come the metrics of the prompts that are changed, and of those that the change comes from.
        """
        weight, plain = self.model.last.embed.token.weight, with_answers(self.model, self.pairs, self.readouts)
        own, other = ({each.name: weight.new_zeros(len(self.pairs)).detach() for each in plain} for _ in range(2))
        shapes = {site: self.patch_sites[site].shape(self.pairs, by) for site, by in self.by.items()}
        found = {
            site: {each.name: own[each.name].expand(*shape, -1).clone() for each in self.readouts}
            for site, shape in shapes.items()
        }
        rows = self.qk_fix or bool({"pattern", "scores"} & {*self.by})
        for prompts in split(self.model, self.pairs, budget, rows=rows):
            readouts = [readout.take(prompts) for readout in plain]
            with torch.no_grad():
                source = record(self.model, some(self.source, prompts), readouts, self._names())
            for drop in dropped or (None,):
                tape = self._tape(some(self.base, prompts), readouts, drop)
                for name in own:
                    own[name][prompts], other[name][prompts] = tape.values[name].detach(), source.values[name]
                for name in (each.name for each in self.readouts):
                    for site, estimate in self._estimates(tape, source, name).items():
                        found[site][name][..., prompts] += estimate if drop is None else estimate.abs()
        return found, own, other

    def _names(self) -> list[str]:
        """What to capture, in both runs alike: they use the same kernels, and what is equal differs by exactly 0."""
        return [name for site in sorted(self.patch_sites) for name in self.patch_sites[site].names]

    def _tape(self, inputs: Inputs, readouts: list[Readout], dropped: tuple[str, int] | None) -> Tape:
        """The prompts' own pass, to be differentiated; what layer `dropped` adds to the stream counts as constant."""
        outputs = [] if dropped is None else [site_name(*dropped, out) for out in _OUTPUTS]
        closed = {name: Tensor.detach for name in outputs if name in sites_of(self.model)}
        with torch.enable_grad():
            return record(self.model, inputs, readouts, self._names(), closed)

    def _estimates(self, tape: Tape, source: Tape, metric: str) -> Numbers:
        """First-order effects on one metric of all cells, by site, from one backward pass."""
        fixed = {"q", "k"} if self.qk_fix else set()
        # to differentiate at
        at = {site: self.patch_sites["pattern" if site in fixed else site].names for site in self.by}
        gradients = tape.gradients(metric, [*dict.fromkeys(name for names in at.values() for name in names)])
        found = {}
        for site, names in at.items():
            moved = self._fixed if site in fixed else self._change
            products = [moved(tape, source, site, layer, gradients[name]) for layer, name in enumerate(names)]
            found[site] = torch.stack([_cells(each, self.patch_sites[site].axes, self.by[site]) for each in products])
        return found

    def _change(self, tape: Tape, source: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """Difference times gradient of every entry, on the site's axes after `prompt`."""
        name = self.patch_sites[site].name(layer)
        difference = source.seen[name] - tape.seen[name].detach()
        if site == "scores":
            difference = difference.nan_to_num()  # a masked key is at -inf in both
        return difference * gradient

    def _fixed(self, tape: Tape, source: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """The same of queries or keys whose patched pattern is computed; it has no `d_head`."""
        patch_site, by = self.patch_sites[site], self.by[site]
        ours, theirs = (
            {part: run.seen[self.patch_sites[part].name(layer)].detach() for part in ("q", "k")}
            for run in (tape, source)
        )
        block, (batch, target) = self.model.stack(patch_site.stack).blocks[layer], tape.inputs
        attn, asking = block.attn, batch if target is None or patch_site.stack == "encoder" else target
        visibility = Visibility.of(asking, causal=patch_site.causal)
        if patch_site.attention == "cross":
            assert block.cross_attn is not None
            attn, visibility = block.cross_attn, Source.of(ours["k"].flatten(-2), batch).seen_by(visibility)
        return qk_fixed(attn, visibility, site, ours, theirs, gradient, alone="position" in by, by_head="head" in by)


def _cells(products: Tensor, axes: Sequence[str], by: Sequence[str]) -> Float[Tensor, "*cells prompt"]:
    """Sums over the axes that `by` does not name; what is left, in its order, before `prompt`."""
    axes = axes[: products.ndim - 1]
    kept = [axis for axis in axes if axis in by]
    dropped = [place for place, axis in enumerate(axes, 1) if axis not in by]
    summed = products.sum(dropped) if dropped else products
    return summed.permute(*(1 + kept.index(axis) for axis in by[1:]), 0)
