"""Does what a head attends to matter to what the model says next? Single claimed keys are hidden from single heads.

At the rows of a claim (a pronoun and its antecedent, a verb and its subject) a head's claimed keys are masked and the
row's softmax taken over the rest, which is to take their mass off and renormalise. What is measured is the drop in the
log-probability of the text's own next token at those rows, all rows of a claim hidden at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.edits import Edit
from interp.errors import InputError
from interp.patching.metrics import Readout
from interp.patching.plain import PlainRun
from interp.patching.sweeping.lanes import Boarding, Lane, travel
from interp.patching.sweeping.memory import MOST
from interp.running import Tokens, as_batch, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer


@dataclass(frozen=True)
class Claim:
    """Rows of one text, and for each the keys that a label says it attends to.

    Raises:
        InputError: no row, a row without a key, the last row of a text (nothing follows it), or a row claimed twice.
    """

    prompt: int
    queries: Int[Tensor, " row"]
    keys: Bool[Tensor, "row key"]

    def __post_init__(self) -> None:
        if not len(self.queries) or len(self.queries) != len(self.keys):
            raise InputError(
                f"a claim has rows, and keys for each: got {len(self.queries)} rows and keys for {len(self.keys)}"
            )
        if not bool(self.keys.any(1).all()):
            row = int((~self.keys.any(1)).nonzero()[0])
            raise InputError(f"row {int(self.queries[row])} of a claim on text {self.prompt} claims no key")
        if len(self.queries.unique()) != len(self.queries):
            raise InputError(f"a claim on text {self.prompt} names a row twice: {self.queries.tolist()}")


@torch.no_grad()
def knock_out(model: Transformer, tokens: Tokens, claims: Sequence[Claim]) -> Float[Tensor, "claim layer head"]:
    """Drop in the log-probability of the text's own next token, summed over each claim's rows, in nats.

    Above 0: without the claimed keys that head makes the text less likely. One head of one layer at a time, all rows
    of the claim at once; `keys` count columns of the batch.

    Args:
        model: a causal transformer of one stack with an output layer.
        tokens: the texts, padded on the right.
        claims: on any of them, as many as one likes.

    Raises:
        InputError: a model without output layer or that is not causal; a claim outside its text, or that leaves a row
            nothing else to attend to.
    """
    batch = _checked(model, tokens, claims)
    plain = PlainRun.of(model, batch)
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    found = torch.zeros(len(claims), n_layers, n_heads, device=model.device, dtype=plain.resid[0].dtype)
    for bunch in _bunches(model, batch, claims):
        lanes: list[Lane] = []
        boardings: list[Boarding] = []
        for at in bunch:
            claim, length = claims[at], int(batch.lengths[claims[at].prompt])
            own = plain.take(torch.tensor([claim.prompt], device=model.device), length)
            lane = Lane(model, own, int(claim.queries.min()), [_next_token(own.batch, claim)])
            lanes.append(lane)
            boardings += [_hidden(model, own, lane, layer, claim) for layer in range(n_layers)]
        values = iter(travel(model, boardings))
        for at, lane in zip(bunch, lanes, strict=True):
            (before,) = lane.measure(model, lane.plain_reads[None])
            for layer in range(n_layers):
                found[at, layer] = before - next(values)[0][:, 0]
    return found


def knock_out_by_forward(
    model: Transformer, tokens: Tokens, claims: Sequence[Claim]
) -> Float[Tensor, "claim layer head"]:
    """The plain way: one whole forward pass for each claim and head, its scores masked. As `knock_out` otherwise."""
    batch = _checked(model, tokens, claims)
    (stack,) = model.config.stacks
    before = run(model, batch).logits.log_softmax(-1)
    found = before.new_zeros(len(claims), model.config.n_layers, model.config.n_heads)
    for at, claim in enumerate(claims):
        following = batch.ids[claim.prompt, claim.queries + 1]
        rows = claim.prompt, claim.queries, following
        for layer in range(model.config.n_layers):
            for head in range(model.config.n_heads):
                edit = {f"{stack}.{layer}.attn.scores": _masking(claim, head)}
                after = run(model, batch, edit=edit).logits.log_softmax(-1)
                found[at, layer, head] = (before[rows] - after[rows]).sum()
    return found


def _masking(claim: Claim, head: int) -> Edit:
    """The edit that hides a claim's keys from one head."""

    def edit(scores: Float[Tensor, "prompt head query key"]) -> Tensor:
        edited = scores.clone()
        rows = edited[claim.prompt, head, claim.queries]
        edited[claim.prompt, head, claim.queries] = rows.masked_fill(claim.keys[:, : rows.shape[1]], -torch.inf)
        return edited

    return edit


def _checked(model: Transformer, tokens: Tokens, claims: Sequence[Claim]) -> TokenBatch:
    """The texts, every claim inside its own."""
    if model.output is None or not model.last.config.causal:
        raise InputError("a knock-out reads the next token: expected a causal model with an output layer")
    batch = as_batch(model, tokens)
    if batch.padded and not bool(batch.mask[:, 0].all()):
        raise InputError("texts are padded on the right: expected a real token in the first column of every text")
    for claim in claims:
        if not 0 <= claim.prompt < len(batch.ids):
            raise InputError(f"a claim on text {claim.prompt}: there are texts 0-{len(batch.ids) - 1}")
        last = int(batch.lengths[claim.prompt]) - 1
        if int(claim.queries.min()) < 0 or int(claim.queries.max()) >= last:
            raise InputError(
                f"a claim on text {claim.prompt} names rows {claim.queries.tolist()}: expected 0-{last - 1}, "
                "rows that a token follows"
            )
        seen = torch.arange(claim.keys.shape[1], device=claim.keys.device) <= claim.queries[:, None]
        if bool((claim.keys & ~seen).any()) or bool((claim.keys | ~seen).all(1).any()):
            raise InputError(
                f"a claim on text {claim.prompt} must name keys that its rows see, and leave each row another one"
            )
    return batch


def _next_token(text: TokenBatch, claim: Claim) -> Readout:
    """Log-probability of the text's own next tokens at the claim's rows, summed."""
    queries = claim.queries.to(text.ids.device)
    following = text.ids[:, queries + 1]

    def value(logits: Tensor, reference: Tensor | None) -> Tensor:
        assert reference is not None
        picked = logits.log_softmax(-1).gather(-1, reference.expand(*logits.shape[:-1])[..., None])
        return picked[..., 0].sum(-1)

    return Readout("next_token", queries[None], None, value, following)


def _hidden(model: Transformer, plain: PlainRun, lane: Lane, layer: int, claim: Claim) -> Boarding:
    """All heads of a layer as cells, each with the claim's keys hidden from it, from the claim's first row on."""
    block, queries = model.last.blocks[layer], claim.queries.to(model.device)
    attn, shared = block.attn, block.attn.config.n_heads // block.attn.config.kv_heads
    q = plain.q[layer][0, queries].transpose(0, 1)  # head row d_head
    k, v = (part[layer][0].repeat_interleave(shared, -2).transpose(0, 1) for part in (plain.k, plain.v))
    length = k.shape[1]
    unseen = torch.arange(length, device=q.device) > queries[:, None]
    scores = q @ k.transpose(-1, -2) * attn.config.score_scale
    hidden = unseen | claim.keys[:, :length].to(q.device)
    dz = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v - plain.z[layer][0, queries].transpose(0, 1)
    written = einsum(dz, attn.W_O, "head row d_head, head d_head d_model -> head row d_model")
    attn_out = plain.attn_out[layer][:, lane.first :].expand(attn.config.n_heads, 1, -1, -1).clone()
    attn_out[:, 0, queries - lane.first] += written
    mid = block.wiring.add(block.norm_attn, plain.resid[layer][:, lane.first :], attn_out)
    return Boarding(lane, layer, True, lane.first, mid)


def _bunches(model: Transformer, batch: TokenBatch, claims: Sequence[Claim]) -> Iterator[list[int]]:
    """Claims that share a pass."""
    most, rows, bunch = MOST // model.config.d_model, 0, []
    for at, claim in enumerate(claims):
        own = (
            (int(batch.lengths[claim.prompt]) - int(claim.queries.min())) * model.config.n_heads * model.config.n_layers
        )
        if bunch and rows + own > most:
            yield bunch
            rows, bunch = 0, []
        rows += own
        bunch.append(at)
    if bunch:
        yield bunch
