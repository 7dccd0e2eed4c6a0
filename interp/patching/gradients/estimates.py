"""Which cells matter, estimated from gradients? All cells of all sites at the price of three passes over the prompts.

Attribution patching (Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale") estimates a patch by
its first-order effect: the change of the activation times the metric's gradient there. AtP* (Kramár 2024,
arXiv:2403.00745) repairs two failures: a saturated softmax has almost no gradient (the QK fix, section 3.1, computes
the patched pattern itself), and effects along different paths cancel (GradDrop closes one layer's paths at a time).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.devices import move
from interp.display import DataFrame, Figure, Result, so_many
from interp.errors import InputError
from interp.model import Model
from interp.model import sites as sites_of
from interp.patching.gradients.tape import BUDGET, Tape, record, split, take
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs, text_read
from interp.patching.patch_sites import Attending, PatchSite, StackName, site_name
from interp.patching.preparation import Plan, Values
from interp.patching.results import ESTIMATED, Cells, Direction
from interp.statistics import benjamini_hochberg
from interp.transformer import Transformer, with_parts
from interp.visibility import Source, Visibility

Sites = Mapping[str, Sequence[str]]
Pattern = Float[Tensor, "prompt head query key"]
Parts = Mapping[str, Tensor]  # q and k of a layer
_OUTPUTS = ("attn_out", "cross_attn_out", "mlp_out")  # a layer's writes to the stream
_CELL = ("stack", "attention", "site", "layer", "head", "neuron", "expert", "position", "query", "key")


class SiteEstimates(dict[str, Cells], Result):
    """Estimates by site, a dict of `Cells`, with one table for all of them."""

    __repr__ = Result.__repr__

    def table(self, *, seed: int = 0) -> DataFrame:
        """The rows of all sites' tables; axes that a site lacks are missing values, and `q` is over all rows."""
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        table = pd.concat([cells.table(seed=seed) for cells in self.values()], ignore_index=True)
        table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
        first = [axis for axis in _CELL if axis in table]
        for axis in first:
            if pd.api.types.is_float_dtype(table[axis]):  # a site lacks it
                table[axis] = table[axis].astype("Int64")
        numbers = [name for name in ESTIMATED if name in table]
        return table.loc[:, [*first, *(name for name in table if name not in {*first, *numbers}), *numbers]]

    def figure(self, site: str | None = None, **options: Any) -> Figure:
        """The figure of one site, by default the first; for `options` see `Cells.figure`."""
        if site is not None and site not in self:
            raise InputError(f"these estimates have no site {site!r}: expected {' or '.join(self)}")
        return self[next(iter(self)) if site is None else site].figure(**options)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The largest estimates of each site and metric."""
        first = next(iter(self.values()))
        named = [(site, metric, cells) for site, cells in self.items() for metric in cells.values]
        facts = {f"largest of {site} on {metric}": cells.largest(metric) for site, metric, cells in named}
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

    A cell's estimate is the sum over its entries of (other prompt's activation - own) x gradient at the own prompt. As
    in an exact sweep, values are metrics: the unpatched prompt's value plus the estimate.

    Args:
        model, pairs, direction, stack, attention: as in `sweep`; `denoise` differentiates at the corrupted prompts.
        metrics: what to read; must have a gradient. The gradient of `kl_divergence` at clean prompts (`noise`) is 0.
        sites: sites, and the axes of each site's cells, as in `sweep`.
        qk_fix: for `q` and `k`, compute the patched pattern and take its difference times the gradient at the pattern,
            so that the softmax is not linearised (Kramár 2024, section 3.1).
        budget: bytes of activations that one pass may hold; prompts are split into as many parts as that needs.
    """
    model = with_parts(model, "attribution patching")
    call = _Estimates(model, pairs, metrics, sites, (direction, stack, attention), qk_fix=qk_fix)
    estimates, base, source = call.totals(budget)
    tables = {site: {name: base[name] + value for name, value in each.items()} for site, each in estimates.items()}
    return call.cells(tables, base, source)


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

    For each layer in turn, one backward pass blocks the gradient through the layer's writes to the stream. A cell's
    magnitude is the mean absolute estimate over these passes (equation 11), without the pass that drops its own layer;
    the residual stream (`resid_*`) belongs to no layer. Magnitudes rank cells for a closer look.

    For the arguments see `attribution_patching`; the model needs at least two layers.
    """
    model = with_parts(model, "AtP*")
    layers = [(name, layer) for name, config in model.config.stacks.items() for layer in range(config.n_layers)]
    if len(layers) < 2:
        raise InputError("GradDrop leaves out one layer at a time: expected a model of at least 2 layers, got 1")
    call = _Estimates(model, pairs, metrics, sites, (direction, stack, attention), qk_fix=True)
    totals, *_ = call.totals(budget, layers)
    passes = {site: len(layers) - (not site.startswith("resid")) for site in totals}
    tables = {site: {name: total / passes[site] for name, total in each.items()} for site, each in totals.items()}
    return call.cells(tables, {}, {}, kind="magnitudes")


class _Estimates:
    """The checked arguments (`place`: direction, stack, attention); `patch_sites` includes the QK fix's sites."""

    def __init__(self, model: Transformer, pairs: Pairs, metrics: Any, sites: Sites, place: Any, *, qk_fix: bool):
        if not isinstance(sites, Mapping) or not sites:
            raise InputError(f'expected the axes of each site, {{"z": ("layer", "head")}}; got {sites!r}')
        if "logits" in sites:
            raise InputError("metrics read the logits: expected sites before them")
        self.model, self.pairs = model, pairs
        first, *rest = sites
        plan = Plan.from_arguments(model, pairs, metrics, first, sites[first], *place)
        plans = {site: Plan.from_arguments(model, pairs, [], site, sites[site], *place) for site in rest}
        self.plans = {first: plan, **plans}
        self.readouts, self.plain, (self.base, self.source) = plan.readouts, plan.plain, plan.inputs
        self.patch_sites = {site: plan.patch_site for site, plan in self.plans.items()}
        self.fixed = {"q", "k"} & {*sites} if qk_fix else set()
        for site in ("q", "k", "pattern") if self.fixed else ():
            self.patch_sites[site] = PatchSite.from_name(model, site, ("layer",), *place[1:])

    def cells(self, tables: Mapping[str, Values], base: Values, source: Values, **fields: Any) -> SiteEstimates:
        """`Cells` by site, from each site's tables."""
        cells = SiteEstimates()
        for site, plan in self.plans.items():
            named = {name: plan.by_name(table) for name, table in tables[site].items()}
            cells[site] = plan.cells(named, base, source, **fields)
        return cells

    def totals(self, budget: int, dropped: Sequence[tuple[str, int]] = ()) -> tuple[dict[str, Values], Values, Values]:
        """Each site's estimates by metric, or the sums of their absolute values over passes that each drop a layer.

        Also returned: the metrics of the patched prompts, and of those that the patches come from.
        """
        zeros = self.model.last.embed.token.weight.new_zeros(len(self.pairs)).detach()
        base, source = ({each.name: zeros.clone() for each in self.plain} for _ in range(2))
        totals = {site: replace(plan, readouts=self.readouts).unchanged(base) for site, plan in self.plans.items()}
        # capture the same sites in both runs: the same kernels then make equal activations differ by exactly 0
        names = [name for site in sorted(self.patch_sites) for name in self.patch_sites[site].names]
        for prompts in split(self.model, self.pairs, budget, rows=bool({"pattern", "scores"} & {*self.patch_sites})):
            readouts = [readout.take(prompts) for readout in self.plain]
            with torch.no_grad():
                source_tape = record(self.model, take(self.source, prompts), readouts, names)
            for drop in dropped or (None,):
                outputs = [] if drop is None else [site_name(*drop, out) for out in _OUTPUTS]
                closed = {name: Tensor.detach for name in outputs if name in sites_of(self.model)}
                with torch.enable_grad():
                    tape = record(self.model, take(self.base, prompts), readouts, names, closed)
                for name in base:
                    base[name][prompts], source[name][prompts] = tape.values[name].detach(), source_tape.values[name]
                for name in (each.name for each in self.readouts):
                    for site, estimate in self._estimates(tape, source_tape, name).items():
                        totals[site][name][..., prompts] += (estimate if drop is None else estimate.abs()).detach()
        return totals, base, source

    def _estimates(self, tape: Tape, source: Tape, metric: str) -> Values:
        """First-order effects of all cells on one metric, by site, from one backward pass."""
        differentiated = {site: self.patch_sites["pattern" if site in self.fixed else site] for site in self.plans}
        names = dict.fromkeys(name for patch_site in differentiated.values() for name in patch_site.names)
        gradients, effects = tape.gradients(metric, [*names]), {}
        for site, patch_site in differentiated.items():
            change = self._fixed_change if site in self.fixed else self._change
            axes, by, layers = self.patch_sites[site].axes, self.plans[site].by, []
            for layer, name in enumerate(patch_site.names):
                products = change(tape, source, site, layer, gradients[name])
                entries = " ".join(axes[: products.ndim - 1])
                layers.append(reduce(products, f"prompt {entries} -> {' '.join(by[1:])} prompt", "sum"))
            effects[site] = torch.stack(move(layers, self.model.device))
        return effects

    def _change(self, tape: Tape, source: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """Each entry's difference times gradient, on `prompt` and the site's axes."""
        name = self.patch_sites[site].name(layer)
        difference = source.activations[name] - tape.activations[name].detach()
        if site == "scores":
            difference = difference.nan_to_num()  # a masked key is at -inf in both
        return difference * gradient

    def _fixed_change(self, tape: Tape, source: Tape, site: str, layer: int, gradient: Tensor) -> Tensor:
        """`_change` with the QK fix: for queries or keys, via the patched pattern; it has no `d_head`."""
        patch, by = self.patch_sites[site], self.plans[site].by
        names = {part: self.patch_sites[part].name(layer) for part in "qk"}
        ours, theirs = ({part: run.activations[names[part]].detach() for part in "qk"} for run in (tape, source))
        block, batch = self.model.stack(patch.stack).blocks[layer], tape.inputs[0]
        attn, visibility = block.attn, Visibility.from_batch(text_read(tape.inputs, patch.stack), causal=patch.causal)
        if patch.attention == "cross":
            assert block.cross_attn is not None
            attn, visibility = block.cross_attn, Source.from_stream(ours["k"].flatten(-2), batch).seen_by(visibility)
        return _qk_fixed(attn, visibility.to(block.device), site, ours, theirs, gradient, by)


def _qk_fixed(
    attn: Attention, visibility: Visibility, site: str, base: Parts, source: Parts, gradient: Pattern, by: Sequence[str]
) -> Float[Tensor, "prompt position site_head"]:
    """Effects of patched queries or keys: (new pattern - own) x gradient at the pattern, summed over what each moves.

    Queries are patched at all positions at once, since each has its own row of the pattern. Keys share rows: by
    position each is patched alone (Kramár 2024, algorithm 4), otherwise all together, and `position` is the query's.
    """
    plain = _scores(attn, base, visibility)

    def effects(patched: Parts) -> Float[Tensor, "prompt head position"]:
        scores = _scores(attn, patched, visibility)
        if site == "k" and "position" in by:
            return _one_key_patched(plain, scores, gradient).sum(-2)
        return ((attn.pattern(scores) - attn.pattern(plain)) * gradient).sum(-1)

    if attn.config.qk_norm == "all" and "head" in by:
        by_heads = []
        for head in range(base[site].shape[-2]):
            mixed = base[site].clone()
            mixed[..., head, :] = source[site][..., head, :]
            by_heads.append(effects({**base, site: mixed}).sum(1))
        return torch.stack(by_heads, -1)
    effect = effects({**base, site: source[site]})
    if site == "k":  # a key moves the rows of all query heads that share it
        effect = effect.unflatten(1, (attn.config.kv_heads, -1)).sum(2)
    return effect.transpose(1, 2)


def _scores(attn: Attention, parts: Parts, visibility: Visibility) -> Pattern:
    """Scores from queries and keys before their norm and rotation."""
    positions = visibility.positions
    if visibility.across:  # nothing rotates keys
        positions = positions.new_zeros(1, parts["k"].shape[1])
    q, k = attn.queries(parts["q"], visibility.positions), attn.keys(parts["k"], positions)
    return attn.scores(q.transpose(1, 2), attn.shared(k.transpose(1, 2)), visibility)


def _one_key_patched(scores: Pattern, patched: Pattern, gradient: Pattern) -> Pattern:
    """The effect of each key's patched score alone on its row: sum over the row of (new pattern - own) x gradient.

    With p the pattern, p' the patched key's new share and h the mean gradient of the other keys under their own
    renormalised pattern, that sum is (p' - p)(gradient - h), so no key needs a new pattern. The other keys' share is
    1 - p. For the row's largest key we sum the others instead, because 1 - p would round them away.
    """
    pattern = Attention.pattern(scores)
    top = torch.zeros_like(pattern, dtype=torch.bool).scatter_(-1, scores.argmax(-1, keepdim=True), True)
    below = scores.masked_fill(top, -torch.inf)
    weighted = (pattern * gradient).sum(-1, keepdim=True)
    share = torch.where(top, 0, pattern)  # at most a half
    mean = (weighted - share * gradient) / (1 - share)
    # a row of one key has no others: its share stays 1, whatever its score
    mean = torch.where(top, (Attention.pattern(below).nan_to_num() * gradient).sum(-1, keepdim=True), mean)
    rest = torch.where(top, below.logsumexp(-1, keepdim=True), scores.logsumexp(-1, keepdim=True) + torch.log1p(-share))
    effect = ((patched - rest).sigmoid() - pattern) * (gradient - mean)
    return effect.masked_fill(patched == scores, 0)  # drop rounding errors
