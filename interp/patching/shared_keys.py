"""Attention of many cells that share the keys and values of earlier positions, not copied as long as they are few."""

import torch
from jaxtyping import Float, Int
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
    heads: Int[Tensor, " head"] | None = None,
) -> Float[Tensor, "cell prompt query head d_head"]:
    """The mix of values for the cells' queries, from earlier positions and their own; keys are rotated already.

    `heads` are those that ask, by default all; keys and values are then theirs, one for each.
    """
    if heads is None and q.shape[2] * sight.n_keys > _SMALL_ROWS:
        k, v = (torch.cat([past.expand(len(x), *past.shape), x], 2) for past, x in ((past_k, k), (past_v, v)))
        q, k, v = (part.transpose(-2, -3) for part in (q, k, v))
        return attn.fused(q, k, v, sight).transpose(-2, -3)
    if (shared := q.shape[3] // k.shape[3]) > 1:
        k, v, past_k, past_v = (part.repeat_interleave(shared, -2) for part in (k, v, past_k, past_v))
    # prompt head cell query d_head: the queries of all cells are rows of one product with the shared keys
    q, k, v = (part.permute(1, 3, 0, 2, 4) for part in (q * attn.config.score_scale, k, v))
    prompts, count, cells, queries, d_head = q.shape
    past, rows = past_k.shape[1], q.reshape(prompts, count, cells * queries, d_head)
    scores = q @ k.transpose(-1, -2)
    if past:
        earlier = (rows @ past_k.permute(0, 2, 3, 1)).view(prompts, count, cells, queries, past)
        scores = torch.cat([earlier, scores], -1)
    bias = None if attn.bias is None else attn.bias(sight)
    if bias is not None:  # the same for all cells
        bias = (bias if heads is None else bias[:, heads])[:, :, None]
    seen = sight.near(attn.reach).mask()
    pattern = attn.entering(scores, bias, None if bool(seen.all()) else seen[:, :, None]).softmax(-1)
    z = pattern[..., past:] @ v
    if past:
        earlier = pattern[..., :past].reshape(prompts, count, cells * queries, past)
        z = z + (earlier @ past_v.transpose(1, 2)).view_as(z)
    return z.permute(2, 0, 3, 1, 4)
