"""Heads by what they look at: positions, copies, given words, or nothing in particular."""

from collections.abc import Iterable, Sequence

import torch

from interp import InputError
from interp.errors import whole_number
from models.planted.search_heads import nearest as nearest_of
from models.planted.slots import GAIN, Head, Plan, Slots, blank


def uniform(slots: Slots) -> Head:
    """Looks everywhere alike and writes nothing."""
    return blank(slots)


def offset(by: int, *, remember: bool = False) -> Plan:
    """Looks at the token `by` positions away (-1: the previous one); `remember` writes which token it was."""

    def plan(slots: Slots) -> Head:
        if by > 0 and slots.causal:
            raise InputError(f"a decoder sees no later token: expected an offset of at most 0, got {by}")
        head = blank(slots)
        for position in range(max(0, -by), min(slots.n_ctx, slots.n_ctx - by)):
            head.looks[slots.position(position), slots.position(position + by)] = GAIN
        if remember:
            head.moves[slots.tokens, slots.previous] = torch.eye(slots.n_tokens)
        return head

    return plan


def first_token(slots: Slots) -> Head:
    """Looks at the first position: an attention sink."""
    head = blank(slots)
    head.looks[slots.positions, slots.position(0)] = 4 * GAIN  # leaves far less than 0.01 for the others
    return head


def same_token(slots: Slots) -> Head:
    """Looks at every copy of its own token, itself included."""
    head = blank(slots)
    head.looks[slots.tokens, slots.tokens] = GAIN * torch.eye(slots.n_tokens)
    return head


def induction(strength: float = 10.0) -> Plan:
    """Looks at what followed an earlier copy of its token (read from the previous-token slot) and predicts it."""

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        head.looks[slots.tokens, slots.previous] = GAIN * torch.eye(slots.n_tokens)
        head.moves[slots.tokens, slots.output] = strength * torch.eye(slots.n_tokens)
        return head

    return plan


def word_to_word(asking: Iterable[str], answering: Iterable[str], *, nearest: bool = True) -> Plan:
    """Looks from the words in `asking` to those in `answering`: the latest one before, or all alike."""
    asking, answering = list(asking), list(answering)

    def plan(slots: Slots) -> Head:
        queries = torch.tensor([slots.token(word) for word in asking])
        keys = torch.tensor([slots.token(word) for word in answering])
        if nearest:
            return nearest_of(slots, [(queries, [keys])], asking)
        head = blank(slots)
        head.looks[queries[:, None], keys] = GAIN
        return head

    return plan


def antecedent(genders: dict[str, Sequence[str]], writes: dict[str, Sequence[str]], *, strength: float = 1.0) -> Plan:
    """Looks from a word to all words of its gender, and predicts what they stand for.

    Args:
        genders: for each asking word, the words that it may refer to.
        writes: for each attended word, the words whose logits it raises by `strength`.
        strength: the logit that one fully attended word gives.
    """

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        for asking, answering in genders.items():
            for word in answering:
                head.looks[slots.token(asking), slots.token(word)] = GAIN
        for word, raised in writes.items():
            for written in raised:
                head.moves[slots.token(word), slots.output.start + slots.token(written)] = strength
        return head

    return plan


def noise(strength: float, seed: int) -> Plan:
    """Looks and writes at random.

    The score of one word and place for another is normal with standard deviation `strength`, and so is the logit that a
    fully attended word adds to any other. It writes nowhere else, so it changes no code that other heads read.
    """
    whole_number("seed", seed)

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        generator = torch.Generator().manual_seed(seed)
        width = slots.n_tokens + slots.n_ctx  # tokens and positions; four entries add up to a score
        head.looks[:width, :width] = strength / 2 * torch.randn(width, width, generator=generator)
        head.moves[slots.tokens, slots.output] = strength * torch.randn(
            slots.n_tokens, slots.n_tokens, generator=generator
        )
        return head

    return plan
