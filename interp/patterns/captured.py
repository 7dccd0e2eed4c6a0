"""Patterns of a text, from a pass that ends with the last of them."""

import torch

from interp.model import Model
from interp.patterns.rows import Pattern
from interp.running import Tokens, run


def read_patterns(model: Model, tokens: Tokens, sites: str, target: Tokens | None = None) -> Pattern:
    """The patterns at `sites` (a glob), layer after layer, in float32; the pass ends with the last of them.

    Args:
        model, tokens, target: as in `interp.run`.
        sites: names patterns of one attention of every layer (`"decoder.*.attn.pattern"`).
    """
    out = run(model, tokens, target=target, until=sites)
    return torch.cat([*out.activations.values()], 1).float()  # sums over rows want more than 8 bits
