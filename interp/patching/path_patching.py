"""Along which path does a part of the model act? Only chosen receivers read what one sender writes.

Every cell leaves the base run twice. From its sender to the receivers (`_receive`) attention is frozen, so rows are
independent. From the first receiver to the metric (`_give`) the engine runs it. `path_patch_by_forward` is the plain
way; both give the same numbers.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.devices import Movable, move
from interp.model import Model
from interp.patching.by_forward import Receiver, Sender, Through, check_paths, moment_written, path_patch_by_forward
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, ChangedRows, Suffix
from interp.patching.engine import resume
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, StackName, last_stack
from interp.patching.patches import Region, SitePatches, Stream
from interp.patching.plain import Moment, PlainRun
from interp.patching.preparation import BUDGET, Plan, Values, read_values, row_limit
from interp.patching.results import Cells, Direction
from interp.patching.sweeps import Chunk, PromptGroup, Selection, passes, prompt_groups, put
from interp.tap import Edit, Tap
from interp.transformer import Transformer, with_parts

Positions = Int[Tensor, " row"]  # positions of the prompts, ascending
Value = Float[Tensor, "_ prompt _ _ _"]  # cell prompt position head width
Ends = Sequence[tuple[Receiver, int | None]]  # receivers, and their position in every prompt of a group
_QKV = {"q", "k", "v"}
_SITE = {"q": "attn.q", "k": "attn.k", "v": "attn.v", "mlp": "mlp_out", "logits": "resid_post"}


@torch.no_grad()
def path_patch(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    receivers: Sequence[Receiver],
    sender: Sender = "z",
    by: Sequence[str] = ("layer", "head"),
    through: Through = "nothing",
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    budget: int = BUDGET,
) -> Cells:
    """Patch the paths from every sender to the receivers, exactly.

    We run the base prompt with one sender as in the other prompt, and record what the receivers read. Then we run the
    base prompt again with all receivers reading that, recompute everything else, and read the metric. For a sender
    after all receivers the metric keeps the base prompt's value.

    Args:
        model, pairs, metrics, direction: as in `sweep`.
        receivers: where the paths end, all patched together.
        sender: where they begin: `z` (heads) or `mlp_out` (feed-forwards).
        by: the senders' axes: `layer`, then any of `head` (for `z`) and `position`.
        through: what is recomputed between sender and receivers: `nothing` (one edge alone, as in Goldowsky-Dill 2023),
            `mlps` (all other heads keep their values, as in Wang 2022, section 3.1), or `everything`, which takes two
            plain forward passes per cell.
        stack: where the paths begin and end. Receivers are in its self-attention and feed-forwards.
        attention: `self` or `cross`: whose heads send. Cross-attention is frozen wherever self-attention is.
        budget: bytes of activations that one pass may hold.
    """
    model = with_parts(model, "path patching")
    if through == "everything":
        place = {"stack": stack, "attention": attention}
        return path_patch_by_forward(model, pairs, metrics, receivers, sender, by, through, direction, **place)
    plan = Plan.from_arguments(model, pairs, metrics, sender, by, direction, stack, attention)
    paths, site, runs = check_paths(plan, receivers, through), plan.patch_site, PlainRun.from_both(model, *plan.inputs)
    base, source = (read_values(model, run, plan.plain) for run in runs)
    values, config = plan.unchanged(base), model.config.stacks[site.stack]
    widths = {"mlp": config.d_model, "logits": config.d_model}
    heads = [each.n_heads(config) if each.head is None else 1 for each in receivers]
    recorded = sum(n * widths.get(each.part, config.d_head) for n, each in zip(heads, receivers, strict=True))  # a row
    limit = row_limit(model, pairs, budget, site, recorded=recorded)
    lengths = pairs.read_by(site.stack).lengths
    columns = [receiver.columns(pairs, site.stack) for receiver in receivers]
    alike = torch.stack([torch.full_like(lengths, -1) if each is None else each for each in columns], 1)
    for group in prompt_groups(plan, runs, limit, alike=alike):
        positions = [None if each is None else int(each[group.prompts[0]]) for each in columns]
        selected, ends = plan.selected(group.prompts), [*zip(receivers, positions, strict=True)]
        for region in group.regions():
            _fill(values, group, region, selected, ends, through == "mlps", limit)
    return plan.cells({name: plan.by_name(table) for name, table in values.items()}, base, source, site=paths)


def _fill(
    values: Values, group: PromptGroup, region: Region, selected: Selection, ends: Ends, mlps: bool, limit: int
) -> None:
    """Measure the selected senders of a region in a group of prompts, through the receivers (`ends`)."""
    site, config = group.patch_site, group.patches.model.config.stacks[group.patch_site.stack]
    if not selected[group.entry(0, region)].any():
        return
    if not (reads := _reads_from(group, ends, group.first_reached(region))):
        return
    rows = torch.cat([read.rows for parts in reads.values() for read in parts]).unique()
    first = int(rows[0]) if site.causal else 0
    if region.position is not None:  # attention alone moves anything to another position
        rows = rows[rows == region.position]
    if not len(rows) or first > group.last_read:
        return
    chunks, last = group.chunks_of(region, first, limit, selected), max(reads)
    chunks = [each for each in chunks if moment_written(config, site.site, each.layer, site.attention) <= last]
    for party in passes(chunks, limit):
        received = _receive(group.patches, reads, rows, party, mlps)
        put(party, values, _give(group.patches, group.suffix(first), received))
    group.patches.forget()


def _reads_from(group: PromptGroup, ends: Ends, start: int) -> "dict[Moment, list[_PartRead]]":
    """What receivers read from position `start` on; only where metrics read, if nothing carries it elsewhere."""
    base, model = group.patches.base, group.patches.model
    config, length = model.config.stacks[base.stack], base.batch.ids.shape[1]
    changed = torch.arange(length, device=base.batch.ids.device) >= start
    measured = torch.zeros_like(changed)
    measured[torch.cat([readout.positions.flatten() for readout in group.readouts])] = True
    masks: dict[tuple[Moment, str], Tensor] = {}
    for receiver, position in ends:
        moment, part = receiver.moment(config), receiver.part
        mask = torch.zeros(length, receiver.n_heads(config), dtype=torch.bool, device=changed.device)
        rows, heads = (slice(None) if index is None else index for index in (position, receiver.head))
        mask[rows, heads] = True
        moved_on = moment[0] < _read_layer(model, base.stack) or part in {"k", "v"}
        mask &= (changed if moved_on else changed & measured)[:, None]
        if bool(mask.any()):
            masks[moment, part] = mask | masks.get((moment, part), mask)
    reads: dict[Moment, list[_PartRead]] = defaultdict(list)
    for (moment, part), mask in sorted(masks.items(), key=lambda item: item[0][0]):
        reads[moment].append(_PartRead(part, moment[0], mask))
    return reads


@dataclass(frozen=True, eq=False)
class _PartRead(Movable):
    """Where receivers read one `part` of a layer; feed-forwards and the last stream count as one head."""

    part: str
    layer: int
    mask: Bool[Tensor, "position head"]

    @cached_property
    def rows(self) -> Positions:
        return self.mask.any(1).nonzero()[:, 0]

    @cached_property
    def heads(self) -> Int[Tensor, " head"]:
        return self.mask.any(0).nonzero()[:, 0]

    def receive(self, patches: SitePatches, x: Stream, carried: Positions) -> Value:
        """What receivers read if cells have the stream `x` at positions `carried` and the base run's elsewhere."""
        carried = carried.to(x.device)
        changed = torch.isin(self.rows, carried)
        rows = self.rows[changed]
        value = self._value(patches, x[:, :, torch.searchsorted(carried, rows)], rows)
        if len(rows) == len(self.rows):
            return value
        plain = patches.base[_SITE[self.part]][self.layer - (self.part == "logits")][:, self.rows]
        plain = plain[:, :, self.heads] if self.part in _QKV else plain[:, :, None]
        wide = plain.expand(len(x), *plain.shape).clone()
        wide[:, :, changed] = value
        return wide

    def _value(self, patches: SitePatches, x: Stream, rows: Positions) -> Value:
        if self.part == "logits":
            return x[..., None, :]
        block = patches.blocks[self.layer]
        if self.part == "mlp":
            return block.feed_forward.out(x)[..., None, :]
        projected = block.attn.project_heads(block.attention.read(x), self.part, self.heads)
        enter = {"q": block.attn.queries, "k": block.attn.keys}.get(self.part)
        positions = patches.base.batch.positions.to(x.device)[:, rows]
        return projected if enter is None else enter(projected, positions)

    def edit(self, value: Value, columns: Int[Tensor, "_ place"]) -> Edit:
        """An edit that writes the value at the cells' `columns`; successive calls get successive cells."""
        start = 0

        def put(x: Tensor) -> Tensor:
            nonlocal start
            cells = x if self.part in _QKV else x.view(-1, value.shape[1], columns.shape[1], 1, x.shape[-1])
            self.put(value, cells, columns, start)
            start += len(cells)
            return x

        return put

    def put(self, value: Value, x: Value, columns: Int[Tensor, "_ place"], start: int = 0) -> None:
        """Write the value into `x`, the cells from `start` on, at `columns` (shared by all prompts or one row each)."""
        n_cells, n_prompts = x.shape[:2]
        row_of = columns.new_full((len(self.mask),), -1)
        row_of[self.rows] = torch.arange(len(self.rows), device=columns.device)
        row = row_of[columns].expand(n_prompts, -1)
        prompt, place = (row >= 0).nonzero(as_tuple=True)
        row = row[prompt, place]
        value = value[start : start + n_cells][:, prompt, row]  # other cells get theirs later
        index = (slice(len(value)), prompt[:, None], place[:, None], self.heads)
        mask = self.mask[self.rows[row]][:, self.heads, None]
        x[index] = torch.where(mask, value, x[index])


_Part = tuple[_PartRead, Value]


def _receive(
    patches: SitePatches, reads: dict[Moment, list[_PartRead]], rows: Positions, chunks: Sequence[Chunk], mlps: bool
) -> dict[Moment, list[_Part]]:
    """What receivers read from cells, in order of entry, row by row: attention is the base run's."""
    entering = [patches.stream(chunk.layer, chunk.region, chunk.heads, rows) for chunk in chunks]
    last, received = max(reads), {}
    x = entering[0][2][:0]
    for layer, stage in product(range(entering[0][0], last[0] + 1), (INTO, AFTER_SELF, AFTER_CROSS)):
        device = patches.base.resid[layer].device
        x = (_carry(patches, rows.to(x.device), x, layer, stage, mlps) if len(x) else x).to(device)
        if streams := [stream for *moment, stream in entering if moment == [layer, stage]]:
            x = torch.cat([x, *move(streams, device)])
        if parts := reads.get((layer, stage), ()) if len(x) else ():
            received[layer, stage] = [(read, read.receive(patches, x, rows)) for read in move(parts, device)]
        if (layer, stage) == last:
            break
    return received


def _carry(patches: SitePatches, rows: Positions, x: Stream, layer: int, stage: int, mlps: bool) -> Stream:
    """The stream one moment later; frozen parts write what they write in the base run."""
    base, block = patches.base, patches.blocks[layer - (stage == INTO)]
    if stage == AFTER_SELF:
        out = base["attn_out"][layer][:, rows]
        # in a parallel block, `add` would compute the feed-forward too
        return x + out if block.config.parallel and not mlps else block.attention.add(x, out)
    if stage == AFTER_CROSS:
        return x if block.cross_attn is None else block.cross.add(x, base["cross_attn_out"][layer][:, rows])
    if mlps or block.mlp is None:
        return block.feed_forward(x)
    return block.feed_forward.add(x, base["mlp_out"][layer - 1][:, rows])


def _read_layer(model: Transformer, stack: str) -> int:
    """The layer that computes all but keys and values only where metrics read: the last stack's last."""
    return model.config.stacks[stack].n_layers - (stack == last_stack(model))


def _give(patches: SitePatches, suffix: Suffix, received: dict[Moment, list[_Part]]) -> Tensor:
    """The stream out of the last block where metrics read, with every receiver reading its received value."""
    entering, edits, n_cells = [], {}, 0
    for (layer, _), parts in received.items():
        if (more := len(parts[0][1]) - n_cells) > 0:  # cells with their first receiver here enter as in the base run
            plain = patches.base.resid[layer][:, suffix.first :]
            entering.append(ChangedRows.from_span(suffix, layer, INTO, plain.expand(more, *plain.shape), suffix.first))
            n_cells += more
        for end, value in parts:
            if end.part != "logits":
                at_reads = layer == _read_layer(patches.model, patches.base.stack) and end.part in {"q", "mlp"}
                here = suffix.to(value.device)
                columns = here.reads if at_reads else here.visibility.columns
                edits[f"{layer}.{_SITE[end.part]}"] = end.edit(value, columns)
    final = resume(patches.model, entering, Tap(edit=edits))[suffix.onward or suffix]
    for end, value in [part for parts in received.values() for part in parts]:
        if end.part == "logits":
            end.to(final.device).put(value.to(final.device), final[..., None, :], suffix.read_positions)
    return final
