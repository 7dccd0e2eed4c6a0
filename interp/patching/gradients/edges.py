"""Which connections between components matter? A score for every edge, from gradients.

An edge is a sender's part of what a receiver reads from the residual stream. Its score is the first-order effect of
putting another prompt's write there and nowhere else: edge attribution patching (Syed, Rager & Conmy 2023,
arXiv:2310.10348). Gradients averaged on the way from one prompt to the other give EAP-IG (Hanna, Pezzelle & Belinkov
2024, arXiv:2403.17806), which finds effects that a flat gradient hides. Either the input moves that way and all else
follows, or each sender's own output moves.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Literal

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.components import Graph
from interp.devices import move
from interp.errors import InputError, one_of
from interp.model import Model
from interp.patching.gradients.tape import BUDGET, Tape, record, split, take
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import last_stack, only_stack, site_name
from interp.patching.preparation import Plan
from interp.patching.results import Cells, Direction
from interp.transformer import Transformer, with_parts

Along = Literal["inputs", "activations", "layers"]
Move = tuple[slice, str | None, Any]  # the senders that a pass scores, the site that moves (the input), and its heads
Writes = Float[Tensor, "sender prompt position d_model"]
Reads = Float[Tensor, "receiver prompt position d_model"]


def edge_attribution(
    model: Model,
    pairs: Pairs,
    metric: Metric,
    direction: Direction = "denoise",
    *,
    steps: int = 5,
    along: Along = "inputs",
    budget: int = BUDGET,
) -> Cells:
    """Score every edge: (the other prompt's write - own) . the metric's gradient at the receiver's own input.

    Args:
        model: a transformer of one stack with an output layer, its norms before its layers or absent.
        pairs, metric, direction, budget: as in `attribution_patching`.
        steps: number of points to average gradients over, on the line from own to other, including the own end but not
            the other. 1 is plain EAP: the gradient at the own prompt alone.
        along: what moves along that line. `inputs`: the embedding (with `noise`, Hanna 2024, equation 3; their package
            has the points of `denoise`, and the opposite sign). `activations`: the edge's own sender, in the own
            prompt; one pass per sender and step. `layers`: EAP-IG activations as in their package (with `noise`), which
            moves all heads of a layer at once, holds what moves constant, and gives each edge the mean gradient over
            the moves of all nodes, before or after it.

    Returns:
        Cells: on the axes `sender`, `receiver` (names as in `Graph`), the predicted change of the metric from the own
            prompt's value when the edge carries the other write; NaN where there is no edge.
    """
    model = with_parts(model, "edge attribution")
    only_stack(model, "edge attribution")
    if (graph := Graph.from_model(model)).reason:
        raise InputError(graph.reason)
    if steps < 1:
        raise InputError(f"steps must be at least 1 (plain edge attribution), got {steps}")
    moves = _moves(model, one_of("along", along, Along))
    weight = 1 / (steps * (1 if along == "activations" else len(moves)))
    plan = Plan.from_arguments(model, pairs, metric, "resid_pre", ("layer",), direction)
    (readout,) = plan.readouts
    scores = model.last.embed.token.weight.detach().new_zeros(*graph.exists.shape, len(pairs))
    n_reads = model.config.n_heads + 2 * model.last.config.kv_heads  # of one layer
    extra = 2 * len(graph.senders) + 4 * n_reads
    names = _names(model, "resid_pre", "q", "k", "v", "z", "resid_post", "read by mlp", "mlp_out")
    for prompts in split(model, pairs, budget, extra * model.config.d_model):
        reading = [readout.take(prompts)], names
        base, source = (take(inputs, prompts) for inputs in plan.inputs)
        with torch.no_grad():
            tapes = [record(model, inputs, *reading) for inputs in (base, source)]
            change = _change(model, *tapes)
        for senders, tape in _passes(model, tapes, moves, steps, reading):
            for n_senders, span, reads in _reads(model, tape, readout.name):
                rows = range(n_senders)[senders]
                pattern = "sender prompt p d_model, receiver prompt p d_model -> sender receiver prompt"
                products = einsum(change[rows.start : rows.stop], reads.to(change.device), pattern)
                scores[rows.start : rows.stop, span, prompts] += weight * products
    values = {readout.name: scores.masked_fill(~graph.exists.to(scores.device)[..., None], torch.nan)}
    labels = {"sender": graph.senders, "receiver": graph.receivers}
    return Cells("", plan.direction, ("sender", "receiver"), values, labels=labels, kind="edges")


def _moves(model: Transformer, along: Along) -> list[Move]:
    """The successive moves along the line: only the input, or also every sender or every layer's senders."""
    alone, moves, row = along == "activations", [], 1
    for layer, block in enumerate(model.last.blocks) if along != "inputs" else ():
        heads = [(..., head, slice(None)) for head in range(model.config.n_heads)] if alone else [...]
        parts = [("z", head) for head in heads] + [("mlp_out", ...)] * (block.mlp is not None)
        for site, head in parts:
            moves.append((slice(row, row + 1) if alone else slice(None), _name(model, layer, site), head))
            row += 1
    return [(slice(0, 1) if alone else slice(None), None, ...), *moves]


def _passes(
    model: Transformer, tapes: Sequence[Tape], moves: Sequence[Move], steps: int, reading: Any
) -> Iterator[tuple[slice, Tape]]:
    """Each differentiated pass, on the first tape's prompts partly moved, with the senders that it scores."""
    base, source = tapes
    with torch.no_grad():
        start, end = (model.last.embed(batch.ids, batch.positions) for batch, _ in (base.inputs, source.inputs))
    for (senders, site, heads), step in product(moves, range(steps)):
        share, moved = step / steps, {}
        if site is None:
            moved["start"] = torch.lerp(start, end, share)
        else:
            value = base.activations[site].clone()
            value[heads] = torch.lerp(value[heads], source.activations[site][heads], share)
            moved["edits"] = {site: lambda _, value=value: value}
        with torch.enable_grad():
            yield senders, record(model, base.inputs, *reading, **moved)


def _name(model: Transformer, layer: int, site: str) -> str:
    if site == "read by mlp":
        site = "resid_pre" if model.last.config.parallel else "resid_mid"
    return site_name(last_stack(model), layer, site)


def _names(model: Transformer, *sites: str) -> list[str]:
    """The sites' names in every layer; feed-forward sites only if the model has feed-forwards."""
    sites = tuple(site for site in sites if "mlp" not in site or model.last.blocks[0].mlp is not None)
    return [_name(model, layer, site) for layer in range(model.config.n_layers) for site in sites]


def _change(model: Transformer, base: Tape, source: Tape) -> Writes:
    """What each sender writes for the other prompt, minus what it writes for its own."""

    def change(layer: int, site: str) -> Tensor:
        name = _name(model, layer, site)
        return source.activations[name] - base.activations[name]

    writes = [change(0, "resid_pre")[None]]
    for layer, block in enumerate(model.last.blocks):
        z = change(layer, "z")
        writes.append(einsum(z, block.attn.W_O, "prompt p head d_head, head d_head d_model -> head prompt p d_model"))
        writes += [] if block.mlp is None else [change(layer, "mlp_out")[None]]
    return torch.cat(move(writes, model.device))


def _reads(model: Transformer, tape: Tape, metric: str) -> Iterator[tuple[int, slice, Reads]]:
    """For sets of receivers: the number of earlier senders, their slice, and the metric's gradient at their inputs."""
    blocks, n_heads = model.last.blocks, model.config.n_heads
    last = _name(model, len(blocks) - 1, "resid_post")
    gradients = tape.gradients(metric, [*_names(model, "q", "k", "v", "mlp_out"), last])
    n_senders, start = 1, 0
    for layer, block in enumerate(blocks):
        qkv = torch.cat([gradients[_name(model, layer, part)] for part in "qkv"], -2)
        weight = block.attn.qkv.weight.detach().unflatten(0, (-1, block.attn.config.d_head))  # q, k, v, as above
        pattern = "prompt p receiver d_head, receiver d_head d_model -> receiver prompt p d_model"
        normed, stream = einsum(qkv, weight, pattern), tape.activations[_name(model, layer, "resid_pre")]
        reads = _back(block.attention.read, stream.expand(normed.shape), normed)  # each head's q, k, v separately
        yield n_senders, slice(start, start + len(reads)), reads
        start += len(reads)
        if block.mlp is not None:
            parallel = block.attn.config.parallel  # then it reads what the same layer's heads read
            stream = tape.activations[_name(model, layer, "read by mlp")]
            reads = _back(block.feed_forward.out, stream, gradients[_name(model, layer, "mlp_out")])[None]
            yield n_senders + (0 if parallel else n_heads), slice(start, start + 1), reads
            start += 1
        n_senders += n_heads + (block.mlp is not None)
    yield n_senders, slice(start, start + 1), gradients[last][None]


def _back(part: Callable[[Tensor], Tensor], residual: Tensor, gradient: Tensor) -> Tensor:
    """The gradient at the stream that a part reads, from the gradient at its output."""
    with torch.enable_grad():
        stream = residual.detach().requires_grad_()
        return torch.autograd.grad(part(stream), stream, gradient)[0]
