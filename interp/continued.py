"""Texts with room for what will be written behind them: how positions and steps are counted while text is written."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.indices import Index, entries, for_texts
from interp.tokens import TokenBatch


@dataclass(frozen=True)
class Continued(TokenBatch):
    """Texts, padded on the left, and as many columns behind them as will be read of what is written.

    begun   prompt   how many tokens each text had when its writing began: from there negative positions count

    Steps are the passes of the model: step 0 reads the prompts, step s the s-th token that was written.
    """

    begun: Int[Tensor, " prompt"] | None = None

    @staticmethod
    def from_prompts(prompts: TokenBatch, n_read: int) -> "Continued":
        """`prompts`, padded on the left, with `n_read` columns behind them; their ids are 0."""
        real = prompts.mask.new_ones(len(prompts.ids), n_read)
        mask = torch.cat([prompts.mask, real], 1)
        ids = torch.cat([prompts.ids, real.long() * 0], 1)
        return Continued(ids, mask, places(mask), None, prompts.lengths)

    @property
    def ends(self) -> Int[Tensor, " prompt"]:
        """Where the prompts end."""
        assert self.begun is not None
        return self.begun

    @cached_property
    def steps(self) -> Int[Tensor, "prompt position"]:
        """The step that reads each column; -1 on padding."""
        return (self.positions - self.ends[:, None] + 1).clamp(min=0).masked_fill(~self.mask, -1)

    def at_steps(self, columns: list[list[int]], step: Index) -> list[list[int]]:
        """Of some columns of each text those that are read in some steps; an array gives one step a text."""
        n_steps, owner = int(self.steps.max()) + 1, "where step 0 reads the prompt"
        numbers = [entries(index, n_steps, "step", owner) for index in for_texts(step, len(self.ids), "step")]
        texts = zip(columns, numbers, self.steps.tolist(), strict=True)
        return [[column for column in row if steps[column] in wanted] for row, wanted, steps in texts]


def places(mask: Bool[Tensor, "prompt position"]) -> Int[Tensor, "prompt position"]:
    """The place of each real token in its own text."""
    return (mask.cumsum(1) - 1).clamp(min=0) * mask
