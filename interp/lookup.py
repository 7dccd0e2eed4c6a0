"""A table of vectors that are looked up by number: of tokens, positions, types of token, buckets of distance."""

from torch import nn


class Lookup(nn.Embedding):
    """A table of vectors. Where it has a shape and no memory nothing is drawn: torch would import its compiler first.

    That takes a second, and weights that are read from a file are never drawn.
    """

    def reset_parameters(self) -> None:
        """Draw from N(0, 1)."""
        if not self.weight.is_meta:
            super().reset_parameters()
