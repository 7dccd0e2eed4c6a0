"""Patterns of a text, for no more of the model's work than they take."""

from contextlib import suppress

import torch
from torch import Tensor

from interp.patterns.rows import Pattern
from interp.places import matching
from interp.running import Tokens, run
from interp.transformer import Transformer


class _AllRead(Exception):  # noqa: N818 - it is none
    """The last pattern is there."""


def read_patterns(model: Transformer, tokens: Tokens, sites: str, target: Tokens | None = None) -> Pattern:
    """The patterns at `sites` (a glob), one layer's heads after the other's, in float32.

    The pass ends with the last of them: what the model would go on to compute, nothing here reads.

    Args:
        model, tokens, target: as in `interp.run`.
        sites: names patterns of one attention of every layer (`"decoder.*.attn.pattern"`).
    """
    layers: list[Tensor] = []
    n_layers = len(matching(model, sites))

    def keep(pattern: Tensor) -> Tensor:
        layers.append(pattern)
        if len(layers) == n_layers:
            raise _AllRead
        return pattern

    with suppress(_AllRead):
        run(model, tokens, edit={sites: keep}, target=target)
    return torch.cat(layers, 1).float()  # sums over rows want more than 8 bits
