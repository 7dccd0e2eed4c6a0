"""What follows from what receivers get? Queries, keys or values of some heads, what a feed-forward writes, or the end.

It is recorded while cells are on their way from senders. Then they are as in the base run up to the first receiver
that they reach: from there they pass the engine, which gives them what was received.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patching.changed_rows import AtReads, ChangedRows, Suffix, after
from interp.patching.engine import resume
from interp.patching.patch_sites import last_stack
from interp.patching.plain import after_attention
from interp.patching.plain_paths import Moment
from interp.patching.shared_keys import attend
from interp.patching.site_patches import SitePatches, Stream, stream_with
from interp.tap import Edit, Tap
from interp.transformer import Transformer

Positions = Int[Tensor, " row"]  # of the prompts, in order
_SITE = {"q": "attn.q", "k": "attn.k", "v": "attn.v", "mlp": "mlp_out", "logits": "resid_post"}


@dataclass(frozen=True, eq=False)
class Asked:
    """Where receivers ask for one `part` of a layer; of feed-forwards and the last stream there is one head."""

    part: str
    layer: int
    mask: Bool[Tensor, "position head"]

    @cached_property
    def rows(self) -> Positions:
        """The positions at which any head asks."""
        return self.mask.any(1).nonzero()[:, 0]

    @cached_property
    def heads(self) -> Int[Tensor, " head"]:
        """The heads that ask anywhere."""
        return self.mask.any(0).nonzero()[:, 0]

    @property
    def site(self) -> str:
        """Where a pass makes what they get."""
        return f"{self.layer}.{_SITE[self.part]}"

    @property
    def in_attention(self) -> bool:
        """Whether heads ask."""
        return self.part in {"q", "k", "v"}

    def query_heads(self, shared: int) -> Int[Tensor, " head"]:
        """The heads whose queries meet it: so many share a key and a value."""
        together = torch.arange(shared, device=self.heads.device)
        return self.heads if self.part == "q" else (self.heads[:, None] * shared + together).flatten()

    def received(self, patches: SitePatches, x: Stream, carried: Positions, made: bool = False) -> "Received":
        """What they get where cells have the stream `x` at positions `carried`, or have `made` it of that already.

        Elsewhere they get what the base run has.
        """
        changed = torch.isin(self.rows, carried)
        rows = self.rows[changed]
        x = x[:, :, torch.searchsorted(carried, rows)]
        positions = patches.base.batch.positions[:, rows]
        value = x[..., None, :] if made or self.part == "logits" else self._made(patches, x, positions)
        if len(rows) == len(self.rows):
            return Received(self, value)
        plain = patches.base[_SITE[self.part]][self.layer - (self.part == "logits")][:, self.rows]
        plain = plain[:, :, self.heads] if self.in_attention else plain[:, :, None]
        every = plain.expand(len(x), *plain.shape).clone()
        every[:, :, changed] = value
        return Received(self, every)

    def _made(self, patches: SitePatches, x: Stream, positions: Int[Tensor, "prompt row"]) -> Tensor:
        block = patches.blocks[self.layer]
        if self.part == "mlp":
            return block.feed_forward.out(x)[..., None, :]
        projected = block.attn.project_heads(block.attention.read(x), self.part, self.heads)
        enter = {"q": block.attn.queries, "k": block.attn.keys}.get(self.part)
        return projected if enter is None else enter(projected, positions)


@dataclass(frozen=True, eq=False)
class Received:
    """What they get, cell by cell, in the order in which cells arrive: those that do later get nothing of it."""

    asked: Asked
    value: Float[Tensor, "cell prompt row head width"]

    def give(
        self, own: Float[Tensor, "some prompt place all width"], at: Int[Tensor, "_ place"], start: int = 0
    ) -> None:
        """Put it into what the cells from `start` on have at positions `at` of all prompts, or of each."""
        asked, (n_cells, n_prompts) = self.asked, own.shape[:2]
        row_of = at.new_full((len(asked.mask),), -1)
        row_of[asked.rows] = torch.arange(len(asked.rows), device=at.device)
        row = row_of[at].expand(n_prompts, -1)
        prompt, place = (row >= 0).nonzero(as_tuple=True)
        row = row[prompt, place]
        where = (slice(None), prompt[:, None], place[:, None], asked.heads)
        mask = asked.mask[asked.rows[row]][:, asked.heads, None]
        own[where] = torch.where(mask, self.value[start : start + n_cells][:, prompt, row], own[where])


def read_layer(model: Transformer, stack: str) -> int:
    """The layer of a stack in which only what metrics read is computed, keys and values aside: its last, if any is."""
    return model.config.stacks[stack].n_layers - (stack == last_stack(model))


def given(patches: SitePatches, on: Suffix, received: dict[Moment, list[Received]]) -> AtReads:
    """The stream out of the last block where metrics read, with everything given that was received."""
    entering, n_cells = [], 0
    for (layer, _), parts in received.items():
        if len(parts[0].value) > n_cells:
            entering.append(_first_given(patches, on, layer, parts, n_cells))
            n_cells = len(parts[0].value)
    every = [each for parts in received.values() for each in parts]
    ends = [each for each in every if each.asked.part == "logits"]
    edits = {each.asked.site: _giving(patches.model, on, each) for each in every if each not in ends}
    final = resume(patches.model, entering, Tap(edit=edits))[on.onward or on]
    for each in ends:
        each.give(final[..., None, :], on.wanted)
    return final


def _giving(model: Transformer, on: Suffix, received: Received) -> Edit:
    """The edit that gives it to cells, some at a time."""
    asked, done = received.asked, 0
    at_reads = asked.layer == read_layer(model, on.base.stack) and asked.part in {"q", "mlp"}
    at = on.reads if at_reads else on.sight.columns

    def edit(own: Tensor) -> Tensor:
        nonlocal done
        some = own if asked.in_attention else own.view(-1, on.shape[0], at.shape[1], 1, own.shape[-1])
        received.give(some, at, done)
        done += len(some)
        return own

    return edit


def _first_given(patches: SitePatches, on: Suffix, layer: int, parts: Sequence[Received], start: int) -> ChangedRows:
    """The cells from `start` on, which only now are given something: with what it changes they enter a pass."""
    base, span = patches.base, slice(on.first, on.first + on.shape[1])
    if layer >= read_layer(patches.model, base.stack):
        span = slice(int(on.reads.min()), int(on.reads.max()) + 1)
    at, rows, changed = torch.arange(span.start, span.stop, device=base.final.device)[None], (slice(None), span), []
    if inside := [each for each in parts if each.asked.in_attention]:
        block = patches.blocks[layer]
        stream = after_attention(block, base, layer, rows, _written(patches, on, layer, inside, at, start))
        changed.append((*after(block.config, layer), stream))
    for each in parts:
        if not each.asked.in_attention:
            site, within = _SITE[each.asked.part], layer - (each.asked.part == "logits")
            plain = base[site][within][rows]
            theirs = plain.expand(len(each.value) - start, *plain.shape).clone()
            each.give(theirs[..., None, :], at, start)
            changed.append(stream_with(patches.blocks[within], base, within, rows, site, theirs))
    (layer, stage, stream), *beside = changed
    for *_, other in beside:  # attention and feed-forward of a parallel block
        stream = stream + (other - base.resid[layer][rows])
    return ChangedRows.of_span(on, layer, stage, stream, span.start)


def _written(
    patches: SitePatches, on: Suffix, layer: int, inside: Sequence[Received], at: Int[Tensor, "1 row"], start: int
) -> Stream:
    """How much more heads write at `at` that are given something: no other head does, as all else is the base run's."""
    attn, kept = patches.blocks[layer].attn, {part: patches.base[f"attn.{part}"][layer] for part in "qkvz"}
    parts = {"q": kept["q"][:, at[0]], "k": kept["k"][:, on.first :], "v": kept["v"][:, on.first :]}
    parts = {part: plain.expand(len(inside[0].value) - start, *plain.shape) for part, plain in parts.items()}
    for each in inside:
        own = parts[each.asked.part] = parts[each.asked.part].clone()
        each.give(own, at if each.asked.part == "q" else on.sight.columns, start)
    shared = attn.config.n_heads // attn.config.kv_heads
    heads = torch.cat([each.asked.query_heads(shared) for each in inside]).unique()
    past = [kept[part][:, : on.first] for part in "kv"]
    k, v, past_k, past_v = (part[..., heads // shared, :] for part in (parts["k"], parts["v"], *past))
    sight = on.sight.at(at.expand(on.shape[0], -1))
    z = attend(attn, parts["q"][..., heads, :], k, v, past_k, past_v, sight, heads)
    dz = z - kept["z"][:, at[0]][:, :, heads]
    return einsum(dz, attn.W_O[heads], "cell prompt row head d_head, head d_head d_model -> cell prompt row d_model")
