"""How much goes through at a time? As much as fills the machine and keeps to the budget."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from interp.config import NoMLP
from interp.errors import InputError
from interp.model import Model
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite, last_stack
from interp.transformer import Transformer

Item = TypeVar("Item")
BUDGET = 2 << 30  # bytes that a sweep may take, by default
# entries of the stream that a pass carries (rows x d_model): enough to fill the machine, few enough for its caches
MOST = 2048 * 768


def shares(model: Transformer, pairs: Pairs, budget: int, patch_site: PatchSite | None = None) -> tuple[int, int]:
    """How many prompts' two plain runs are held at a time, and how much of the budget is left for passes."""
    kept = 0
    for name, config in model.config.stacks.items():
        attentions = 2 if config.cross_attention else 1
        heads = 2 * attentions * (config.n_heads + config.kv_heads) * config.d_head
        kept += config.n_layers * pairs.read_by(name).ids.shape[1] * ((3 + 2 * attentions) * config.d_model + heads)
    alone = 2 * kept * model.last.embed.token.weight.element_size()
    one_cell = positions_changed(model, pairs, patch_site) * _row_bytes(model, pairs)
    check_budget(budget, alone + one_cell, pairs)
    together = 2 * alone  # groups of several prompts are copied out of their run
    fitting = min(budget // 2, budget - one_cell) // together
    return (1, budget - alone) if fitting < 2 else (fitting, budget - min(fitting, len(pairs)) * together)


def _row_bytes(model: Transformer, pairs: Pairs, recorded: int = 0) -> int:
    """What a row (of a cell, prompt and position) takes on its way, at the widest."""
    widest = 0
    for name, config in model.config.stacks.items():
        wide = 0 if isinstance(config.mlp, NoMLP) else 4 * config.d_mlp
        width = 6 * config.d_model + wide + 2 * (config.n_heads + 2 * config.kv_heads) * config.d_head
        seen = {name, "encoder"} if config.cross_attention else {name}
        longest = max(int(pairs.read_by(each).lengths.max()) for each in seen)
        widest = max(widest, width + 3 * config.n_heads * longest)
    return (widest + recorded) * model.last.embed.token.weight.element_size()


def rows_at_once(model: Model, share: int = 1) -> int:
    """How many rows (cells x prompts x positions) fill a pass; `share` of them where much else is made of each."""
    return MOST // (share * model.config.d_model)


def fitting(
    items: Iterable[Item], size: Callable[[Item], int], most: int, key: Callable[[Item], object]
) -> Iterator[list[Item]]:
    """Neighbours with the same `key`, as many at a time as add up to no more than `most`, but at least one."""
    some: list[Item] = []
    total = 0
    for item in items:
        if some and (key(item) != key(some[0]) or total + size(item) > most):
            yield some
            some, total = [], 0
        some.append(item)
        total += size(item)
    if some:
        yield some


def positions_changed(model: Transformer, pairs: Pairs, patch_site: PatchSite | None = None) -> int:
    """The most that one cell can change in any prompt; an encoder's cells change all of both texts."""
    stack = last_stack(model) if patch_site is None else patch_site.stack
    lengths = pairs.read_by(stack).lengths
    changed = lengths - pairs.first_reached(stack) if model.config.stacks[stack].causal else lengths
    onward = 0 if stack == last_stack(model) else pairs.read_by(last_stack(model)).lengths
    return int((changed + onward).max())


def most_rows(
    model: Transformer, pairs: Pairs, budget: int, patch_site: PatchSite | None = None, recorded: int = 0
) -> int:
    """How many rows (cells x prompts x positions) a pass carries: at least those of one cell of one prompt.

    Where so many numbers are `recorded` of each on its way, one cell must fit.
    """
    one_cell, row = positions_changed(model, pairs, patch_site), _row_bytes(model, pairs, recorded)
    if recorded:
        check_budget(budget, one_cell * row, pairs)
    return max(one_cell, min(rows_at_once(model), budget // row))


def check_budget(budget: int, least: int, pairs: Pairs, what: str = "cell of a prompt") -> None:
    """Refuse a budget that one such part exceeds."""
    if budget < least:
        size = f"one {what} of {pairs.clean.ids.shape[1]} positions"
        raise InputError(f"a budget of {budget} bytes is too small for {size}: expected at least {least}")
