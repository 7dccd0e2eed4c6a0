"""Some circuits run at once, each kept alone: only their live nodes are computed, only where prompts can differ.

A node is live if an input reaches it and one of its edges leads on. What it writes is held as a change: how much more
that is than in the reference. Receivers of one layer that keep the same edges share one input.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.circuits.reference import Reference, input_writes
from interp.components import Graph
from interp.patching.changed_rows import attend
from interp.tokens import TokenBatch
from interp.transformer import Transformer
from interp.visibility import Visibility

Stream = Float[Tensor, "prompt position d_model"]
Inputs = Float[Tensor, "set prompt position d_model"]  # one for each set of edges that some receivers keep
Receivers = list[Int[Tensor, " _"]]  # of each such set, counted in the layer


class _Cell:
    """One circuit: its edges from live nodes, and the changes of these."""

    def __init__(self, graph: Graph, edges: Bool[Tensor, "*position sender receiver"], changes: Inputs):
        edges = edges if graph.positions else edges[None]
        self.live = edges.any(0).any(1).nonzero()[:, 0].tolist()
        self.edges = edges[:, self.live]
        self.changes = changes.new_empty(len(self.live), *changes.shape[1:])
        self.write(0, changes)

    def span(self, first: int, count: int) -> tuple[slice, list[int]]:
        """Where the live nodes among `count` senders from `first` on lie, and which of these they are."""
        span = slice(bisect_left(self.live, first), bisect_left(self.live, first + count))
        return span, [sender - first for sender in self.live[span]]

    def write(self, first: int, changes: Inputs) -> None:
        """Hold the changes of the live nodes among the senders from `first` on."""
        span, senders = self.span(first, len(changes))
        self.changes[span] = changes[senders]

    def read(self, base: Stream, n_before: int, receivers: slice, names: Tensor | None) -> tuple[Inputs, Receivers]:
        """The inputs of the receivers that keep any edge; `n_before` senders write before they read."""
        if not (span := self.span(0, n_before)[0]).stop:
            return self.changes[:0], []
        edges = self.edges[:, span, receivers].permute(2, 0, 1)  # receiver position sender
        sets, index = edges.flatten(1).unique(dim=0, return_inverse=True)
        used = [place for place, edge in enumerate(sets.any(1).tolist()) if edge]
        weights, changes = sets[used].unflatten(1, edges.shape[1:]).to(base), self.changes[span]
        if names is None:
            inputs = (weights[:, 0] @ changes.flatten(1)).unflatten(1, base.shape) if used else changes[:0]
        else:
            inputs = changes.new_empty(len(used), *base.shape)
            for place in names.unique().tolist():
                inputs[:, names == place] = einsum(
                    weights[:, place], changes[:, names == place], "set sender, sender row d -> set row d"
                )
        return inputs.add_(base), [(index == place).nonzero()[:, 0] for place in used]


class Alone:
    """Circuits of one graph over some prompts, from position `first` on: before it nothing differs.

    `names` says which position's name each token of `batch` has, where edges have positions.
    """

    def __init__(
        self,
        model: Transformer,
        graph: Graph,
        reference: Reference,
        batch: TokenBatch,
        first: int = 0,
        names: Int[Tensor, "prompt position"] | None = None,
    ):
        self.model, self.graph, self.reference, self.first = model, graph, reference, first
        change = input_writes(model, graph, batch) - next(iter(reference.writes.values()))
        self.changes, self.names = change[:, first:].movedim(2, 0), None if names is None else names[:, first:]
        self.before = graph.exists.sum(0).tolist()  # how many senders, by receiver
        visibility = Visibility.from_batch(batch, causal=model.last.config.causal, first=first)
        # padding is on the right: no causal query sees it
        self.visibility = replace(visibility, padding=None) if visibility.causal else visibility
        self.past = batch.positions[:, :first]

    def finals(
        self, circuits: Sequence[Bool[Tensor, "*position sender receiver"]]
    ) -> Float[Tensor, "cell prompt position d_model"]:
        """The stream after the last norm of each circuit; its edges must be pruned."""
        cells = [_Cell(self.graph, edges, self.changes) for edges in circuits]
        sender, receiver, config = len(self.changes), 0, self.model.last.config
        for layer, block in enumerate(self.model.last.blocks):
            n_reads = config.n_heads + 2 * config.kv_heads
            self._attend(cells, layer, sender, slice(receiver, receiver + n_reads))
            sender, receiver = sender + config.n_heads, receiver + n_reads
            if block.mlp is not None:
                self._feed_forward(cells, layer, sender, slice(receiver, receiver + 1))
                sender, receiver = sender + 1, receiver + 1
        base = self.reference.final
        finals = base.expand(len(cells), *base.shape).clone()
        for row, (_, inputs, _) in self._reads(cells, base, slice(receiver, receiver + 1)):
            finals[row, :, self.first :] = inputs[0]
        return self.model.last.norm(finals)

    def _reads(
        self, cells: Sequence[_Cell], base: Stream, receivers: slice
    ) -> Iterator[tuple[int, tuple[_Cell, Inputs, Receivers]]]:
        """What each cell reads there, of those that keep any edge to it."""
        for row, cell in enumerate(cells):
            inputs, sets = cell.read(base[:, self.first :], self.before[receivers.start], receivers, self.names)
            if sets:
                yield row, (cell, inputs, sets)

    def _attend(self, cells: Sequence[_Cell], layer: int, sender: int, receivers: slice) -> None:
        """Hold what the live heads of a layer write."""
        block, n_heads = self.model.last.blocks[layer], self.model.config.n_heads
        if not (reads := [read for _, read in self._reads(cells, self.reference.before[layer], receivers)]):
            return
        live = sorted({head for cell, *_ in reads for head in cell.span(sender, n_heads)[1]})
        heads, attn = torch.tensor(live, device=self.changes.device), block.attn
        inputs = reads[0][1] if len(reads) == 1 else torch.cat([inputs for _, inputs, _ in reads])
        inputs = [*block.attention.read(inputs)]
        z = self._mixed(attn, layer, heads, inputs, [sets for *_, sets in reads])
        (stack,) = self.model.config.stacks
        change = z - self.reference.writes[f"{stack}.{layer}.attn.z"][:, self.first :, heads]
        for cell, rows in zip((cell for cell, *_ in reads), change, strict=True):
            span, mine = cell.span(sender, n_heads)
            by_head = rows[:, :, [live.index(head) for head in mine]].flatten(0, 1).transpose(0, 1)
            torch.bmm(by_head, attn.W_O[mine], out=cell.changes[span].flatten(1, 2))

    def _mixed(
        self, attn: Attention, layer: int, heads: Int[Tensor, " head"], inputs: Sequence[Stream], sets: list[Receivers]
    ) -> Float[Tensor, "cell prompt position head d_head"]:
        """z of some heads: queries, keys and values that keep no edge are the reference's."""
        n_heads, n_keys = attn.config.n_heads, attn.config.kv_heads
        keys, key = (heads // (n_heads // n_keys)).unique(return_inverse=True)
        rows = torch.cat([heads, n_heads + keys, n_heads + n_keys + keys])  # of all that is projected
        place = torch.full((n_heads + 2 * n_keys,), -1, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        plain, row = self.reference.projected[layer][:, :, rows], iter(inputs)
        projected = plain[:, self.first :].expand(len(sets), -1, -1, -1, -1).clone()
        for cell, receivers in zip(projected, sets, strict=True):
            for each in receivers:  # queries, keys and values are counted on from queries
                cell[:, :, place[each]] = attn.project_heads(next(row), "q", each)
        sizes = [len(heads), len(keys), len(keys)]
        q, k, v = attn.enter(projected.split(sizes, -2), self.visibility.positions)
        _, past_k, past_v = plain[:, : self.first].split(sizes, -2)
        past = [attn.keys(past_k, self.past)[:, :, key], past_v[:, :, key]]
        return attend(attn, q, k[..., key, :], v[..., key, :], past, self.visibility, heads)

    def _feed_forward(self, cells: Sequence[_Cell], layer: int, sender: int, receivers: slice) -> None:
        """Hold what a live feed-forward writes."""
        block, (stack,) = self.model.last.blocks[layer], self.model.config.stacks
        plain = self.reference.writes[f"{stack}.{layer}.mlp_out"][:, self.first :, 0]
        if reads := [read for _, read in self._reads(cells, self.reference.between[layer], receivers)]:
            outs = block.feed_forward.out(torch.cat([inputs for _, inputs, _ in reads]))
            for (cell, *_), out in zip(reads, outs, strict=True):
                cell.write(sender, (out - plain)[None])
