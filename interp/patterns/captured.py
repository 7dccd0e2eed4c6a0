"""Patterns of a text, for no more of the model's work than they take."""

import torch

from interp.model import Model
from interp.patterns.rows import Pattern
from interp.running import Tokens, run


def read_patterns(model: Model, tokens: Tokens, sites: str, target: Tokens | None = None) -> Pattern:
    """The patterns at `sites` (a glob), one layer's heads after the other's, in float32.

    The pass ends with the last of them: what the model would go on to compute, nothing here reads.

    Args:
        model, tokens, target: as in `interp.run`.
        sites: names patterns of one attention of every layer (`"decoder.*.attn.pattern"`).
    """
    out = run(model, tokens, target=target, until=sites)
    return torch.cat([*out.activations.values()], 1).float()  # sums over rows want more than 8 bits
