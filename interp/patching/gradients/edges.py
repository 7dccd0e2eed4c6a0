"""Which connections between components matter? A score for every edge, from gradients.

Each component reads the residual stream, which is the sum of what all earlier ones wrote. The edge from a sender to a
receiver is that sender's share of what that receiver reads; its score is the first-order effect of putting another
prompt's write there and nowhere else: edge attribution patching (Syed, Rager & Conmy 2023, arXiv:2310.10348). With
gradients averaged on the way from one prompt to the other it is EAP-IG (Hanna, Pezzelle & Belinkov 2024,
arXiv:2403.17806), which finds what a flat gradient at either end hides.
"""

from collections.abc import Iterator

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.model import Model
from interp.patching.gradients.tape import BUDGET, Tape, embedded, record, some, split
from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import last_stack, only_stack, site_name
from interp.patching.preparation import Plan
from interp.patching.results import Cells, Direction
from interp.transformer import Block, Transformer, with_parts

Writes = Float[Tensor, "sender prompt position d_model"]
Reads = Float[Tensor, "receiver prompt position d_model"]


def edge_attribution(
    model: Model,
    pairs: Pairs,
    metric: Metric,
    direction: Direction = "denoise",
    *,
    steps: int = 5,
    budget: int = BUDGET,
) -> Cells:
    """Score every edge: (the other prompt's write - own) . the metric's gradient at the receiver's own input.

    Args:
        model: a transformer of one stack with an output layer, its norms before its layers or absent.
        pairs: clean and corrupted prompts.
        metric: what to read; it must have a gradient.
        direction: `denoise` puts clean writes into the corrupted prompt, `noise` corrupted ones into the clean.
        steps: gradients are averaged over this many embeddings on the line from own to other, from own on and without
            the other end (with `noise` Hanna 2024, equation 3). 1 is plain EAP: the gradient at the own prompt alone.
        budget: bytes of activations that one pass may hold; prompts go through in as many parts as that takes.

    Returns:
        Cells: scores on the axes `sender`, `receiver`: how far the metric is predicted to move when the edge carries
            the other write. The sign is that of the metric's change from the own prompt's value, in both directions:
            under `noise` an edge that the clean answer needs is negative. `labels` has the names. Senders are `embed`,
            heads (`0.3`: layer, head) and feed-forwards (`mlp.2`); receivers are heads' queries, keys and values
            (`1.4.q`; `k` and `v` per key/value head), feed-forwards and `logits`. Where a sender does not come before
            a receiver there is no edge, and the score is NaN.

    Raises:
        InputError: norms after the layers, fewer than one step, no output layer, a metric without a gradient or
            without one number a prompt, a budget too small for one prompt.
    """
    model = with_parts(model, "edge attribution")
    _check(model, steps)
    plan = Plan.of(model, pairs, metric, "resid_pre", ("layer",), direction)
    (readout,), (senders, receivers) = plan.readouts, _components(model)
    scores = model.last.embed.token.weight.detach().new_zeros(len(senders), len(receivers), len(pairs))
    exists = torch.zeros(scores.shape[:2], dtype=torch.bool, device=scores.device)
    held = 2 * len(senders) + 4 * (model.config.n_heads + 2 * model.last.config.kv_heads)  # writes; one layer's reads
    names = _names(model, "resid_pre", "q", "k", "v", "z", "resid_post", "read by mlp", "mlp_out")
    for prompts in split(model, pairs, budget, held * model.config.d_model):
        reading = [readout.take(prompts)], names
        own, other = (some(inputs, prompts) for inputs in plan.inputs)
        start, end = (embedded(model.last, batch) for batch, _ in (own, other))
        with torch.no_grad():
            change = _change(model, *(record(model, inputs, *reading) for inputs in (own, other)))
        for step in range(steps):
            with torch.enable_grad():
                tape = record(model, own, *reading, start=start + (end - start) * (step / steps))
            for before, after, reads in _reads(model, tape, readout.name):
                exists[:before, after] = True
                pattern = "sender prompt p d_model, receiver prompt p d_model -> sender receiver prompt"
                scores[:before, after, prompts] += einsum(change[:before], reads, pattern) / steps
    values = {readout.name: scores.masked_fill(~exists[..., None], torch.nan)}
    labels = {"sender": tuple(senders), "receiver": tuple(receivers)}
    return Cells("", plan.direction, ("sender", "receiver"), values, labels=labels, kind="edges")


def _check(model: Transformer, steps: int) -> None:
    only_stack(model, "edge attribution")
    config = model.last.config
    if config.norms_writes:
        raise InputError(
            "edges are not defined where norms follow the layers: each norm mixes what several components write, so "
            "no component's write reaches a later one by itself; expected a model with norms before its layers"
        )
    if config.qk_norm == "all":
        raise InputError(
            "edges to queries and keys are not defined where all heads' are normalised as one: no head reads by itself"
        )
    if steps < 1:
        raise InputError(f"steps must be at least 1 (plain edge attribution), got {steps}")


def _components(model: Transformer) -> tuple[list[str], list[str]]:
    """What writes, in the order in which it does, and what reads, in the order in which `_reads` gives it."""
    config, senders, receivers = model.last.config, ["embed"], []
    parts = [("q", config.n_heads), ("k", config.kv_heads), ("v", config.kv_heads)]
    for layer, block in enumerate(model.last.blocks):
        feed = [] if block.mlp is None else [f"mlp.{layer}"]
        senders += [*(f"{layer}.{head}" for head in range(config.n_heads)), *feed]
        receivers += [*(f"{layer}.{head}.{part}" for part, heads in parts for head in range(heads)), *feed]
    return senders, [*receivers, "logits"]


def _name(model: Transformer, layer: int, site: str) -> str:
    if site == "read by mlp":
        site = "resid_pre" if model.last.config.parallel else "resid_mid"
    return site_name(last_stack(model), layer, site)


def _names(model: Transformer, *sites: str) -> list[str]:
    """Sites of every layer; those of feed-forwards where there are some."""
    sites = tuple(site for site in sites if "mlp" not in site or model.last.blocks[0].mlp is not None)
    return [_name(model, layer, site) for layer in range(model.config.n_layers) for site in sites]


def _change(model: Transformer, own: Tape, other: Tape) -> Writes:
    """What each sender writes for the other prompt, less what it writes for its own."""

    def change(layer: int, site: str) -> Tensor:
        name = _name(model, layer, site)
        return other.seen[name] - own.seen[name]

    found = [change(0, "resid_pre")[None]]
    for layer, block in enumerate(model.last.blocks):
        z = change(layer, "z")
        found.append(einsum(z, block.attn.W_O, "prompt p head d_head, head d_head d_model -> head prompt p d_model"))
        found += [] if block.mlp is None else [change(layer, "mlp_out")[None]]
    return torch.cat(found)


def _reads(model: Transformer, tape: Tape, metric: str) -> Iterator[tuple[int, slice, Reads]]:
    """The metric's gradient at the own input of each receiver, the others' inputs held: one set of receivers at a time.

    With each comes how many senders lie before it, and its place among all receivers.
    """
    blocks, n_heads = model.last.blocks, model.config.n_heads
    last = _name(model, len(blocks) - 1, "resid_post")
    gradients = tape.gradients(metric, [*_names(model, "q", "k", "v", "mlp_out"), last])
    before, at = 1, 0
    for layer, block in enumerate(blocks):
        qkv = [gradients[_name(model, layer, part)] for part in "qkv"]
        reads = _through_attention(block, tape.seen[_name(model, layer, "resid_pre")], torch.cat(qkv, -2))
        yield before, slice(at, at + len(reads)), reads
        at += len(reads)
        if block.mlp is not None:
            parallel = block.attn.config.parallel  # then it reads what the heads beside it read
            read, out = tape.seen[_name(model, layer, "read by mlp")], gradients[_name(model, layer, "mlp_out")]
            yield before + (0 if parallel else n_heads), slice(at, at + 1), _through_mlp(block, read, out)
            at += 1
        before += n_heads + (block.mlp is not None)
    yield before, slice(at, at + 1), gradients[last][None]


def _through_attention(block: Block, residual: Tensor, gradient: Tensor) -> Reads:
    """From the gradient at queries, keys and values to that at the stream, each head's three kept apart."""
    weight = block.attn.qkv.weight.detach().unflatten(0, (-1, block.attn.config.d_head))  # in the same order
    normed = einsum(gradient, weight, "prompt p receiver d_head, receiver d_head d_model -> receiver prompt p d_model")
    with torch.enable_grad():
        stream = residual.detach().expand(normed.shape).requires_grad_()
        return torch.autograd.grad(block.attention.read(stream), stream, normed)[0]


def _through_mlp(block: Block, residual: Tensor, gradient: Tensor) -> Reads:
    """From the gradient at what the feed-forward writes to that at the stream which it reads."""
    with torch.enable_grad():
        stream = residual.detach().requires_grad_()
        out = block.feed_forward.out(stream)
        return torch.autograd.grad(out, stream, gradient)[0][None]
