"""Which rows and keys of a batch of patterns count? No padding, no special tokens; with or without the first key."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

SINK_FLOOR = 0.01  # rows that keep less of their mass without the first position are left out of that reading
SINKS: tuple[Literal["kept", "removed"], ...] = ("kept", "removed")  # the two readings
CHUNK = 1 << 18  # pattern elements read at once: they fit in the CPU's cache
REAL = torch.float32  # for counts and baselines; totals are in float64
TINY = 1e-30  # stands for 0 in a logarithm, and vanishes in A log A
Pattern = Float[Tensor, "prompt head query key"]


@dataclass(frozen=True)
class Rows:
    """Which queries and keys of a batch of self-attention patterns count."""

    ids: Int[Tensor, "prompt position"]
    content: Bool[Tensor, "prompt position"]  # True at real, non-special tokens: keys that can satisfy a measure
    scored: Bool[Tensor, "prompt position"]  # True at the content tokens whose rows are counted here
    visible: Bool[Tensor, "prompt query key"]  # True where a query may attend

    @property
    def uniform(self) -> Float[Tensor, "prompt 1 query key"]:
        """The pattern of a head that attends to all visible keys uniformly: the baseline, for the same scorers."""
        visible = self.visible.to(REAL)
        return (visible / visible.sum(-1, keepdim=True))[:, None]


@dataclass(frozen=True)
class Sink:
    """The first position's attention, and the rest of each row."""

    behind: Float[Tensor, "prompt head query key"]  # the pattern without the first position
    first: Float[Tensor, "prompt head query"]  # attention to the first position
    rest: Float[Tensor, "prompt head query"]  # attention to all others
    scale: Float[Tensor, "prompt head query"]  # makes the rest sum to 1; 0 in rows that keep too little

    @staticmethod
    def from_pattern(pattern: Pattern) -> "Sink":
        """Split a batch of patterns."""
        behind = pattern[..., 1:]
        rest = behind.sum(-1)
        return Sink(behind, pattern[..., 0], rest, torch.where(rest >= SINK_FLOOR, 1 / rest, 0))

    @cached_property
    def squares(self) -> Float[Tensor, "prompt head query"]:
        """Each row's sum of squares after the first position."""
        return torch.linalg.vector_norm(self.behind, dim=-1).square_()

    @property
    def has_rest(self) -> Bool[Tensor, "prompt head query"]:
        """Rows that keep enough of their mass to be read without the first position."""
        return self.scale > 0


def entropies(rows: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    """-sum A log A of each row, in nats."""
    return -rows.clamp(min=TINY).log_().mul_(rows).sum(-1)


def rows_at(
    values: Shaped[Tensor, "prompt head query *key"], prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]
) -> Shaped[Tensor, "row head *key"]:
    """`values[prompt, :, query]`: all heads' values in some rows, six times as fast as indexing on a CPU."""
    n_heads, n_queries = values.shape[1:3]
    head = torch.arange(n_heads, device=values.device)
    index = (prompt[:, None] * n_heads + head) * n_queries + query[:, None]
    return values.flatten(0, 2).index_select(0, index.flatten()).unflatten(0, index.shape)


def argmax(pattern: Float[Tensor, "*row key"]) -> Int[Tensor, "*row"]:
    """Each row's highest key, the first of several. On a CPU numpy finds it three times as fast as torch."""
    if pattern.device.type == "cpu" and pattern.dtype in {torch.float32, torch.float64}:
        return torch.from_numpy(pattern.detach().numpy().argmax(-1))
    return pattern.argmax(-1)


def membership(word_of: Sequence[Sequence[int]], n_words: int, n_tokens: int) -> Float[Tensor, "prompt word token"]:
    """1 if a token is a piece of a word. `word_of` has each token's word, from 0; negative for none."""
    words = torch.full((len(word_of), n_tokens), -1)
    for row, numbers in zip(words, word_of, strict=True):
        row[: len(numbers)] = torch.tensor(numbers)
    return (words[:, None] == torch.arange(n_words)[:, None]).to(REAL)


def pool(
    pattern: Float[Tensor, "prompt head query key"],
    queries: Float[Tensor, "prompt word query"],
    keys: Float[Tensor, "prompt word2 key"],
) -> Float[Tensor, "prompt head word word2"]:
    """Attention between words: summed over the pieces it goes to, averaged over those it comes from (Clark 2019, 4.1).

    `queries` and `keys` are memberships; rows of absent words are zero.
    """
    share = queries / queries.sum(-1, keepdim=True).clamp(min=1)
    return share[:, None] @ pattern @ keys[:, None].transpose(-1, -2)
