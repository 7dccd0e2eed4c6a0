"""Which of several candidate words does a head choose? Heads and baselines go through the same scorer."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patterns.rows import CHUNK, argmax

Scores = Float[Tensor, "item head word"]
PerHead = Float[Tensor, "item head"]


def accuracy(scores: Scores, candidates: Bool[Tensor, "item word"], correct: Bool[Tensor, "item word"]) -> PerHead:
    """1 if the candidate with the highest score is a correct one, else 0.

    If several tie for the highest it is the share of correct ones among them, so word order does not matter. If no
    candidate scores above 0, nothing is chosen, which gives 0.
    """
    eligible = scores.masked_fill(~candidates[:, None], -1.0)
    best = eligible.amax(-1, keepdim=True)
    tied = (eligible == best) & (best > 0)
    return (tied & correct[:, None]).sum(-1).to(scores.dtype) / tied.sum(-1).clamp(min=1)


def share(
    scores: Scores, candidates: Bool[Tensor, "item word"], correct: Bool[Tensor, "item word"]
) -> tuple[PerHead, PerHead]:
    """The share of the candidates' attention that falls on correct ones; and 1 if candidates get any, else 0."""
    total = (scores * candidates[:, None]).sum(-1)
    counted = (total > 0).to(scores.dtype)
    return (scores * correct[:, None]).sum(-1) / total.clamp(min=1e-30), counted


def highest(
    scores: Float[Tensor, "*row word"],
) -> tuple[Float[Tensor, "*row"], Int[Tensor, "*row"], Bool[Tensor, "*row"]]:
    """Each row's highest score (at least 0), the first index that has it, and whether it is a tie above 0."""
    rows = scores.flatten(0, -2)
    best, second = (rows.new_empty(len(rows)) for _ in range(2))
    place, size = torch.empty(len(rows), dtype=torch.long, device=rows.device), max(1, CHUNK // rows.shape[-1])
    for begin in range(0, len(rows), size):
        chunk = slice(begin, begin + size)
        part, index = rows[chunk], argmax(rows[chunk])[..., None]
        value = part.gather(-1, index)
        part.scatter_(-1, index, -1.0)  # removed to find the second highest, then restored: cheaper than a copy
        second[chunk] = part.amax(-1)
        part.scatter_(-1, index, value)
        best[chunk], place[chunk] = value[..., 0], index[..., 0]
    best, place, tied = (each.view(scores.shape[:-1]) for each in (best, place, (second == best) & (best > 0)))
    return best, place, tied
