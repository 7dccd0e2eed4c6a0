"""Which heads read what earlier heads write? Asked of the weights alone, nothing run (Elhage 2021)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.model import Model
from interp.parts import RootMeanSquare
from interp.patching.patch_sites import only_stack
from interp.transformer import Transformer, with_parts


@torch.no_grad()
def composition_scores(
    model: Model,
) -> Float[Tensor, "kind layer head later_layer later_head"]:
    """How much of what a head writes is read by a later head: Q-, K- and V-composition (Elhage 2021).

    With W_OV = W_V W_O and W_QK = W_Q W_K^T, rows being stream vectors, the scores are |W_OV W_QK|, |W_OV W_QK^T| and
    |W_OV W_OV'| (Frobenius), each over the product of its factors' norms: between 0 and 1. `kind` is Q, K, V in
    that order. A norm before a layer is folded into what the layer reads, one after it into what it writes: its weight
    and, in LayerNorm, the removal of the mean; norms after sums are left aside. Biases, and norms and rotation of
    queries and keys, are left aside too.

    Returns:
        Tensor: NaN where the later head is not in a later layer, and where either head reads or writes nothing.
    """
    model = with_parts(model, "composition of heads")
    only_stack(model, "composition of heads")
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    factors = [_factors(model, layer) for layer in range(n_layers)]
    shape = (3, n_layers, n_heads, n_layers, n_heads)
    scores = torch.full(shape, torch.nan, dtype=factors[0][0].dtype, device=model.device)
    for layer, (writes, *_) in enumerate(factors):
        for later in range(layer + 1, n_layers):
            for kind, reads in enumerate(factors[later][1:]):
                product = writes.flatten(0, 1) @ reads.transpose(0, 1).flatten(1)  # all pairs of heads at once
                product = product.view(n_heads, -1, n_heads, reads.shape[-1])
                norms = writes.norm(dim=(1, 2))[:, None] * reads.norm(dim=(1, 2))
                scores[kind, layer, :, later] = product.norm(dim=(1, 3)) / norms
    return scores


def _factors(model: Transformer, layer: int) -> tuple[Float[Tensor, "head _ _"], ...]:
    """A layer's W_OV (rank x d_model), W_QK, W_QK^T and W_OV (d_model x rank), thin, of the same Frobenius norms.

    |A B| = |R B| where A = Q R and Q's columns are orthonormal: an outer side of width d_model shrinks to d_head. They
    are in at least float32.
    """
    block, config = model.last.blocks[layer], model.last.config
    attn, norm, after = block.attn, block.attention.norm_before, block.attention.norm_after
    shared = config.n_heads // config.kv_heads
    w_q, w_k, w_v = (_folded(norm, wide(weight)) for weight in (attn.W_Q, attn.W_K, attn.W_V))
    w_k, w_v = w_k.repeat_interleave(shared, 0), w_v.repeat_interleave(shared, 0)
    w_o = _folded(after, wide(attn.W_O).mT, writes=True).mT
    r_q, r_k, r_v, r_o = (torch.linalg.qr(side, "r").R for side in (w_q, w_k, w_v, w_o.mT))
    return r_v @ w_o, w_q @ r_k.mT, w_k @ r_q.mT, w_v @ r_o.mT


def _folded(
    norm: nn.Module, weight: Float[Tensor, "head d_model d_head"], *, writes: bool = False
) -> Float[Tensor, "head d_model d_head"]:
    """A matrix with the norm before (or after) it: its weight, and LayerNorm's removal of the mean, in their order."""
    if not isinstance(norm, nn.LayerNorm | RootMeanSquare):
        return weight
    centred = isinstance(norm, nn.LayerNorm)
    if writes and centred:
        weight = weight - weight.mean(1, keepdim=True)
    weight = (gain(norm) if isinstance(norm, RootMeanSquare) else norm.weight).to(weight.dtype)[:, None] * weight
    return weight - weight.mean(1, keepdim=True) if centred and not writes else weight


def gain(norm: RootMeanSquare) -> Float[Tensor, " d_model"]:
    """What it multiplies by."""
    return norm.weight + norm.config.offset


def wide(x: Tensor) -> Tensor:
    """At least float32: sums of many small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
