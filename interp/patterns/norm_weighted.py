"""How much does a head write from each position?

A head adds up values, each times its attention weight and through W_O. Much attention to a small value writes little
(Kobayashi 2020): weights alone overrate sinks and punctuation.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.patterns.one_attention import OneAttention, sublayers
from interp.patterns.rows import Pattern
from interp.running import Tokens, run
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch


class NormWeighted(OneAttention):
    """One kind of attention of a model, weighted by what it writes, so that every measure of patterns can read it.

    Its pattern is the share of each key in the norms that a query writes: A_ij ||v_j W_O|| over its sum (Kobayashi
    2020; without W_O's bias, which belongs to no key).
    """

    @torch.no_grad()
    def __call__(self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None) -> None:
        """Pass every head's weighted pattern through `tap`."""
        for layer, (_, weighted) in enumerate(self._read(batch, target)):
            tap.at(self.stack).at(str(layer)).at(self.name)("pattern", weighted)

    @torch.no_grad()
    def beside(self, batch: TokenBatch, target: Tokens | None = None) -> tuple[Pattern, Pattern]:
        """The model's patterns and the weighted ones, from one pass: each as `read_patterns` gives it."""
        plain, weighted = zip(*self._read(batch, target), strict=True)
        return torch.cat(plain, 1).float(), torch.cat(weighted, 1).float()

    def _read(self, batch: TokenBatch, target: Tokens | None) -> Iterator[tuple[Pattern, Pattern]]:
        """Pattern and weighted pattern, layer by layer."""
        within = f"{self.stack}.*.{self.name}."
        out = run(self.model, batch, target=target, capture=within + "v", until=within + "pattern")
        for layer, (_, attn) in enumerate(sublayers(self.model, self.stack, self.attention)):
            place = f"{self.stack}.{layer}.{self.name}"
            norms, pattern = written(attn, out[f"{place}.v"]), out[f"{place}.pattern"]
            yield pattern, weighed(pattern, norms)


def weighed(
    pattern: Float[Tensor, "prompt head query key"], norms: Float[Tensor, "prompt head key"]
) -> Float[Tensor, "prompt head query key"]:
    """The share of each key in the norms that a query has written."""
    weighted = pattern.to(norms.dtype) * norms[:, :, None]
    return weighted / weighted.sum(-1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)


def written(attn: Attention, values: Float[Tensor, "prompt key kv_head d_head"]) -> Float[Tensor, "prompt head key"]:
    """||v W_O|| of every key and head, in the unit of the residual stream."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    W_O = attn.W_O.to(values)
    gram = torch.einsum("hed,hfd->hef", W_O, W_O)  # of d_head: the product of d_model never stands
    shared = attn.shared(values.transpose(1, 2))
    return (torch.einsum("bhke,hef->bhkf", shared, gram) * shared).sum(-1).clamp(min=0).sqrt()
