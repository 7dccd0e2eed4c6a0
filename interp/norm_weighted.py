"""How much does a head write from each position, which is not how much it attends to it?

A head adds up values, each times its attention weight and through W_O. Much attention to a position whose value is
small writes little (Kobayashi 2020): weights alone overrate sinks and punctuation.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.config import TransformerConfig
from interp.model import Site
from interp.places import sites_of
from interp.running import run
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer


class NormWeighted:
    """One kind of attention of a model, weighed by what it writes, behind the interface of models (`Model`).

    What it passes as the pattern of a head is, of each query, the share of each key in the norms written: A_ij
    ||v_j W_O|| over its sum (Kobayashi 2020; W_O's own bias is left out: it belongs to no key). Every measure of
    patterns can be read of it as of the model itself. A call passes these and nothing else, and has no logits.
    """

    def __init__(self, model: Transformer, stack: str | None = None, attention: str = "self"):
        """The attention of `stack` (by default the last), within it or to its source (`cross`)."""
        self.model, self.attention = model, attention
        self.stack = stack or [*model.config.stacks][-1]
        self.config: TransformerConfig = model.config
        self.tokenizer, self.target_tokenizer = model.tokenizer, model.target_tokenizer
        self.device, self.dtype = model.device, model.dtype

    @property
    def sites(self) -> Mapping[str, Site]:
        """Those of the model; a call passes the patterns of one attention alone."""
        return sites_of(self.config)

    @torch.no_grad()
    def __call__(self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None) -> None:
        """Pass every head's weighted pattern through `tap`."""
        name = "attn" if self.attention == "self" else "cross_attn"
        within = f"{self.stack}.*.{name}."
        seen = run(self.model, batch, target=target, capture=within + "v", until=within + "pattern")
        for layer, block in enumerate(self.model.stack(self.stack).blocks):
            attn = (block.attention if self.attention == "self" else block.cross).layer
            assert isinstance(attn, Attention)
            place = f"{self.stack}.{layer}.{name}"
            norms = written(attn, seen[f"{place}.v"])
            weighted = seen[f"{place}.pattern"].to(norms.dtype) * norms[:, :, None]
            weighted = weighted / weighted.sum(-1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)
            tap.at(self.stack).at(str(layer)).at(name)("pattern", weighted)


def written(attn: Attention, values: Float[Tensor, "prompt key kv_head d_head"]) -> Float[Tensor, "prompt head key"]:
    """||v W_O|| of every key and head, in the unit of the residual stream."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    W_O = attn.W_O.to(values)
    gram = torch.einsum("hed,hfd->hef", W_O, W_O)  # of d_head: the product of d_model never stands
    shared = attn.shared(values.transpose(1, 2))
    return (torch.einsum("bhke,hef->bhkf", shared, gram) * shared).sum(-1).clamp(min=0).sqrt()
