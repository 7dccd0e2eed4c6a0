"""Heads that look from words of one kind to the nearest word of another: syntax, reference, and their impostors.

Three scores add up: what kind of word the key is (the higher its rank, the better), then how near it is, GAIN a step.
A decoder's rows of other words stay uniform. An encoder must say which side is meant, and what a position scores
cannot be kept to some words: a query is the sum of its word's part and its position's. So the rows of other words are
sent to the first position, as the heads of trained encoders rest there.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from interp import InputError
from models.planted.slots import GAIN, Head, Plan, Slots, blank

Rule = tuple[Tensor, Sequence[Tensor]]  # query slots, and key slots rank by rank, the last the best


def seek(words_of: Mapping[str, Sequence[str]], *, after: bool = False, itself: bool = True) -> Plan:
    """Looks from each class of words to the nearest word of the best class that is there: before it, or `after` it.

    A word whose classes are nowhere to be seen looks at the nearest word of all: itself, unless `itself` is excluded
    (then no row looks at itself, the first apart).

    Args:
        words_of: for each direction that asks, the directions that answer, the best last. A word asks in one of them.
        after: look at later words, which only an encoder sees.
        itself: whether a word may be its own answer.
    """

    def plan(slots: Slots) -> Head:
        def slot(name: str) -> Tensor:
            return torch.tensor([slots.direction(name)])

        rules = [(slot(asking), [slot(name) for name in answering]) for asking, answering in words_of.items()]
        asking = [word for name in words_of for word in slots.directions[name]]
        if twice := {word for word in asking if asking.count(word) > 1}:
            raise InputError(f"each word asks in one class only, but {min(twice)!r} asks in several")
        return nearest(slots, rules, asking, after=after, itself=itself)

    return plan


def nearest(
    slots: Slots, rules: Sequence[Rule], asking: Iterable[str], *, after: bool = False, itself: bool = True
) -> Head:
    """The head of `seek`, with slots for names: `asking` are the words that the rules' query slots stand for."""
    if after and slots.causal:
        raise InputError("a decoder's head cannot look after its query: expected before it, or an encoder")
    head = blank(slots)
    step = GAIN * (slots.n_ctx + 1)  # more than all that nearness gives
    best = max(len(ranks) for _, ranks in rules)
    forbidden = step * (2 + best * (best + 1) // 2)  # more than a word gives that is of all ranks at once
    for queries, ranks in rules:
        for rank, keys in enumerate(ranks, 1):
            head.looks[queries[:, None], keys] = step * rank
    near = GAIN * torch.arange(slots.n_ctx, dtype=torch.float32)
    if slots.causal:
        for queries, _ in rules:
            head.looks[queries, slots.positions] = near
        if not itself:
            head.looks[slots.positions, slots.positions] = -forbidden * torch.eye(slots.n_ctx)
        return head
    ahead = torch.ones(slots.n_ctx, slots.n_ctx).triu(int(itself))  # keys on the side that is not looked at
    barred, near = (ahead.T, near.flip(0)) if after else (ahead, near)
    head.looks[slots.positions, slots.positions] = near - forbidden * barred
    idle = [slots.token(word) for word in slots.vocabulary if word not in set(asking)]
    head.looks[idle, slots.position(0)] = 2 * forbidden
    return head
