"""Runs several circuits at once, each alone: computes only live nodes, only where prompts can differ.

A node is live if an input reaches it and one of its edges leads on. We hold what it writes as a change: its write minus
its write in the reference. A row is one position of one prompt in one circuit. Receivers of a layer that keep the same
edges share one input.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from interp.circuits.reference import Reference, Writes, input_writes, position_names
from interp.components import Graph
from interp.patching.changed_rows import attend
from interp.patching.pairs import Pairs
from interp.products import linear
from interp.transformer import Block, Transformer
from interp.visibility import Visibility

Stream = Float[Tensor, "prompt position d_model"]
Inputs = Float[Tensor, "set row d_model"]  # one per distinct set of kept edges


class _Changes:
    """The changes of live nodes, `row node d_model`, and the edges that lead on from them."""

    def __init__(self, edges: Bool[Tensor, "cell name sender receiver"], kinds: Int[Tensor, " row"], inputs: Tensor):
        self.live = edges.flatten(0, 1).any(0).any(1).nonzero()[:, 0].tolist()
        self.edges, self.kinds = edges[:, :, self.live], kinds  # each row's index into cell x name
        self.values = inputs.new_empty(len(kinds), len(self.live), inputs.shape[-1])
        span, senders = self.span(0, inputs.shape[-2])
        self.values[:, span] = inputs[..., senders, :].flatten(0, 1).repeat(len(edges), 1, 1)

    def span(self, first: int, stop: int) -> tuple[slice, list[int]]:
        """The slice of live nodes among the senders from `first` to `stop`, and their offsets from `first`."""
        span = slice(bisect_left(self.live, first), bisect_left(self.live, stop))
        return span, [sender - first for sender in self.live[span]]

    def sums(self, first: int, stop: int, receivers: slice) -> tuple[Inputs, list[int]]:
        """The sum that each set of kept edges from these senders carries, and each receiver's set (-1: none)."""
        span, senders = self.span(first, stop)
        if not senders:
            return self.values.new_empty(0, 0, 0), [-1] * (receivers.stop - receivers.start)
        edges = self.edges[:, :, span, receivers].permute(3, 0, 1, 2)  # receiver cell name sender
        sets, index = edges.flatten(1).unique(dim=0, return_inverse=True)
        kept = sets.any(1)
        place = torch.where(kept, kept.cumsum(0) - 1, -1)[index].tolist()
        weights = sets[kept].unflatten(1, edges.shape[1:]).flatten(1, 2).transpose(0, 1).to(self.values)
        out = self.values.new_empty(weights.shape[1], len(self.values), self.values.shape[-1])
        if len(out):
            by_row = weights[self.kinds] if len(weights) > 1 else weights.expand(len(self.kinds), -1, -1)
            torch.bmm(by_row, self.values[:, span], out=out.transpose(0, 1))
        return out, place


class Alone:
    """Circuits of one graph over some pairs, from position `first` on, before which nothing differs."""

    def __init__(self, model: Transformer, graph: Graph, pairs: Pairs, writes: Writes, first: int = 0):
        batch, _ = pairs.inputs[0]
        self.model, self.graph, self.first = model, graph, first
        self.reference = Reference.from_writes(model, graph, writes, batch)
        self.inputs = (input_writes(model, graph, batch) - next(iter(writes.values())))[:, first:]
        self.names = position_names(pairs.positions, graph, batch)[:, first:]
        self.before = graph.exists.sum(0).tolist()  # each receiver's number of senders
        visibility = Visibility.from_batch(batch, causal=model.last.config.causal, first=first)
        # padding is on the right: no causal query sees it
        self.visibility = replace(visibility, padding=None) if visibility.causal else visibility
        self.past = batch.positions[:, :first]

    def finals(
        self, circuits: Sequence[Bool[Tensor, "*position sender receiver"]]
    ) -> Float[Tensor, "cell prompt position d_model"]:
        """Each circuit's stream after the last norm; the edges must be pruned."""
        edges = torch.stack([*circuits])
        edges = edges if self.graph.positions else edges[:, None]
        cells = torch.arange(len(edges), device=edges.device)[:, None]
        changes = _Changes(edges, (cells * edges.shape[1] + self.names.flatten()).flatten(), self.inputs)
        receiver = 0
        for layer, block in enumerate(self.model.last.blocks):
            receiver = self._layer(changes, layer, block, receiver)
        base = self.reference.final
        finals = base.expand(len(edges), *base.shape).clone()
        sums, (place,) = changes.sums(0, self.before[receiver], slice(receiver, receiver + 1))
        if place >= 0:
            suffix = finals[:, :, self.first :]
            suffix += sums[place].view_as(suffix)
        return self.model.last.norm(finals)

    def _layer(self, changes: _Changes, layer: int, block: Block, receiver: int) -> int:
        """Compute what a layer's live nodes write; return the next layer's first receiver."""
        (stack,), config = self.model.config.stacks, self.model.last.config
        n_before, feed = self.before[receiver], receiver + config.n_heads + 2 * config.kv_heads
        after = feed + (block.mlp is not None)
        sums, places = changes.sums(0, n_before, slice(receiver, after))  # the feed-forward's lack this layer's heads
        reads = places[: feed - receiver]
        span, heads = changes.span(n_before, n_before + config.n_heads)
        if heads:
            z = self._mixed(block, layer, sums, reads)[..., heads, :]
            z = z - self.reference.writes[f"{stack}.{layer}.attn.z"][:, self.first :, heads]
            weight = block.attn.W_O if len(heads) == config.n_heads else block.attn.W_O[heads]
            torch.bmm(z.flatten(0, 2).transpose(0, 1), weight, out=changes.values[:, span].transpose(0, 1))
        if block.mlp is None:
            return after
        terms = [sums[places[-1]]] if places[-1] >= 0 else []
        if heads and self.before[feed] > n_before:
            heads_sums, (place,) = changes.sums(n_before, self.before[feed], slice(feed, after))
            terms += [heads_sums[place]] if place >= 0 else []
        if terms:
            span, _ = changes.span(n_before + config.n_heads, n_before + config.n_heads + 1)
            out = block.feed_forward.out(self._added(self.reference.between[layer], *terms))
            out = out - self.reference.writes[f"{stack}.{layer}.mlp_out"][:, self.first :, 0]
            changes.values[:, span] = out.flatten(0, 2)[:, None]
        return after

    def _added(self, base: Stream, *terms: Float[Tensor, "row d_model"]) -> Float[Tensor, "cell prompt suffix d_model"]:
        """A receiver's own input: the reference's stream plus what its edges carry."""
        base = base[:, self.first :]
        return sum((term.view(-1, *base.shape) for term in terms), base)

    def _mixed(
        self, block: Block, layer: int, sums: Inputs, reads: Sequence[int]
    ) -> Float[Tensor, "cell prompt position head d_head"]:
        """z of all heads; queries, keys and values without a kept edge are the reference's."""
        attn, width, plain = block.attn, block.attn.config.d_head, self.reference.projected[layer]
        sizes = [attn.config.n_heads, attn.config.kv_heads, attn.config.kv_heads]
        new = plain[:, self.first :].movedim(2, 0)
        projected = new[:, None].repeat(1, sums.shape[1] // new[0, ..., 0].numel(), 1, 1, 1)
        for place, total in enumerate(sums):
            if not (receivers := [row for row, each in enumerate(reads) if each == place]):
                continue  # only the feed-forward has this set
            stream = block.attention.read(self._added(self.reference.before[layer], total))
            for start, stop in _runs(receivers):
                part = slice(start * width, stop * width)
                bias = None if attn.qkv.bias is None else attn.qkv.bias[part]
                # for part of the weight use the plain kernel, which does not copy it
                out = (linear if stop - start == len(reads) else F.linear)(stream, attn.qkv.weight[part], bias)
                projected[start:stop] = out.unflatten(-1, (-1, width)).movedim(-2, 0)
        q, k, v = attn.enter(projected.movedim(0, -2).split(sizes, -2), self.visibility.positions)
        _, past_k, past_v = plain[:, : self.first].split(sizes, -2)
        return attend(attn, q, k, v, [attn.keys(past_k, self.past), past_v], self.visibility)


def _runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The start and stop of each run of consecutive numbers."""
    starts, stops = ([each for each in numbers if each + step not in numbers] for step in (-1, 1))
    return zip(starts, [each + 1 for each in stops], strict=True)
