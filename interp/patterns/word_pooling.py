"""From pieces to words: attention *to* a word sums over its pieces, attention *from* it averages (Clark 2019, 4.1)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from interp.patterns.rows import REAL


def membership(word_of: Sequence[Sequence[int]], n_words: int, n_tokens: int) -> Float[Tensor, "prompt word token"]:
    """1 where a token is a piece of a word. `word_of` gives each token's word, from 0; negative for none."""
    belongs = torch.zeros(len(word_of), n_words, n_tokens, dtype=REAL)
    for prompt, words in enumerate(word_of):
        pairs = [(word, token) for token, word in enumerate(words) if word >= 0]
        if pairs:
            at = torch.tensor(pairs).T
            belongs[prompt, at[0], at[1]] = 1
    return belongs


def pool(
    pattern: Float[Tensor, "prompt head query key"],
    queries: Float[Tensor, "prompt word query"],
    keys: Float[Tensor, "prompt word2 key"],
) -> Float[Tensor, "prompt head word word2"]:
    """Attention between words. `queries` and `keys` are memberships; rows of absent words are zero."""
    share = queries / queries.sum(-1, keepdim=True).clamp(min=1)
    return share[:, None] @ pattern @ keys[:, None].transpose(-1, -2)
