"""What does a patched query or key do to the attention pattern? Computed, not linearised: the QK fix of AtP*.

Where a softmax is saturated its gradient is nearly 0, although another prompt's query may turn the pattern wholly.
So the new pattern itself is computed, and only what follows the pattern is taken to first order (Kramár 2024, "AtP*",
arXiv:2403.00745, section 3.1).
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.visibility import Visibility

Rows = Float[Tensor, "prompt head query key"]


def qk_fixed(
    attn: Attention,
    visibility: Visibility,
    site: str,
    base: Mapping[str, Tensor],
    source: Mapping[str, Tensor],
    gradient: Rows,
    *,
    alone: bool,
    by_head: bool,
) -> Float[Tensor, "prompt position site_head"]:
    """Effects of patched queries or keys: (new pattern - own) x gradient at the pattern, summed over what each moves.

    Queries are patched at all positions: each has a row of the pattern to itself. Keys share rows, so with `alone` each
    key position is patched alone (Kramár 2024, algorithm 4), else all together; then `position` is the query's.

    Args:
        attn: the layer's attention.
        visibility: who sees whom.
        site: `q` or `k`.
        base: the prompts' own `q` and `k`.
        source: those of the other prompts.
        gradient: of the metric, at the base pattern.
        alone: whether keys are patched one position at a time.
        by_head: whether heads are; it matters where they are normalised together, so that one moves every pattern.
    """
    own = _scores(attn, base["q"], base["k"], visibility)

    def moved(patched: Mapping[str, Tensor]) -> Float[Tensor, "prompt head position"]:
        scores = _scores(attn, patched["q"], patched["k"], visibility)
        if site == "k" and alone:
            return _one_key_patched(own, scores, gradient).sum(-2)
        return ((attn.pattern(scores) - attn.pattern(own)) * gradient).sum(-1)

    if attn.config.qk_norm == "all" and by_head:
        together = []
        for head in range(base[site].shape[-2]):
            mixed = base[site].clone()
            mixed[..., head, :] = source[site][..., head, :]
            together.append(moved({**base, site: mixed}).sum(1))
        return torch.stack(together, -1)
    found = moved({**base, site: source[site]})
    if site == "k":  # a key moves the rows of all query heads that share it
        found = found.unflatten(1, (attn.config.kv_heads, -1)).sum(2)
    return found.transpose(1, 2)


def _scores(attn: Attention, q: Tensor, k: Tensor, visibility: Visibility) -> Rows:
    """Scores of queries against keys, both before norm and rotation."""
    at = (
        visibility.positions if not visibility.across else visibility.positions.new_zeros(1, k.shape[1])
    )  # where nothing turns keys
    q, k = attn.queries(q, visibility.positions), attn.keys(k, at)
    return attn.scores(q.transpose(1, 2), attn.shared(k.transpose(1, 2)), visibility)


def _one_key_patched(scores: Rows, patched: Rows, gradient: Rows) -> Rows:
    """For each key alone, what its patched score does to its row: sum over the row of (new pattern - own) x gradient.

    With p the pattern, p' the patched key's new share and h the mean gradient of the other keys under their own
    renormalised pattern, that sum is (p' - p)(gradient - h): no pattern has to be made anew for each key. The other
    keys' share is 1 - p, but for the row's largest it is summed without it: 1 - p would lose it to rounding.
    """
    pattern = Attention.pattern(scores)
    top = torch.zeros_like(pattern, dtype=torch.bool).scatter_(-1, scores.argmax(-1, keepdim=True), True)
    below = scores.masked_fill(top, -torch.inf)
    weighted = (pattern * gradient).sum(-1, keepdim=True)
    share = torch.where(top, 0, pattern)  # at most a half
    others = (weighted - share * gradient) / (1 - share)
    # a row of one key has no others: its share stays 1, whatever its score
    others = torch.where(top, (Attention.pattern(below).nan_to_num() * gradient).sum(-1, keepdim=True), others)
    rest = torch.where(top, below.logsumexp(-1, keepdim=True), scores.logsumexp(-1, keepdim=True) + torch.log1p(-share))
    moved = ((patched - rest).sigmoid() - pattern) * (gradient - others)
    return moved.masked_fill(patched == scores, 0)  # without rounding's dust
