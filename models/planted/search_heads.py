"""Heads that look from words of one kind to the nearest word of another: syntax, reference, and their impostors.

Three scores add up: the kind of the key's word (the higher its rank, the better), then how near it is, GAIN a step.
A decoder's rows of other words stay uniform. An encoder must say which side is meant, and position scores cannot be
limited to some words: a query is the sum of its word's part and its position's. So the rows of other words go to the
first position, where heads of trained encoders rest too.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from interp import InputError
from models.planted.slots import GAIN, Head, Plan, Slots, blank

Rule = tuple[Tensor, Sequence[Tensor]]  # query slots, and key slots rank by rank, the last the best


def seek(words_of: Mapping[str, Sequence[str]], *, after: bool = False, itself: bool = True) -> Plan:
    """Looks from each class of words to the nearest word of the best class present: before it, or `after` it.

    A word that sees none of its classes looks at the nearest word of all: itself, unless `itself` is excluded (then no
    row but the first looks at itself).

    Args:
        words_of: for each direction that asks, the directions that answer, the best last. A word asks in one direction.
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
    """The head of `seek`, with slots for names: the rules' query slots stand for the words in `asking`."""
    if after and slots.causal:
        raise InputError("a decoder's head cannot look after its query: expected before it, or an encoder")
    head = blank(slots)
    step = GAIN * (slots.n_ctx + 1)  # more than all that nearness gives
    best = max(len(ranks) for _, ranks in rules)
    forbidden = step * (2 + best * (best + 1) // 2)  # more than a word with all ranks at once gives
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
    ahead = torch.ones(slots.n_ctx, slots.n_ctx).triu(int(itself))  # keys on the other side
    barred, near = (ahead.T, near.flip(0)) if after else (ahead, near)
    head.looks[slots.positions, slots.positions] = near - forbidden * barred
    idle = [slots.token(word) for word in slots.vocabulary if word not in set(asking)]
    head.looks[idle, slots.position(0)] = 2 * forbidden
    return head
