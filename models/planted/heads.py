"""Heads by what they look at: positions, copies, given words, the nearest word of a kind, or nothing in particular."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from interp import InputError
from interp.errors import whole_number
from models.planted.slots import GAIN, Head, Plan, Slots, blank

Rule = tuple[Tensor, Sequence[Tensor]]  # query slots, and key slots rank by rank, the last the best


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
            return _nearest(slots, [(queries, [keys])], asking)
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
        return _nearest(slots, rules, asking, after=after, itself=itself)

    return plan


def _nearest(
    slots: Slots, rules: Sequence[Rule], asking: Iterable[str], *, after: bool = False, itself: bool = True
) -> Head:
    """The head of `seek`, with slots for names: the rules' query slots stand for the words in `asking`.

    Three scores add up: the kind of the key's word (the higher its rank, the better), then how near it is, GAIN a step.
    A decoder's rows of other words stay uniform. An encoder must say which side is meant, and position scores cannot be
    limited to some words: a query is the sum of its word's part and its position's. So the rows of other words go to
    the first position, where heads of trained encoders rest too.
    """
    if after and slots.causal:
        raise InputError("a decoder's head cannot look after its query: expected before it, or an encoder")
    head = blank(slots)
    step = GAIN * (slots.n_ctx + 1)  # more than nearness can add
    best = max(len(ranks) for _, ranks in rules)
    forbidden = step * (2 + best * (best + 1) // 2)  # more than all ranks together can add
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
