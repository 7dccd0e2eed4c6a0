"""Heads that only rungs have: by classes of words, by where two other heads attended, and sinks."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from models.planted.heads import offset
from models.planted.slots import GAIN, Head, Plan, Slots, blank


def classes(pairs: Mapping[str, str]) -> Plan:
    """Attends equally from each class of words (a direction) to all words of another; other words attend everywhere."""

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        for asking, answering in pairs.items():
            head.looks[slots.direction(asking), slots.direction(answering)] = GAIN
        return head

    return plan


def marked(plan: Plan, number: int) -> Plan:
    """The same head, which also writes where it attended into a mark, for heads above it (`mixture`)."""

    def marking(slots: Slots) -> Head:
        head = plan(slots)
        moves = head.moves.clone()
        moves[slots.positions, slots.mark(number)] = torch.eye(slots.n_ctx)
        return replace(head, moves=moves)

    return marking


def mixture(first: int, second: int, share: float) -> Plan:
    """Attends where two marks point: a `share` of its attention follows the first, the rest the second.

    Each mark holds one position per row. If both hold the same one, it gets all attention.
    """

    def plan(slots: Slots) -> Head:
        head = blank(slots)
        for number, part in ((first, share), (second, 1 - share)):
            head.looks[slots.mark(number), slots.positions] = (GAIN + math.log(part)) * torch.eye(slots.n_ctx)
        return head

    return plan


def sink(by: int, *, share: float = 0.9, harm: float = 3.0) -> Plan:
    """Puts a `share` of its attention on the first position and reads nothing there.

    The rest goes to the token `by` positions away. For each token that it reads fully, it raises the logit of the first
    token, `<unk>`, by `harm`; no text contains that word. So moving attention away from the first position makes
    predictions worse, although nothing is read there.
    """

    def plan(slots: Slots) -> Head:
        head = offset(by)(slots)
        looks, moves = head.looks.clone(), head.moves.clone()
        looks[slots.positions, slots.position(0)] += GAIN + math.log(share / (1 - share))
        moves[slots.tokens, slots.output.start] = harm
        return Head(looks, _unread(moves, slots))

    return plan


def _unread(moves: torch.Tensor, slots: Slots) -> torch.Tensor:
    """The same moves without those from special tokens."""
    special = [index for index, word in enumerate(slots.vocabulary) if word.startswith("<")]
    moves[special] = 0.0
    return moves
