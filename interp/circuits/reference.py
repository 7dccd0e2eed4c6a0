"""What do nodes outside a circuit write, and what is read then? Corrupted prompts' writes, their mean, or nothing."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.components import Graph
from interp.config import NoMLP
from interp.model import Model
from interp.patching.pairs import Inputs, text_read
from interp.running import run
from interp.tokens import TokenBatch
from interp.transformer import Transformer

Ablation = Literal["corrupt", "mean", "zero"]
Writes = Mapping[str, Float[Tensor, "prompt position node width"]]  # by site


def node_sites(model: Model, graph: Graph) -> dict[str, slice]:
    """The sites at which nodes write, in the order of the graph's senders, and the slice of senders at each."""
    sites, start = {}, 0
    for stack, config in model.config.stacks.items():
        counts = {f"{stack}.embed": 1 + (graph.senders[0] == "token")}
        for layer in range(config.n_layers):
            counts[f"{stack}.{layer}.attn.z"] = config.n_heads
            counts |= {f"{stack}.{layer}.cross_attn.z": config.n_heads} if config.cross_attention else {}
            counts |= {} if isinstance(config.mlp, NoMLP) else {f"{stack}.{layer}.mlp_out": 1}
        for site, count in counts.items():
            sites[site] = slice(start, start := start + count)
    return sites


@torch.no_grad()
def written(model: Model, graph: Graph, inputs: Inputs) -> Writes:
    """What every node writes for some prompts: z for heads, the write to the stream for all others."""
    *_, last = sites = node_sites(model, graph)
    captured = run(model, inputs[0], capture=sites, target=inputs[1], until=last).activations  # we need no logits
    writes = {site: value if site.endswith(".z") else value[..., None, :] for site, value in captured.items()}
    if graph.senders[0] == "token":
        assert isinstance(model, Transformer)
        writes[next(iter(writes))] = input_writes(model, graph, inputs[0])
    return writes


def input_writes(model: Transformer, graph: Graph, batch: TokenBatch) -> Float[Tensor, "prompt position input d_model"]:
    """What the embedding writes, or token and position separately, without `embedding_constant`."""
    layer, whole = model.last.embed, model.last.embed(batch.ids, batch.positions)
    if graph.senders[0] != "token":
        return whole[..., None, :]
    row, constant = layer.token(batch.ids) * layer.config.embedding_scale, embedding_constant(model, graph)
    token = layer.project(row if layer.token_type is None else row + layer.token_type.weight[0]) - constant
    return torch.stack([token, whole - token - constant], -2)


@torch.no_grad()
def common_writes(model: Model, graph: Graph, ablation: Ablation, parts: Sequence[Inputs]) -> Writes | None:
    """One reference for all prompts and positions: zeros, or the mean over all real positions of `parts`."""
    if ablation == "corrupt":
        return None
    if ablation == "zero":
        sites, weight = node_sites(model, graph), torch.zeros(1, dtype=model.dtype, device=model.device)
        shapes = {site: (span.stop - span.start, model.sites[site].sizes[-1] or 0) for site, span in sites.items()}
        return {site: weight.expand(1, 1, *shape) for site, shape in shapes.items()}
    totals, counts = defaultdict[str, Any](float), defaultdict[str, Any](float)
    for inputs in parts:
        for site, value in written(model, graph, inputs).items():
            real = text_read(inputs, site.partition(".")[0]).mask[..., None, None].to(value)
            totals[site] = totals[site] + (value * real).sum((0, 1), keepdim=True)
            counts[site] = counts[site] + real.sum((0, 1), keepdim=True)
    return {site: total / counts[site] for site, total in totals.items()}


def embedding_constant(model: Transformer, graph: Graph) -> Tensor:
    """What embeddings add apart from token and position, if the graph separates the two; else 0."""
    layer = model.last.embed
    nothing = layer.token.weight.new_zeros(layer.token.weight.shape[1])
    if graph.senders[0] != "token":
        return nothing.new_zeros(model.config.d_model)
    return layer.project(nothing if layer.token_type is None else layer.token_type.weight[0])


def position_names(
    positions: Mapping[str, Int[Tensor, " prompt"]], graph: Graph, batch: TokenBatch
) -> Int[Tensor, "prompt position"]:
    """The index of each token's named position in the graph (the first of several), or the last one, `elsewhere`."""
    names = torch.full_like(batch.ids, len(graph.positions))
    for place, name in reversed([*enumerate(graph.positions)]):
        names.scatter_(1, positions[name].to(names)[:, None], place)
    return names


@dataclass(frozen=True, eq=False)
class Reference:
    """The run in which every node writes its reference value; biases are always added.

    `before[layer]` is what attention reads, `between[layer]` what the feed-forward reads, `final` what leaves the last
    block; `projected[layer]` are queries, keys and values (`prompt position head d_head`) computed from `before`.
    """

    writes: Writes
    before: list[Float[Tensor, "prompt position d_model"]]
    between: list[Float[Tensor, "prompt position d_model"]]
    final: Float[Tensor, "prompt position d_model"]
    projected: list[Float[Tensor, "prompt position head d_head"]]

    @staticmethod
    @torch.no_grad()
    def from_writes(model: Transformer, graph: Graph, writes: Writes, batch: TokenBatch) -> "Reference":
        """The reference run over some prompts; the model has one stack."""
        (stack,) = model.config.stacks
        whole = (len(batch.ids), batch.ids.shape[1])
        writes = {site: value.expand(*whole, *value.shape[2:]) for site, value in writes.items()}
        stream = writes[f"{stack}.embed"].sum(-2) + embedding_constant(model, graph)
        before, between, projected = [], [], []
        for layer, block in enumerate(model.last.blocks):
            before.append(stream)
            projected.append(torch.cat(block.attn.project(block.attention.read(stream)), -2))
            after = stream + block.attn.out(writes[f"{stack}.{layer}.attn.z"].flatten(-2))
            between.append(stream if block.attn.config.parallel else after)
            stream = after if block.mlp is None else after + writes[f"{stack}.{layer}.mlp_out"][..., 0, :]
        return Reference(writes, before, between, stream, projected)
