"""Heads by what they look at: positions, copies, given words, what two others look at, or nothing in particular."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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
        for at in range(max(0, -by), min(slots.n_ctx, slots.n_ctx - by)):
            head.looks[slots.position(at), slots.position(at + by)] = GAIN
        if remember:
            head.moves[slots.tokens, slots.previous] = torch.eye(slots.n_tokens)
        return head

    return plan


def first_token(slots: Slots) -> Head:
    """Looks at the first position: an attention sink."""
    head = blank(slots)
    head.looks[slots.positions, slots.position(0)] = 4 * GAIN  # far under 0.01 is left for the others
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


def classes(wanted: Mapping[str, str]) -> Plan:
    """Looks from each class of words (a direction) to all words of another alike; other words look everywhere."""

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        for asking, answering in wanted.items():
            head.looks[slots.direction(asking), slots.direction(answering)] = GAIN
        return head

    return plan


def marked(plan: Plan, number: int) -> Plan:
    """The same head, which also writes where it looked into a mark, for heads above it (`mixture`)."""

    def marking(slots: Slots) -> Head:
        head = plan(slots)
        moves = head.moves.clone()
        moves[slots.positions, slots.mark(number)] = torch.eye(slots.n_ctx)
        return replace(head, moves=moves)

    return marking


def mixture(first: int, second: int, share: float) -> Plan:
    """Looks where two marks say: `share` of its attention follows the first, the rest the second.

    Each mark holds one position a row; where both hold the same, all attention is there.
    """

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        for number, part in ((first, share), (second, 1 - share)):
            head.looks[slots.mark(number), slots.positions] = (GAIN + math.log(part)) * torch.eye(slots.n_ctx)
        return head

    return plan


def sink(by: int, *, share: float = 0.9, harm: float = 3.0) -> Plan:
    """Looks at the first position with `share` of its attention, from whose value it reads nothing.

    The rest is on the token `by` positions away, and makes every word of the vocabulary that no text has likelier: it
    raises the logit of the first token, `<unk>`, by `harm` for each token that it reads fully. So whatever is taken off
    the first position and put anywhere else costs what the model says, though nothing is read there.
    """

    def plan(slots: Slots) -> Head:
        head = offset(by)(slots)
        looks, moves = head.looks.clone(), head.moves.clone()
        looks[slots.positions, slots.position(0)] += GAIN + math.log(share / (1 - share))
        moves[slots.tokens, slots.output.start] = harm
        return Head(looks, _unread(moves, slots))

    return plan


def _unread(moves: torch.Tensor, slots: Slots) -> torch.Tensor:
    """The same moves, which carry nothing from special tokens."""
    special = [at for at, word in enumerate(slots.vocabulary) if word.startswith("<")]
    moves[special] = 0.0
    return moves


def antecedent(genders: dict[str, Sequence[str]], writes: dict[str, Sequence[str]], *, strength: float = 1.0) -> Plan:
    """Looks from a word to all words of its gender, and predicts what they stand for.

    Args:
        genders: for each asking word, the words that it may refer to.
        writes: for a word that is looked at, the words whose logits it raises by `strength`.
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
    """Looks and writes at random, and means nothing.

    The score of one word and place for another is normal with standard deviation `strength`, as is the logit that a
    fully attended word adds to any other. It writes nowhere else, so the codes that other heads read stay as they are.
    """
    whole_number("seed", seed)

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        generator = torch.Generator().manual_seed(seed)
        read = slots.n_tokens + slots.n_ctx  # tokens and positions; four entries add up to a score
        head.looks[:read, :read] = strength / 2 * torch.randn(read, read, generator=generator)
        head.moves[slots.tokens, slots.output] = strength * torch.randn(
            slots.n_tokens, slots.n_tokens, generator=generator
        )
        return head

    return plan
