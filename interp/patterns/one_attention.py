"""Patterns of a text, and what stands in for a model when a measure reads other patterns than its own."""

from collections.abc import Iterator, Mapping

import torch

from interp.attention import Attention
from interp.config import TransformerConfig
from interp.model import Model, Site, sites_of
from interp.patterns.rows import Pattern
from interp.running import Tokens, run
from interp.transformer import Sublayer, Transformer

_NAMES = {"self": "attn", "cross": "cross_attn"}


class OneAttention:
    """One kind of attention of a model as an `interp.model.Model` that passes its patterns alone, without logits."""

    def __init__(self, model: Transformer, stack: str | None = None, attention: str = "self"):
        """The attention of `stack` (by default the last), within it or to its source (`cross`)."""
        self.model, self.attention = model, attention
        self.stack = stack or [*model.config.stacks][-1]
        self.name = _NAMES[attention]  # of the sublayer among the sites
        self.config: TransformerConfig = model.config
        self.tokenizer, self.target_tokenizer = model.tokenizer, model.target_tokenizer
        self.device, self.dtype = model.device, model.dtype

    @property
    def sites(self) -> Mapping[str, Site]:
        """Those of the configuration, of which a call passes the patterns alone."""
        return sites_of(self.config)


def sublayers(model: Transformer, stack: str, attention: str) -> Iterator[tuple[Sublayer, Attention]]:
    """The attention of a stack, within it (`self`) or to its source (`cross`), block by block."""
    for block in model.stack(stack).blocks:
        sublayer = block.attention if attention == "self" else block.cross
        assert isinstance(sublayer.layer, Attention)
        yield sublayer, sublayer.layer


def read_patterns(model: Model, tokens: Tokens, sites: str, target: Tokens | None = None) -> Pattern:
    """The patterns at `sites` (a glob), layer after layer, in float32; the pass ends with the last of them.

    Args:
        model, tokens, target: as in `interp.run`.
        sites: names patterns of one attention of every layer (`"decoder.*.attn.pattern"`).
    """
    out = run(model, tokens, target=target, until=sites)
    return torch.cat([*out.activations.values()], 1).float()  # sums over rows want more than 8 bits
