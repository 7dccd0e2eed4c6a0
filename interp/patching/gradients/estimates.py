"""Which cells matter, estimated from gradients? All cells of all sites at the price of three passes over the prompts.

Attribution patching (Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale") replaces a patch by
its first-order effect: what another prompt would put there less what is there, times the metric's gradient there. It is
exact where the way from the cell to the metric is linear. It fails in two known ways, which AtP* (Kramár 2024,
arXiv:2403.00745) repairs: a saturated softmax has hardly a gradient, although another prompt's query may turn the
pattern wholly (the QK fix, section 3.1, computes the patched pattern itself, and takes only what follows to first
order), and effects along different paths cancel to first order (GradDrop closes one layer's paths at a time).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.display import DataFrame, Figure, Shown, so_many
from interp.errors import InputError
from interp.model import Model
from interp.model import sites as sites_of
from interp.patching.cell_tables import ESTIMATED
from interp.patching.gradients.tape import BUDGET, Tape, record, some, split
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs, text_read
from interp.patching.patch_sites import Attending, PatchSite, StackName, site_name
from interp.patching.preparation import Plan, Values
from interp.patching.results import Cells, Direction
from interp.statistics import benjamini_hochberg
from interp.transformer import Transformer, with_parts
from interp.visibility import Source, Visibility

Sites = Mapping[str, Sequence[str]]
Pattern = Float[Tensor, "prompt head query key"]
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
    model = with_parts(model, "attribution patching")
    call = _Estimates(model, pairs, metrics, sites, direction, stack, attention, qk_fix)
    estimates, own, other = call.totals(budget)
    tables = {site: {name: own[name] + value for name, value in each.items()} for site, each in estimates.items()}
    return call.cells(tables, own, other)


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
    call = _Estimates(model, pairs, metrics, sites, direction, stack, attention, qk_fix=True)
    totals, *_ = call.totals(budget, layers)
    passes = {site: len(layers) - (not site.startswith("resid")) for site in totals}
    tables = {site: {name: total / passes[site] for name, total in each.items()} for site, each in totals.items()}
    return call.cells(tables, {}, {}, kind="magnitudes")


class _Estimates:
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
        if "logits" in sites:
            raise InputError("the logits are what metrics read: expected sites before them")
        self.model, self.pairs = model, pairs
        self.plans = {
            site: Plan.of(model, pairs, metrics if at == 0 else [], site, by, direction, stack, attention)
            for at, (site, by) in enumerate(sites.items())
        }
        self.readouts, self.plain = next((plan.readouts, plan.plain) for plan in self.plans.values())
        self.base, self.source = next(iter(self.plans.values())).inputs
        self.patch_sites = {site: plan.patch_site for site, plan in self.plans.items()}
        self.qk_fix = qk_fix and bool({"q", "k"} & {*sites})
        for site in ("q", "k", "pattern") if self.qk_fix else ():
            self.patch_sites[site] = PatchSite.of(model, site, ("layer",), stack, attention)

    def cells(self, tables: Mapping[str, Values], own: Values, other: Values, **more: Any) -> SiteEstimates:
        """Tables of values by site as cells."""
        return SiteEstimates(
            (site, plan.cells({name: plan.by_name(table) for name, table in tables[site].items()}, own, other, **more))
            for site, plan in self.plans.items()
        )

    def totals(self, budget: int, dropped: Sequence[tuple[str, int]] = ()) -> tuple[dict[str, Values], Values, Values]:
        """Each site's estimates by metric, or sums of their sizes over passes that each drop a layer.

        What a dropped layer adds to the stream counts as constant. With them come the metrics of the prompts that are
        changed, and of those that the change comes from.
        """
        weight = self.model.last.embed.token.weight
        own, other = ({each.name: weight.new_zeros(len(self.pairs)).detach() for each in self.plain} for _ in range(2))
        totals = {
            site: {each.name: own[each.name].expand(*plan.shape, -1).clone() for each in self.readouts}
            for site, plan in self.plans.items()
        }
        # captured in both runs alike: they use the same kernels, and what is equal differs by exactly 0
        names = [name for site in sorted(self.patch_sites) for name in self.patch_sites[site].names]
        for prompts in split(self.model, self.pairs, budget, rows=bool({"pattern", "scores"} & {*self.patch_sites})):
            readouts = [readout.take(prompts) for readout in self.plain]
            with torch.no_grad():
                source = record(self.model, some(self.source, prompts), readouts, names)
            for drop in dropped or (None,):
                outputs = [] if drop is None else [site_name(*drop, out) for out in _OUTPUTS]
                closed = {name: Tensor.detach for name in outputs if name in sites_of(self.model)}
                with torch.enable_grad():
                    tape = record(self.model, some(self.base, prompts), readouts, names, closed)
                for name in own:
                    own[name][prompts], other[name][prompts] = tape.values[name].detach(), source.values[name]
                for name in (each.name for each in self.readouts):
                    for site, estimate in self._estimates(tape, source, name).items():
                        totals[site][name][..., prompts] += estimate if drop is None else estimate.abs()
        return totals, own, other

    def _estimates(self, tape: Tape, source: Tape, metric: str) -> Values:
        """First-order effects on one metric of all cells, by site, from one backward pass."""
        fixed = {"q", "k"} if self.qk_fix else set()
        # to differentiate at
        at = {site: self.patch_sites["pattern" if site in fixed else site].names for site in self.plans}
        gradients = tape.gradients(metric, [*dict.fromkeys(name for names in at.values() for name in names)])
        effects = {}
        for site, names in at.items():
            changed, axes, by = (
                self._fixed if site in fixed else self._change,
                self.patch_sites[site].axes,
                self.plans[site].by,
            )
            layers = []
            for layer, name in enumerate(names):
                products = changed(tape, source, site, layer, gradients[name])
                kept = " ".join(axes[: products.ndim - 1])
                layers.append(reduce(products, f"prompt {kept} -> {' '.join(by[1:])} prompt", "sum"))
            effects[site] = torch.stack(layers)
        return effects

    def _change(self, tape: Tape, source: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """Difference times gradient of every entry, on the site's axes after `prompt`."""
        name = self.patch_sites[site].name(layer)
        difference = source.seen[name] - tape.seen[name].detach()
        if site == "scores":
            difference = difference.nan_to_num()  # a masked key is at -inf in both
        return difference * gradient

    def _fixed(self, tape: Tape, source: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """The same of queries or keys whose patched pattern is computed; it has no `d_head`."""
        patch_site, by = self.patch_sites[site], self.plans[site].by
        ours, theirs = (
            {part: run.seen[self.patch_sites[part].name(layer)].detach() for part in ("q", "k")}
            for run in (tape, source)
        )
        block, batch = self.model.stack(patch_site.stack).blocks[layer], tape.inputs[0]
        attn, visibility = block.attn, Visibility.of(text_read(tape.inputs, patch_site.stack), causal=patch_site.causal)
        if patch_site.attention == "cross":
            assert block.cross_attn is not None
            attn, visibility = block.cross_attn, Source.of(ours["k"].flatten(-2), batch).seen_by(visibility)
        return _qk_fixed(attn, visibility, site, ours, theirs, gradient, alone="position" in by, by_head="head" in by)


def _qk_fixed(
    attn: Attention,
    visibility: Visibility,
    site: str,
    base: Mapping[str, Tensor],
    source: Mapping[str, Tensor],
    gradient: Pattern,
    *,
    alone: bool,
    by_head: bool,
) -> Float[Tensor, "prompt position site_head"]:
    """Effects of patched queries or keys: (new pattern - own) x gradient at the pattern, summed over what each moves.

    Queries are patched at all positions: each has a row of the pattern to itself. Keys share rows, so with `alone` each
    key position is patched alone (Kramár 2024, algorithm 4), else all together; then `position` is the query's. `base`
    and `source` are both prompts' `q` and `k`; heads matter (`by_head`) where they are normalised together, so that one
    moves every pattern.
    """
    own = _scores(attn, base["q"], base["k"], visibility)

    def moved(patched: Mapping[str, Tensor]) -> Float[Tensor, "prompt head position"]:
        scores = _scores(attn, patched["q"], patched["k"], visibility)
        if site == "k" and alone:
            return _one_key_patched(own, scores, gradient).sum(-2)
        return ((attn.pattern(scores) - attn.pattern(own)) * gradient).sum(-1)

    if attn.config.qk_norm == "all" and by_head:
        together = []
        for head in range(base[site].shape[-2]):
            mixed = base[site].clone()
            mixed[..., head, :] = source[site][..., head, :]
            together.append(moved({**base, site: mixed}).sum(1))
        return torch.stack(together, -1)
    found = moved({**base, site: source[site]})
    if site == "k":  # a key moves the rows of all query heads that share it
        found = found.unflatten(1, (attn.config.kv_heads, -1)).sum(2)
    return found.transpose(1, 2)


def _scores(attn: Attention, q: Tensor, k: Tensor, visibility: Visibility) -> Pattern:
    """Scores of queries against keys, both before norm and rotation."""
    at = (
        visibility.positions if not visibility.across else visibility.positions.new_zeros(1, k.shape[1])
    )  # where nothing turns keys
    q, k = attn.queries(q, visibility.positions), attn.keys(k, at)
    return attn.scores(q.transpose(1, 2), attn.shared(k.transpose(1, 2)), visibility)


def _one_key_patched(scores: Pattern, patched: Pattern, gradient: Pattern) -> Pattern:
    """For each key alone, what its patched score does to its row: sum over the row of (new pattern - own) x gradient.

    With p the pattern, p' the patched key's new share and h the mean gradient of the other keys under their own
    renormalised pattern, that sum is (p' - p)(gradient - h): no pattern has to be made anew for each key. The other
    keys' share is 1 - p, but for the row's largest it is summed without it: 1 - p would lose it to rounding.
    """
    pattern = Attention.pattern(scores)
    top = torch.zeros_like(pattern, dtype=torch.bool).scatter_(-1, scores.argmax(-1, keepdim=True), True)
    below = scores.masked_fill(top, -torch.inf)
    weighted = (pattern * gradient).sum(-1, keepdim=True)
    share = torch.where(top, 0, pattern)  # at most a half
    others = (weighted - share * gradient) / (1 - share)
    # a row of one key has no others: its share stays 1, whatever its score
    others = torch.where(top, (Attention.pattern(below).nan_to_num() * gradient).sum(-1, keepdim=True), others)
    rest = torch.where(top, below.logsumexp(-1, keepdim=True), scores.logsumexp(-1, keepdim=True) + torch.log1p(-share))
    moved = ((patched - rest).sigmoid() - pattern) * (gradient - others)
    return moved.masked_fill(patched == scores, 0)  # without rounding's dust
