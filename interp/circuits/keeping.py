"""A model in which only a circuit works, for use with every other function: edits replace everything outside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.circuits.graph import Circuit, check_circuit, from_nodes
from interp.circuits.reference import (
    Ablation,
    Reference,
    Writes,
    common_writes,
    embedding_constant,
    input_writes,
    node_sites,
    position_names,
    written,
)
from interp.components import Graph
from interp.errors import InputError, one_of
from interp.model import Model, Tokens, as_batches
from interp.patching.pairs import Inputs, text_read
from interp.running import Edited, in_turn
from interp.tap import UNTAPPED, Edit, Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer, with_parts

Edits = dict[str, Edit]  # by site
Stream = Float[Tensor, "... position d_model"]
_NODES = ("embed", ".q", ".k", ".v", "scores", "pattern", ".z", "mlp_out", "pre", "post", "resid_final", "logits")


def keep(
    model: Model,
    circuit: Circuit | Sequence[str | tuple[int, int]],
    *,
    ablation: Ablation = "zero",
    texts: Tokens | None = None,
    target: Tokens | None = None,
    positions: Mapping[str, Int[Tensor, " prompt"]] | None = None,
) -> Edited:
    """A copy of `model` in which only a circuit works; use it like a model. `model` itself does not change.

    Args:
        model: a transformer; for nodes any model.
        circuit: edges or nodes, run as in `faithfulness`; or heads (`"0.3"` or `(0, 3)`), which keeps embeddings and
            feed-forwards too.
        ablation: what is written outside: `zero`, nothing; `corrupt`, what is written for `texts` at the same position,
            so every call must read as many texts of the same length; `mean`, its mean over all positions.
        texts, target: the texts of `corrupt` and `mean`.
        positions: if the circuit's edges have named positions, each name's position in each text, as in `Pairs`.

    A call's own edits come after these. With edges the stream is no longer one sum: it cannot be edited between nodes.
    """
    kept = circuit if isinstance(circuit, Circuit) else _with_heads(model, circuit)
    check_circuit(model, kept)
    if (one_of("ablation", ablation, Ablation) == "zero") != (texts is None):
        raise InputError("expected texts for ablation corrupt or mean, and none for zero")
    if lacking := [name for name in kept.graph.positions if name not in (positions or {})]:
        raise InputError(f"these edges have positions: expected positions={{{lacking[0]!r}: ...}}, one per text")
    inputs = [] if texts is None else [as_batches(model, texts, target)]
    common = common_writes(model, kept.graph, ablation, inputs)
    writes = written(model, kept.graph, inputs[0]) if common is None else common
    if kept.kind == "nodes":
        return _Kept(
            model, lambda read: (node_edits(model, kept.graph, kept.members, _fitting(writes, read), read), {})
        )
    whole, columns = with_parts(model, "keeping edges"), positions or {}
    return _Kept(model, lambda read: _Edges(whole, kept.pruned(), _fitting(writes, read), read[0], columns).edits())


def _with_heads(model: Model, heads: Sequence[str | tuple[int, int]]) -> Circuit:
    """All nodes that are not heads, and some heads, given by name or by (layer, number) in the last stack."""
    graph, stacks = Graph.from_model(model), [*model.config.stacks]
    prefix = f"{stacks[-1]}." if len(stacks) > 1 else ""
    spans = [span for site, span in node_sites(model, graph).items() if not site.endswith(".z")]
    names = [head if isinstance(head, str) else f"{prefix}{head[0]}.{head[1]}" for head in heads]
    return from_nodes(graph, [*names, *(name for span in spans for name in graph.senders[span])])


def _fitting(writes: Writes, inputs: Inputs) -> Writes:
    """The reference, if it has as many prompts and positions as a call reads, or one for all; else an InputError."""
    for site, value in writes.items():
        shape = text_read(inputs, site.partition(".")[0]).ids.shape
        if value.shape[:2] not in {(1, 1), shape}:
            expected, got = (" x ".join(map(str, each[:2])) for each in (value.shape, shape))
            raise InputError(f"the circuit's reference has {expected} tokens: expected texts like it, got {got}")
    return writes


class _Kept(Edited):
    """A `Model` with edits made for each call's texts: some come before, some after the call's own edits."""

    def __init__(self, model: Model, make: Callable[[Inputs], tuple[Edits, Edits]]):
        super().__init__(model, {})
        self.make = make

    def __call__(
        self, batch: Tokens, tap: Tap = UNTAPPED, target: Tokens | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        inputs = as_batches(self, batch, target)
        edits, after = self.make(inputs)
        if after and (lost := [site for site in tap.edit if not site.endswith(_NODES)]):
            raise InputError(f"no node of an edge circuit reads {lost[0]}: edit what nodes write or read (attn.z)")
        for name, edit in [*tap.edit.items(), *after.items()]:
            edits[name] = in_turn(edits.get(name), edit)
        inner = replace(tap, edit=edits, fired=set())
        try:
            return self.model(inputs[0], inner, inputs[1])
        finally:
            tap.fired.update(inner.fired & tap.edit.keys())


def node_edits(
    model: Model, graph: Graph, members: Bool[Tensor, "*circuit sender"], writes: Writes, inputs: Inputs
) -> Edits:
    """Edits that replace what nodes outside write; several circuits lie on a new first axis."""

    def edit(value: Tensor, site: str, span: slice) -> Tensor:
        by_head, member = site.endswith(".z"), members[..., None, None, span, None]
        if by_head:
            return torch.where(member, value, writes[site])
        if span.stop - span.start == 1:
            return torch.where(member[..., 0, :], value, writes[site][..., 0, :])
        parts = torch.where(member, own, writes[site])  # token and position
        return parts.sum(-2) + constant

    if graph.senders[0] == "token":
        assert isinstance(model, Transformer)
        own, constant = input_writes(model, graph, inputs[0]), embedding_constant(model, graph)
    return {site: partial(edit, site=site, span=span) for site, span in node_sites(model, graph).items()}


class _Edges:
    """One call with a circuit's edges alone: `changes` are the senders' writes so far, minus the reference's."""

    def __init__(
        self, model: Transformer, circuit: Circuit, writes: Writes, batch: TokenBatch, columns: Mapping[str, Tensor]
    ):
        self.model, self.graph, self.batch = model, circuit.graph, batch
        self.writes, self.reference = writes, Reference.from_writes(model, circuit.graph, writes, batch)
        at = position_names(columns, circuit.graph, batch)
        by_name = circuit.members.view(-1, *circuit.graph.exists.shape).to(model.device)
        self.edges = by_name[at]  # prompt position sender receiver
        self.changes: list[Stream] = []  # in sender order

    def edits(self) -> tuple[Edits, Edits]:
        """Edits that give every receiver its own input, and edits that record what senders write."""
        (stack,), last, reference = self.model.config.stacks, self.model.last, self.reference
        received = partial(self.received, base=reference.final, receiver="logits", read=last.norm)
        before: Edits = {f"{stack}.resid_final": received}
        after: Edits = {f"{stack}.embed": self.embedded}
        for layer, block in enumerate(last.blocks):
            place = f"{stack}.{layer}"
            before |= {f"{place}.attn.{part}": partial(self.projected, part=part, layer=layer) for part in "qkv"}
            after[f"{place}.attn.z"] = partial(self.mixed, layer=layer)
            if block.mlp is not None:
                base, read = reference.between[layer], block.feed_forward.read
                before[f"{place}.mlp.normalized"] = partial(
                    self.received, base=base, receiver=f"mlp.{layer}", read=read
                )
                after[f"{place}.mlp_out"] = partial(self.fed, instead=self.writes[f"{place}.mlp_out"][..., 0, :])
        return before, after

    def read(self, base: Stream, receiver: str) -> Stream:
        """A receiver's own input."""
        kept = self.edges[..., self.graph.index("receivers")[receiver]].to(base)  # prompt position sender
        used = [sender for sender in range(len(self.changes)) if bool(kept[..., sender].any())]
        return sum((kept[..., sender, None] * self.changes[sender] for sender in used), base)

    def received(self, value: Stream, base: Stream, receiver: str, read: Callable[[Stream], Stream]) -> Stream:
        """The normalised input of a feed-forward or the output layer."""
        return _expanded(read(self.read(base, receiver)), value)

    def projected(self, value: Tensor, part: str, layer: int) -> Tensor:
        """Queries, keys or values, computed head by head."""
        block, rows = self.model.last.blocks[layer], []
        for head in range(value.shape[-2]):
            stream = self.read(self.reference.before[layer], f"{layer}.{head}.{part}")
            index = torch.tensor([head], device=stream.device)
            rows.append(block.attn.project_heads(block.attention.read(stream), part, index))
        return _expanded(torch.cat(torch.broadcast_tensors(*rows), -2), value)

    def embedded(self, value: Stream) -> Stream:
        """Record what the embedding writes, or token and position separately if the graph has both."""
        (site, *_), apart = self.writes, self.graph.senders[0] == "token"
        parts = input_writes(self.model, self.graph, self.batch) if apart else value[..., None, :]
        self.changes += (parts - self.writes[site]).unbind(-2)
        return value

    def mixed(self, value: Tensor, layer: int) -> Tensor:
        """Record what heads write."""
        (stack,), weight = self.model.config.stacks, self.model.last.blocks[layer].attn.W_O
        change = value - self.writes[f"{stack}.{layer}.attn.z"]
        self.changes += einsum(change, weight, "... head d_head, head d_head d_model -> head ... d_model")
        return value

    def fed(self, value: Stream, instead: Tensor) -> Stream:
        """Record what a feed-forward writes."""
        self.changes.append(value - instead)
        return value


def _expanded(rows: Tensor, value: Tensor) -> Tensor:
    return rows.expand(torch.broadcast_shapes(rows.shape, value.shape))
