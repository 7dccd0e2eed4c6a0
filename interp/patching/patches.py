"""How does a patch change a run? Through the change in its own layer's residual stream, or by resuming the run there.

A patch inside attention changes a head's `z`; that change times `W_O` is what it adds to the stream. For all other
sites that `run` can edit, and for sets of cells, we resume the run at the edit's layer. Many edits share such a run on
a new leading axis.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from math import prod
from typing import cast

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.attention import Attention, KVCache
from interp.devices import move
from interp.model import Model
from interp.parts import MLP
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, ChangedRows, Stream, Suffix, moment_after
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import IN_ATTENTION, OUTSIDE, PatchSite
from interp.patching.plain import PlainRun, Rows, after_attention, attention_parts, visibility_of
from interp.patching.preparation import BUDGET, Plan, Values, row_limit
from interp.patching.results import Direction
from interp.tap import UNTAPPED, Edit, Tap
from interp.transformer import Block, Transformer, with_parts
from interp.visibility import Source, Visibility

_OF_STREAM = {"resid_pre": INTO, "resid_post": INTO, "resid_mid": AFTER_SELF, "resid_cross": AFTER_CROSS}
Parts = dict[str, Tensor]  # a layer's queries, keys, values and z
# each pattern on the first axis less the first one: differences computed this early keep their precision
_CHANGED: dict[str, Edit] = {"pattern": lambda pattern: pattern - pattern[:1]}


@dataclass(frozen=True)
class Region:
    """A group of cells: the positions that they patch (None: all), and whether each head or neuron is its own cell."""

    by_head: bool
    position: int | None = None  # on the site's position axis, or a pattern's query
    key: int | None = None  # a pattern's key


class SitePatches:
    """Patches of one site, made from plain runs of the base and the source prompts."""

    def __init__(self, model: Transformer, base: PlainRun, source: PlainRun, patch_site: PatchSite):
        self.model, self.patch_site = model, patch_site
        self.base, self.source = base.in_stack(patch_site.stack), source.in_stack(patch_site.stack)
        self.blocks = model.stack(patch_site.stack).blocks
        # what the cells of one layer share
        runs = self.base, self.source
        self._neurons = lru_cache(maxsize=1)(lambda layer: [observed(model, run, patch_site, layer) for run in runs])
        self._of_patterns = lru_cache(maxsize=1)(lambda layer: self._dz_of_patterns(layer, slice(None)))

    def enter(self, suffix: Suffix, layer: int, region: Region, heads: list[int]) -> ChangedRows:
        """A region's cells in one layer as they enter a pass; only those of `heads` if each head is a cell."""
        start, end = suffix.first, None
        if region.position is not None and not self.patch_site.of_keys:
            start, end = region.position, region.position + 1
        return ChangedRows.from_span(suffix, *self.stream(layer, region, heads, slice(start, end)), start)

    def stream(self, layer: int, region: Region, heads: list[int], rows: slice | Tensor) -> tuple[int, int, Stream]:
        """The stream that the cells leave at `rows`, all of which they patch; form as in `stream_with`."""
        site, block = self.patch_site.site, self.blocks[layer]
        rows = move(rows, block.device)
        index = (slice(None), rows)
        if site == "mlp.post":
            return stream_with(block, self.base, layer, index, "mlp_out", self._mlp_out(layer, region, heads, index))
        if site not in IN_ATTENTION:
            return stream_with(block, self.base, layer, index, site, self.source[site][layer][index][None])
        attention, (attn, _, _) = self.patch_site.attention, self._parts(layer)
        # a cell is a head, or the query heads that share a key or value; otherwise all heads form one cell
        n_cells = (attn.config.kv_heads if self.patch_site.of_keys else attn.config.n_heads) if region.by_head else 1
        dz = self._dz(layer, region, rows).permute(2, 0, 1, 3).unflatten(0, (n_cells, -1))
        writes = attn.W_O.unflatten(0, (n_cells, -1))
        if len(heads) < n_cells:
            dz, writes = dz[heads], writes[heads]
        pattern = "cell member prompt row d_head, cell member d_head d_model -> cell prompt row d_model"
        stream = after_attention(block, self.base, layer, index, einsum(dz, writes, pattern), attention)
        return *moment_after(block.config, layer, attention), stream

    def _parts(self, layer: int) -> tuple[Attention, Parts, Parts]:
        """A layer's attention, and its queries, keys, values and z in the base and the source run."""
        block, attention = self.blocks[layer], self.patch_site.attention
        (attn, base), (_, source) = (attention_parts(block, run, layer, attention) for run in (self.base, self.source))
        return attn, base, source

    def _dz(self, layer: int, region: Region, rows: slice | Tensor) -> Float[Tensor, "prompt row head d_head"]:
        """How much each head's own patch changes its z at `rows`."""
        site, (attn, base, source) = self.patch_site.site, self._parts(layer)
        if site == "z":
            return source["z"][:, rows] - base["z"][:, rows]
        if site in {"pattern", "scores"}:
            by_row = region.key is None  # a layer's cells then share what they read
            return self._of_patterns(layer)[:, rows] if by_row else self._dz_of_patterns(layer, rows, region.key)
        new = source[site]
        if region.position is not None and self.patch_site.of_keys:
            new = base[site].clone()
            new[:, region.position] = source[site][:, region.position]
        if site == "v":  # z is linear in it
            return self._mixed(attn, base | {"v": new - base["v"]}, rows)
        return self._mixed(attn, base | {site: torch.stack([base[site], new])}, rows, Tap(edit=_CHANGED))[1]

    def _dz_of_patterns(
        self, layer: int, rows: slice | Tensor, key: int | None = None
    ) -> Float[Tensor, "prompt row head d_head"]:
        """The change of every head's z at `rows` when cells patch a row of the pattern, or one key of a row."""
        attn, base, source = self._parts(layer)
        site, columns = self.patch_site.site, slice(None) if key is None else key
        capture = Tap(capture={site})
        self._mixed(attn, source, rows, capture)

        def patched(value: Tensor) -> Tensor:
            new = value.clone()
            new[..., columns] = capture.activations[site][..., columns]
            return new - value if site == "pattern" else torch.stack([value, new])

        z = self._mixed(attn, base, rows, Tap(edit={**_CHANGED, site: patched}))
        return z if site == "pattern" else z[1]

    def _mixed(
        self, attn: Attention, parts: Parts, rows: slice | Tensor, tap: Tap = UNTAPPED
    ) -> Float[Tensor, "*cell prompt row head d_head"]:
        """z at `rows` from queries, keys and values as they enter the scores; leading axes are free."""
        visibility = visibility_of(self.model, self.base, self.patch_site.attention, rows).to(parts["q"].device)
        return attn.mix(parts["q"][..., rows, :, :], parts["k"], parts["v"], visibility, tap)

    def _mlp_out(self, layer: int, region: Region, neurons: list[int], rows: Rows) -> Stream:
        """What the feed-forward adds to the stream with `neurons` patched, each alone or all together."""
        base, source = (post[rows] for post in self._neurons(layer))
        sublayer = self.blocks[layer].feed_forward
        down, change = cast(MLP, sublayer.layer).down, source - base
        if region.by_head:
            pattern = "prompt row neuron, d_model neuron -> neuron prompt row d_model"
            written = einsum(change[..., neurons], down.weight[:, neurons], pattern)
        else:
            written = (down(change) if down.bias is None else down(change) - down.bias)[None]
        if isinstance(sublayer.norm_after, nn.Identity):
            return self.base["mlp_out"][layer][rows] + written
        return sublayer.write(down(base) + written)

    def forget(self) -> None:
        """Drop what the cells of the last layer shared."""
        self._neurons.cache_clear()
        self._of_patterns.cache_clear()


def stream_with(
    block: Block, base: PlainRun, layer: int, rows: Rows, site: str, theirs: Stream
) -> tuple[int, int, Stream]:
    """The stream with a site as in `theirs`: the layer that continues from it, the stage there, and the stream."""
    if (stage := _OF_STREAM.get(site)) is not None:
        return layer + (site == "resid_post"), stage, theirs
    if block.config.parallel:
        return layer + 1, INTO, base.resid[layer + 1].to(theirs.device)[rows] + theirs - base[site][layer][rows]
    if site == "attn_out":
        return layer, AFTER_SELF, block.attention.add(base["resid_pre"][layer][rows], theirs)
    if site == "cross_attn_out":
        return layer, AFTER_CROSS, block.cross.add(base["resid_mid"][layer][rows], theirs)
    stream = base["resid_mid" if block.cross_attn is None else "resid_cross"][layer][rows]
    return layer + 1, INTO, block.feed_forward.add(stream, theirs)


Cell = tuple[int, ...]  # a layer, and an index on each of the cells' other axes
Replacement = Callable[[int], Tensor]  # a layer's new activation at the site, broadcast to `prompt` and the site's axes


def resumed(
    model: Transformer, plain: PlainRun, patch_site: PatchSite, edits: Mapping[str, Edit], start: int, first: int = 0
) -> Tensor:
    """The last stack's final stream with sites edited from layer `start` on; for the site `logits` the logits.

    Edits may put new leading axes before `prompt`. Layers below `start` and positions before `first` are not run again.
    """
    tap, final = Tap(edit=edits), None
    for name in model.config.stacks if patch_site.stack != plain.stack else [plain.stack]:
        run, stack, stack_tap = plain.in_stack(name), model.stack(name), tap.at(name)
        layer = len(stack.blocks) if patch_site.site in OUTSIDE else start
        if name != patch_site.stack or patch_site.site == "embed":
            layer = 0
        residual = stack_tap("embed", run.resid[0]) if layer == 0 else run.resid[layer]
        visibility, source = _visibility_and_source(model, run, final, first)
        past = [KVCache() for _ in stack.blocks] if first else None
        for number, cache in enumerate(past or ()):
            cache.extend(*(run[f"attn.{part}"][number][:, :first] for part in "kv"))
        final = stack.resume(residual[..., first:, :], visibility, tap=stack_tap, start=layer, past=past, source=source)
    assert final is not None
    logits = model.read(final, tap) if patch_site.site == "logits" else None
    return final if logits is None else logits


def observed(model: Transformer, plain: PlainRun, patch_site: PatchSite, layer: int) -> Tensor:
    """A run's activation at a site in one layer, recomputed from the stream that entered the layer."""
    run = plain.in_stack(patch_site.stack)
    if patch_site.site in OUTSIDE:
        logits = model.read(run.final) if patch_site.site == "logits" else None
        return run.resid[0] if patch_site.site == "embed" else run.final if logits is None else logits
    name = patch_site.name(layer)
    tap, block = Tap(capture={name}), model.stack(patch_site.stack).blocks[layer]
    visibility, source = _visibility_and_source(model, run)
    block(run.resid[layer], visibility, tap.at(patch_site.stack).at(str(layer)), None, source)
    return tap.activations[name]


def _visibility_and_source(
    model: Transformer, run: PlainRun, source: Stream | None = None, first: int = 0
) -> tuple[Visibility, Source | None]:
    """What queries from `first` on see of their text, and the encoder's stream (or `source`) that they read."""
    visibility = Visibility.from_batch(run.batch, causal=model.config.stacks[run.stack].causal, first=first)
    if run.source is None:
        return visibility, None
    return visibility, Source.from_stream(run.source.final if source is None else source, run.source.batch)


@torch.no_grad()
def measure_sets(
    plan: Plan, run: PlainRun, by: Sequence[str], sets: Sequence[Sequence[Cell]], instead: Replacement, budget: int
) -> Values:
    """Metrics, `set prompt`, with all cells of each set (on the axes `by`) replaced together."""
    model, pairs, site = plan.transformer, plan.pairs, plan.patch_site
    values = {readout.name: run.final.new_empty(len(sets), len(pairs)) for readout in plan.readouts}
    lengths = {name: pairs.read_by(name).ids.shape[1] for name in model.config.stacks}
    width = lengths[site.stack] + (lengths[run.stack] if run.stack != site.stack else 0)
    if site.site in {"logits", "mlp.experts"}:
        width *= max(1, prod(size or 1 for size in site.sizes) // model.config.d_model)
    limit = row_limit(model, pairs, budget, site)
    lowest = [min(cell[0] for cell in cells) for cells in sets]
    for start, group in groupby(sorted(range(len(sets)), key=lowest.__getitem__), lowest.__getitem__):
        members = torch.tensor([*group])
        for prompts in torch.arange(len(pairs), device=run.final.device).split(max(1, limit // width)):
            base, readouts = run.take(prompts, lengths), [readout.take(prompts) for readout in plan.readouts]
            for chunk in members.split(max(1, limit // (width * len(prompts)))):
                chunk_sets, edits = [sets[index] for index in chunk.tolist()], {}
                for layer in sorted({cell[0] for cells in chunk_sets for cell in cells}):
                    mask, theirs = _mask(site, by, chunk_sets, layer, lengths).to(prompts.device), instead(layer)
                    theirs = theirs[prompts.to(theirs.device)] if theirs.ndim > len(site.axes) else theirs
                    edits[site.name(layer)] = partial(_put, theirs, mask)
                end = resumed(model, base, site, edits, start)
                for readout in readouts:
                    logits = site.site == "logits"
                    value = readout.from_logits(end) if logits else readout.from_final(model, readout.at_reads(end))
                    values[readout.name][chunk[:, None], prompts] = value
    return values


@torch.no_grad()
def patch_together(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    sets: Sequence[Sequence[Cell]],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    budget: int = BUDGET,
) -> Values:
    """The metrics, `set prompt`, with all cells of each set (on the axes `by`) patched at once.

    For the other arguments see `sweep`. Each set runs the model from its lowest patched layer on.
    """
    plan = Plan.from_arguments(with_parts(model, "patching sets"), pairs, metrics, site, by, direction)
    base, source = PlainRun.from_both(plan.transformer, *plan.inputs)
    return measure_sets(plan, base, plan.by, sets, partial(observed, plan.transformer, source, plan.patch_site), budget)


def _put(theirs: Tensor, mask: Bool[Tensor, "set 1 ..."], plain: Tensor) -> Tensor:
    return torch.where(mask.to(plain.device), theirs.to(plain), plain)


def _mask(
    site: PatchSite, by: Sequence[str], sets: Sequence[Sequence[Cell]], layer: int, lengths: Mapping[str, int]
) -> Bool[Tensor, "set 1 ..."]:
    """Which entries of a layer's site each set replaces; axes that are not in `by` have one entry."""
    widths = [site.size(axis) or lengths[site.counted(axis)] if axis in by else 1 for axis in site.axes]
    mask = torch.zeros(len(sets), 1, *widths, dtype=torch.bool)
    for row, cells in zip(mask, sets, strict=True):
        for cell in cells:
            if cell[0] == layer:
                index = dict(zip(by, cell, strict=True))
                row[0, *(index.get(axis, 0) for axis in site.axes)] = True
    return mask


def sweep_by_resuming(plan: Plan, runs: Sequence[PlainRun], values: Values, budget: int) -> None:
    """Fill the tables: patch each cell of the first run from the second, wherever the change can have an effect."""
    base, source = runs
    pairs, site = plan.pairs, plan.patch_site
    reached = torch.ones(*plan.shape, len(pairs), dtype=torch.bool, device=pairs.last.device)
    for index, axis in enumerate(plan.by):
        if axis in {"position", "query"} and site.counted(axis) == site.stack:
            column = torch.arange(plan.shape[index], device=reached.device)[:, None]
            live = column < pairs.read_by(site.stack).lengths
            if site.causal:
                last = torch.cat([readout.positions for readout in plan.readouts], 1).amax(1)
                live &= (column >= pairs.first_reached(site.stack)) & (column <= last)
            reached &= live.view(-1, *[1] * (reached.ndim - index - 2), len(pairs))
    if cells := [tuple(cell) for cell in reached.any(-1).nonzero().tolist()]:
        theirs = lru_cache(maxsize=1)(lambda layer: observed(plan.transformer, source, site, layer))
        measured = measure_sets(plan, base, plan.by, [[cell] for cell in cells], theirs, budget)
        entries = tuple(torch.tensor(cells).T)
        for name, value in measured.items():
            values[name][entries] = torch.where(reached[entries], value, values[name][entries])
