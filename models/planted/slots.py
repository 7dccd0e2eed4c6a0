"""What do the dimensions of a planted residual stream mean? A head is two matrices over them.

The stream is a table of slots: which token stands here, at which position, what the previous token was, what a head
wrote for the output, which classes of words (tag directions) the token belongs to, and where heads below looked. A head
has `looks`, which scores a query slot against a key slot, and `moves`, which copies slots of the key to slots of the
query.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from interp import InputError

GAIN = 40.0  # a score this much above the others leaves them e^-40 of the attention
SIZE = 4096.0  # under a norm, the length of every token's and every position's code
GRID = 2048.0  # steps to one: SIZE * GRID is less than 2²⁴


@dataclass(frozen=True)
class Slots:
    """The slots of the residual stream: one dimension a token, position, previous token, output, class or mark.

    Under a norm (`level`) six more slots come last. Two for each code keep the mean of every embedding at zero and its
    length constant, so the norm divides by a constant, which its weight undoes. The next one takes what brings the mean
    back to zero when a head writes. The last always holds 0: it reads as the rounding error of the norm's mean, which
    every reader of a slot subtracts.
    """

    vocabulary: tuple[str, ...]
    n_ctx: int
    causal: bool = True
    directions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # a class of words, by name
    level: bool = False
    marks: int = 0  # groups of slots (one per position) in which a head records where it looks

    @property
    def n_tokens(self) -> int:
        """Tokens of the vocabulary."""
        return len(self.vocabulary)

    @property
    def d_model(self) -> int:
        """Token, position, previous token, output, classes, marks, and under a norm what keeps it constant."""
        return 3 * self.n_tokens + (1 + self.marks) * self.n_ctx + len(self.directions) + 6 * self.level

    def token(self, word: str) -> int:
        """The slot that says: this token stands here."""
        if word not in self.vocabulary:
            raise InputError(f"{word!r} is not in the planted vocabulary of {self.n_tokens} words")
        return self.vocabulary.index(word)

    def position(self, number: int) -> int:
        """The slot that says: this is position `number`."""
        return self.n_tokens + number

    def direction(self, name: str) -> int:
        """The slot that says: this token is one of the words of a class."""
        if name not in self.directions:
            raise InputError(f"no planted direction {name!r}: this model has {', '.join(self.directions) or 'none'}")
        return 3 * self.n_tokens + self.n_ctx + list(self.directions).index(name)

    def mark(self, number: int) -> slice:
        """The slots that say where the head of this mark looked, one a position."""
        if not 0 <= number < self.marks:
            raise InputError(f"no mark {number}: this model has {self.marks}")
        start = 3 * self.n_tokens + self.n_ctx + len(self.directions) + number * self.n_ctx
        return slice(start, start + self.n_ctx)

    @property
    def tokens(self) -> slice:
        """All token slots."""
        return slice(0, self.n_tokens)

    @property
    def positions(self) -> slice:
        """All position slots."""
        return slice(self.n_tokens, self.n_tokens + self.n_ctx)

    @property
    def previous(self) -> slice:
        """Which token stood before: written by a previous-token head."""
        return slice(self.n_tokens + self.n_ctx, 2 * self.n_tokens + self.n_ctx)

    @property
    def output(self) -> slice:
        """What is read as logits."""
        return slice(2 * self.n_tokens + self.n_ctx, 3 * self.n_tokens + self.n_ctx)

    def token_codes(self) -> Float[Tensor, "token d_model"]:
        """What each token puts into the stream: its own slot and its classes."""
        codes = torch.zeros(self.n_tokens, self.d_model)
        codes[:, self.tokens] = torch.eye(self.n_tokens)
        for name, words in self.directions.items():
            codes[[self.token(word) for word in words], self.direction(name)] = 1.0
        return _levelled(codes, self.d_model - 6) if self.level else codes

    def position_codes(self) -> Float[Tensor, "position d_model"]:
        """What each position puts into the stream."""
        codes = torch.zeros(self.n_ctx, self.d_model)
        codes[:, self.positions] = torch.eye(self.n_ctx)
        return _levelled(codes, self.d_model - 4) if self.level else codes

    def writing(self, moves: Float[Tensor, "d_model d_model"]) -> Float[Tensor, "d_model d_model"]:
        """The same moves; under a norm they also keep the stream's mean at zero."""
        if not self.level:
            return moves
        moves = moves.clone()
        moves[:, -2] -= moves.sum(1)
        return moves

    def reading(self, weights: Float[Tensor, "d_model column"]) -> Float[Tensor, "d_model column"]:
        """The same weights; under a norm each column adds up to 0, so they ignore the error of its mean."""
        if not self.level:
            return weights
        weights = weights.clone()
        weights[-1] -= weights.sum(0)
        return weights


def _levelled(codes: Float[Tensor, "code d_model"], column: int) -> Float[Tensor, "code d_model"]:
    """The codes with two more slots, from `column` on, that bring each code's sum to 0 and its length to SIZE.

    The two values solve a + b = -sum and a² + b² = SIZE² - length². They lie on a grid on which every sum is exact in
    float32, so the mean is 0 to the last bit; the length is then right to a part in ten million.
    """
    exact = codes.double()
    total, squares = exact.sum(1), SIZE**2 - exact.square().sum(1)
    root = (2 * squares - total**2).sqrt()
    first = ((root - total) / 2 * GRID).round() / GRID
    codes[:, column], codes[:, column + 1] = first.float(), (-total - first).float()
    return codes


@dataclass(frozen=True)
class Head:
    """`looks` is query slot x key slot, `moves` is key slot x query slot; zeros attend evenly and write nothing."""

    looks: Float[Tensor, "d_model d_model"]
    moves: Float[Tensor, "d_model d_model"]


Plan = Callable[[Slots], Head]


def blank(slots: Slots) -> Head:
    """A head that looks everywhere alike and writes nothing."""
    return Head(torch.zeros(slots.d_model, slots.d_model), torch.zeros(slots.d_model, slots.d_model))
