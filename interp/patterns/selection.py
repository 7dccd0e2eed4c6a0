"""Which of several candidate words does a head choose? Heads and baselines go through the same scorer."""

from jaxtyping import Bool, Float
from torch import Tensor

Scores = Float[Tensor, "item head word"]
PerHead = Float[Tensor, "item head"]


def accuracy(scores: Scores, candidates: Bool[Tensor, "item word"], correct: Bool[Tensor, "item word"]) -> PerHead:
    """1 where the candidate with the highest score is a correct one, else 0.

    Where several tie for the highest it is the share of them that is correct, so the order of the words decides
    nothing; where no candidate scores above 0 nothing is chosen, which is 0.
    """
    eligible = scores.masked_fill(~candidates[:, None], -1.0)
    best = eligible.amax(-1, keepdim=True)
    tied = (eligible == best) & (best > 0)
    right = (tied & correct[:, None]).sum(-1)
    return right.to(scores.dtype) / tied.sum(-1).clamp(min=1)


def share(
    scores: Scores, candidates: Bool[Tensor, "item word"], correct: Bool[Tensor, "item word"]
) -> tuple[PerHead, PerHead]:
    """Of the attention that falls on candidates, the part that falls on correct ones; and 1 where any falls, else 0."""
    among = (scores * candidates[:, None]).sum(-1)
    counted = (among > 0).to(scores.dtype)
    return (scores * correct[:, None]).sum(-1) / among.clamp(min=1e-30), counted
