"""Attention of many cells that share the keys and values of earlier positions, not copied as long as they are few."""

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.sight import Sight

_SMALL_ROWS = 4096  # query x key entries of one head up to which explicit scores beat the fused kernel


def attend(
    attn: Attention,
    q: Float[Tensor, "cell prompt query head d_head"],
    k: Float[Tensor, "cell prompt key kv_head d_head"],
    v: Float[Tensor, "cell prompt key kv_head d_head"],
    past_k: Float[Tensor, "prompt past kv_head d_head"],
    past_v: Float[Tensor, "prompt past kv_head d_head"],
    sight: Sight,
) -> Float[Tensor, "cell prompt query head d_head"]:
    """The mix of values for the cells' queries, from earlier positions and their own; keys are rotated already."""
    plain = attn.bias is None and attn.reach is None and attn.config.score_cap is None
    if q.shape[2] * sight.n_keys > _SMALL_ROWS or not plain:
        k, v = (torch.cat([past.expand(len(x), *past.shape), x], 2) for past, x in ((past_k, k), (past_v, v)))
        q, k, v = (part.transpose(-2, -3) for part in (q, k, v))
        return attn.fused(q, k, v, sight).transpose(-2, -3)
    if (shared := q.shape[3] // k.shape[3]) > 1:
        k, v, past_k, past_v = (part.repeat_interleave(shared, -2) for part in (k, v, past_k, past_v))
    return _attend_sharing(q * attn.config.score_scale, k, v, past_k, past_v, sight)


def _attend_sharing(
    q: Float[Tensor, "cell prompt query head d_head"],
    k: Float[Tensor, "cell prompt key head d_head"],
    v: Float[Tensor, "cell prompt key head d_head"],
    past_k: Float[Tensor, "prompt past head d_head"],
    past_v: Float[Tensor, "prompt past head d_head"],
    sight: Sight,
) -> Float[Tensor, "cell prompt query head d_head"]:
    """Attention of scaled queries to the cells' own keys and to earlier ones that all share, which are never copied."""
    cells, prompts, queries, heads, d_head = q.shape
    past = past_k.shape[1]
    # prompt head cell query d_head: the queries of all cells are rows of one product with the shared keys
    q, k, v = (part.permute(1, 3, 0, 2, 4) for part in (q, k, v))
    own = q @ k.transpose(-1, -2)
    mask = sight.mask()[..., past:]  # what lies before is seen by all
    if not bool(mask.all()):
        own = own.masked_fill(~mask[:, :, None], -torch.inf)
    if not past:
        return (own.softmax(-1) @ v).permute(2, 0, 3, 1, 4)
    rows = q.reshape(prompts, heads, cells * queries, d_head)
    earlier = (rows @ past_k.permute(0, 2, 3, 1)).view(prompts, heads, cells, queries, past)
    pattern = torch.cat([earlier, own], -1).softmax(-1)
    z = pattern[..., past:] @ v
    z = z + (pattern[..., :past].reshape(prompts, heads, cells * queries, past) @ past_v.transpose(1, 2)).view_as(z)
    return z.permute(2, 0, 3, 1, 4)
