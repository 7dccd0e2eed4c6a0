"""Along which path does a part of the model act? What one sender writes, as chosen receivers read it, and no further.

Every cell is taken twice away from the base run: from its sender to the receivers (`_received`), where rows are
independent, as attention is kept; and from the first of these that it reaches to the metric (`_given`), by the engine.
`path_patch_by_forward` is the plain way; both give the same numbers.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.model import Model
from interp.patching.by_forward import path_patch_by_forward
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, AtReads, ChangedRows, Suffix, after, attend
from interp.patching.chunks import Chunk, GroupSweep, group_sweeps, passes, put
from interp.patching.engine import resume
from interp.patching.memory import BUDGET, most_rows
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, StackName, last_stack
from interp.patching.paths import Moment, Receiver, Sender, Through, check_paths, n_heads, path_name, written
from interp.patching.plain import after_attention
from interp.patching.preparation import Plan, read_values
from interp.patching.results import Cells, Direction
from interp.patching.site_patches import SitePatches, Stream, Where, stream_with
from interp.tap import Edit, Tap
from interp.transformer import Transformer, with_parts

Positions = Int[Tensor, " row"]  # of the prompts, in order
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

    Wang 2022 (section 3.1, appendix B) keeps every other head as it was and lets feed-forwards follow: `mlps`.
    Goldowsky-Dill 2023 patches any set of paths; one edge from sender to receiver, with no other part on it, is
    `nothing`. What `everything` gives is neither: all that the sender changes on its way, as the receivers see it.

    The base prompt is run with one sender as in the other prompt, and what the receivers get is recorded; then the base
    prompt is run with all receivers given that, everything else recomputed, and the metric is read.

    Args:
        model: a transformer with an output layer.
        pairs: clean and corrupted prompts, token for token alike in length; lengths may differ between pairs.
        metrics: what to read, one or several.
        receivers: where the paths end, all patched together.
        sender: where they begin: `z` (heads) or `mlp_out` (feed-forwards).
        by: the cells' axes: `layer`, then any of `head` (for `z`) and `position`, of the sender.
        through: what is recomputed between sender and receivers: `nothing` (one edge; every other attention and
            feed-forward writes what it writes in the base run), `mlps` (attention alone is kept) or `everything`, for
            which every cell takes two plain forward passes.
        direction: `denoise` sends clean activations into the corrupted prompt, `noise` corrupted ones into the clean.
        stack: `encoder` or `decoder`, in which the paths begin and end; by default that which the output layer reads.
            Receivers are in its self-attention and feed-forwards, where each reads that stack's own stream alone.
        attention: `self` or `cross`: whose heads send. On the way cross-attention is kept wherever self-attention is.
        budget: bytes of activations that one pass may hold.

    Returns:
        Cells: values `*by prompt`; a sender that comes after all receivers keeps the base prompt's value.

    Raises:
        InputError: no such stack, sender, axis, direction, receiver or `through`, no receiver, none that a sender could
            reach, a metric that returns no number a prompt, a budget too small for one cell.
    """
    model = with_parts(model, "path patching")
    if through == "everything":
        where = {"stack": stack, "attention": attention}
        return path_patch_by_forward(model, pairs, metrics, receivers, sender, by, through, direction, **where)
    plan = Plan.of(model, pairs, metrics, sender, by, direction, stack, attention)
    check_paths(plan, receivers, through)
    site, runs = plan.patch_site, plan.runs()
    own, other = (read_values(model, run, plan.plain) for run in runs)
    values, config = plan.unchanged(own), model.config.stacks[site.stack]
    widths = [config.d_model if each.part in {"mlp", "logits"} else config.d_head for each in receivers]
    heads = [n_heads(config, each.part) if each.head is None else 1 for each in receivers]
    recorded = sum(width * n for width, n in zip(widths, heads, strict=True))  # numbers of each row
    most = most_rows(model, pairs, budget, site, recorded=recorded)
    lengths = pairs.read_by(site.stack).lengths
    at = [receiver.columns(pairs, site.stack) for receiver in receivers]
    together = torch.stack([torch.full_like(lengths, -1) if each is None else each for each in at], 1)
    for group in group_sweeps(plan, runs, most, alike=together):
        places = [None if each is None else int(each[group.prompts[0]]) for each in at]
        wanted = plan.wanted(group.prompts)
        for where in group.wheres():
            if wanted[group.entry(0, where)].any():
                _fill(values, group, where, [*zip(receivers, places, strict=True)], through == "mlps", most)
    values = {name: plan.by_name(table) for name, table in values.items()}
    return plan.cells(values, own, other, site=path_name(sender, receivers))


def _fill(
    values: dict[str, Tensor],
    sweep: GroupSweep,
    where: Where,
    receivers: Sequence[tuple[Receiver, int | None]],
    again: bool,
    most: int,
) -> None:
    """Take all senders of one place in a group of prompts to the receivers and on to the metrics, into the tables.

    With each receiver comes its position in these prompts; `again` says whether feed-forwards are recomputed.
    """
    site, config = sweep.patch_site, sweep.patches.model.config
    reads = _reads_from(sweep, receivers, sweep.first_reached(where))
    if not reads:
        return
    rows = torch.cat([read.rows for parts in reads.values() for read in parts]).unique()
    first = int(rows[0]) if site.causal else 0
    if where.position is not None:  # attention alone moves anything to another position
        rows = rows[rows == where.position]
    if not len(rows) or first > sweep.last_read:
        return
    every = np.ones(next(iter(values.values())).shape[:-1], dtype=bool)
    chunks = [
        chunk
        for chunk in sweep.chunks_of(where, first, most, every)
        if written(config.stacks[site.stack], site.site, chunk.layer, site.attention) <= max(reads)
    ]
    for party in passes(chunks, most):
        received = _received(sweep.patches, reads, rows, party, again)
        put(party, values, _given(sweep.patches, sweep.suffix(first), received))
    sweep.patches.forget()


def _reads_from(
    sweep: GroupSweep, receivers: Sequence[tuple[Receiver, int | None]], start: int
) -> "dict[Moment, list[_Read]]":
    """What receivers read from `start` on; what nothing moves to another position, only where metrics read."""
    base, model = sweep.patches.base, sweep.patches.model
    config, length = model.config.stacks[base.stack], base.batch.ids.shape[1]
    changed = torch.arange(length, device=base.batch.ids.device) >= start
    measured = torch.zeros_like(changed)
    measured[torch.cat([readout.positions.flatten() for readout in sweep.readouts])] = True
    masks: dict[tuple[Moment, str], Tensor] = {}
    for receiver, place in receivers:
        moment, part = receiver.moment(config), receiver.part
        mask = torch.zeros(length, n_heads(config, part), dtype=torch.bool, device=changed.device)
        mask[slice(None) if place is None else place, slice(None) if receiver.head is None else receiver.head] = True
        moved_on = moment[0] < _read_layer(model, base.stack) or part in {"k", "v"}
        mask &= (changed if moved_on else changed & measured)[:, None]
        if bool(mask.any()):
            masks[moment, part] = mask | masks.get((moment, part), mask)
    reads: dict[Moment, list[_Read]] = defaultdict(list)
    for (moment, part), mask in sorted(masks.items(), key=lambda item: item[0][0]):
        reads[moment].append(_Read(part, moment[0], mask))
    return reads


# From the senders to what receivers get.


@dataclass(frozen=True, eq=False)
class _Read:
    """Where receivers read one `part` of a layer; of feed-forwards and the last stream there is one head."""

    part: str
    layer: int
    mask: Bool[Tensor, "position head"]

    @cached_property
    def rows(self) -> Positions:
        """The positions at which any head reads."""
        return self.mask.any(1).nonzero()[:, 0]

    @cached_property
    def heads(self) -> Int[Tensor, " head"]:
        """The heads that read anywhere."""
        return self.mask.any(0).nonzero()[:, 0]

    @property
    def site(self) -> str:
        """Where a pass makes what they get."""
        return f"{self.layer}.{_SITE[self.part]}"

    @property
    def in_attention(self) -> bool:
        """Whether heads read it."""
        return self.part in {"q", "k", "v"}

    def query_heads(self, shared: int) -> Int[Tensor, " head"]:
        """The heads whose queries meet it: so many share a key and a value."""
        together = torch.arange(shared, device=self.heads.device)
        return self.heads if self.part == "q" else (self.heads[:, None] * shared + together).flatten()

    def received(self, patches: SitePatches, x: Stream, carried: Positions) -> "_Received":
        """What they get where cells have the stream `x` at positions `carried`; elsewhere what the base run has."""
        changed = torch.isin(self.rows, carried)
        rows = self.rows[changed]
        x = x[:, :, torch.searchsorted(carried, rows)]
        positions = patches.base.batch.positions[:, rows]
        value = x[..., None, :] if self.part == "logits" else self._made(patches, x, positions)
        if len(rows) == len(self.rows):
            return _Received(self, value)
        plain = patches.base[_SITE[self.part]][self.layer - (self.part == "logits")][:, self.rows]
        plain = plain[:, :, self.heads] if self.in_attention else plain[:, :, None]
        every = plain.expand(len(x), *plain.shape).clone()
        every[:, :, changed] = value
        return _Received(self, every)

    def _made(self, patches: SitePatches, x: Stream, positions: Int[Tensor, "prompt row"]) -> Tensor:
        block = patches.blocks[self.layer]
        if self.part == "mlp":
            return block.feed_forward.out(x)[..., None, :]
        projected = block.attn.project_heads(block.attention.read(x), self.part, self.heads)
        enter = {"q": block.attn.queries, "k": block.attn.keys}.get(self.part)
        return projected if enter is None else enter(projected, positions)


@dataclass(frozen=True, eq=False)
class _Received:
    """What they get, cell by cell, in the order in which cells arrive: those that do later get nothing of it."""

    read: _Read
    value: Float[Tensor, "cell prompt row head width"]

    def give(
        self, own: Float[Tensor, "some prompt place all width"], at: Int[Tensor, "_ place"], start: int = 0
    ) -> None:
        """Put it into what the cells from `start` on have at positions `at` of all prompts, or of each."""
        read, (n_cells, n_prompts) = self.read, own.shape[:2]
        row_of = at.new_full((len(read.mask),), -1)
        row_of[read.rows] = torch.arange(len(read.rows), device=at.device)
        row = row_of[at].expand(n_prompts, -1)
        prompt, place = (row >= 0).nonzero(as_tuple=True)
        row = row[prompt, place]
        where = (slice(None), prompt[:, None], place[:, None], read.heads)
        mask = read.mask[read.rows[row]][:, read.heads, None]
        own[where] = torch.where(mask, self.value[start : start + n_cells][:, prompt, row], own[where])


def _received(
    patches: SitePatches, reads: dict[Moment, list[_Read]], rows: Positions, chunks: Sequence[Chunk], again: bool
) -> dict[Moment, list[_Received]]:
    """What receivers get of cells whose attention writes what it does in the base run: row by row, where they read."""
    sent = [patches.left(chunk.layer, chunk.where, chunk.heads, rows) for chunk in chunks]
    last, received = max(reads), {}
    x = sent[0][2][:0]
    for layer, stage in product(range(sent[0][0], last[0] + 1), (INTO, AFTER_SELF, AFTER_CROSS)):
        x = _kept(patches, rows, x, layer, stage, again) if len(x) else x
        if writing := [stream for *at, stream in sent if at == [layer, stage]]:
            x = torch.cat([x, *writing])
        if parts := reads.get((layer, stage), ()) if len(x) else ():
            received[layer, stage] = [each.received(patches, x, rows) for each in parts]
        if (layer, stage) == last:
            break
    return received


def _kept(patches: SitePatches, rows: Positions, x: Stream, layer: int, stage: int, again: bool) -> Stream:
    """The stream there from that before it: what is not recomputed writes what it does in the base run."""
    base, block = patches.base, patches.blocks[layer - (stage == INTO)]
    if stage == AFTER_SELF:
        out = base["attn_out"][layer][:, rows]
        # a parallel block's attention would compute the feed-forward beside it
        return x + out if block.config.parallel and not again else block.attention.add(x, out)
    if stage == AFTER_CROSS:
        return x if block.cross_attn is None else block.cross.add(x, base["cross_attn_out"][layer][:, rows])
    if again or block.mlp is None:
        return block.feed_forward(x)
    return block.feed_forward.add(x, base["mlp_out"][layer - 1][:, rows])


# From what receivers got to the metrics.


def _read_layer(model: Transformer, stack: str) -> int:
    """The layer of a stack in which only what metrics read is computed, keys and values aside: its last, if any is."""
    return model.config.stacks[stack].n_layers - (stack == last_stack(model))


def _given(patches: SitePatches, on: Suffix, received: dict[Moment, list[_Received]]) -> AtReads:
    """The stream out of the last block where metrics read, with everything given that was received."""
    entering, n_cells = [], 0
    for (layer, _), parts in received.items():
        if len(parts[0].value) > n_cells:
            entering.append(_first_given(patches, on, layer, parts, n_cells))
            n_cells = len(parts[0].value)
    every = [each for parts in received.values() for each in parts]
    ends = [each for each in every if each.read.part == "logits"]
    edits = {each.read.site: _giving(patches.model, on, each) for each in every if each not in ends}
    final = resume(patches.model, entering, Tap(edit=edits))[on.onward or on]
    for each in ends:
        each.give(final[..., None, :], on.wanted)
    return final


def _giving(model: Transformer, on: Suffix, received: _Received) -> Edit:
    """The edit that gives it to cells, some at a time."""
    read, done = received.read, 0
    at_reads = read.layer == _read_layer(model, on.base.stack) and read.part in {"q", "mlp"}
    at = on.reads if at_reads else on.visibility.columns

    def edit(own: Tensor) -> Tensor:
        nonlocal done
        some = own if read.in_attention else own.view(-1, on.shape[0], at.shape[1], 1, own.shape[-1])
        received.give(some, at, done)
        done += len(some)
        return own

    return edit


def _first_given(patches: SitePatches, on: Suffix, layer: int, parts: Sequence[_Received], start: int) -> ChangedRows:
    """The cells from `start` on, which only now are given something: with what it changes they enter a pass."""
    base, span = patches.base, slice(on.first, on.first + on.shape[1])
    if layer >= _read_layer(patches.model, base.stack):
        span = slice(int(on.reads.min()), int(on.reads.max()) + 1)
    at, rows, changed = torch.arange(span.start, span.stop, device=base.final.device)[None], (slice(None), span), []
    if inside := [each for each in parts if each.read.in_attention]:
        block = patches.blocks[layer]
        stream = after_attention(block, base, layer, rows, _written(patches, on, layer, inside, at, start))
        changed.append((*after(block.config, layer), stream))
    for each in parts:
        if not each.read.in_attention:
            site, within = _SITE[each.read.part], layer - (each.read.part == "logits")
            plain = base[site][within][rows]
            theirs = plain.expand(len(each.value) - start, *plain.shape).clone()
            each.give(theirs[..., None, :], at, start)
            changed.append(stream_with(patches.blocks[within], base, within, rows, site, theirs))
    (layer, stage, stream), *beside = changed
    for *_, other in beside:  # attention and feed-forward of a parallel block
        stream = stream + (other - base.resid[layer][rows])
    return ChangedRows.of_span(on, layer, stage, stream, span.start)


def _written(
    patches: SitePatches, on: Suffix, layer: int, inside: Sequence[_Received], at: Int[Tensor, "1 row"], start: int
) -> Stream:
    """How much more heads write at `at` that are given something: no other head does, as all else is the base run's."""
    attn, kept = patches.blocks[layer].attn, {part: patches.base[f"attn.{part}"][layer] for part in "qkvz"}
    parts = {"q": kept["q"][:, at[0]], "k": kept["k"][:, on.first :], "v": kept["v"][:, on.first :]}
    parts = {part: plain.expand(len(inside[0].value) - start, *plain.shape) for part, plain in parts.items()}
    for each in inside:
        own = parts[each.read.part] = parts[each.read.part].clone()
        each.give(own, at if each.read.part == "q" else on.visibility.columns, start)
    shared = attn.config.n_heads // attn.config.kv_heads
    heads = torch.cat([each.read.query_heads(shared) for each in inside]).unique()
    past = [kept[part][:, : on.first] for part in "kv"]
    k, v, past_k, past_v = (part[..., heads // shared, :] for part in (parts["k"], parts["v"], *past))
    visibility = on.visibility.at(at.expand(on.shape[0], -1))
    z = attend(attn, parts["q"][..., heads, :], k, v, past_k, past_v, visibility, heads)
    dz = z - kept["z"][:, at[0]][:, :, heads]
    return einsum(dz, attn.W_O[heads], "cell prompt row head d_head, head d_head d_model -> cell prompt row d_model")
