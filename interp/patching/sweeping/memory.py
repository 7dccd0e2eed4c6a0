"""How much goes through at a time? As much as fills the machine and keeps to the budget."""

from interp.errors import InputError
from interp.patching.pairs import Pairs
from interp.transformer import Transformer

BUDGET = 2 << 30  # bytes that a sweep may take, by default
# entries of the stream that a pass carries (rows x d_model): enough to fill the machine, few enough for its caches
MOST = 2048 * 768


def shares(model: Transformer, pairs: Pairs, budget: int) -> tuple[int, int]:
    """How many prompts' two plain runs are held at a time, and how much of the budget is left for passes.

    Raises:
        InputError: not even one prompt and one of its cells fit.
    """
    config, length = model.last.config, pairs.clean.ids.shape[1]
    kept = 5 * config.d_model + 2 * (config.n_heads + config.kv_heads) * config.d_head  # of a layer and position
    alone = 2 * config.n_layers * length * kept * model.last.embed.token.weight.element_size()
    least = alone + _cell_bytes(model, pairs)
    if budget < least:
        raise InputError(
            f"a budget of {budget} bytes is too small for one cell of a prompt of {length} positions: "
            f"expected at least {least} bytes"
        )
    together = 2 * alone  # groups of several prompts are copied out of their run
    fitting = min(budget // 2, budget - _cell_bytes(model, pairs)) // together
    return (1, budget - alone) if fitting < 2 else (fitting, budget - min(fitting, len(pairs)) * together)


def _row_bytes(model: Transformer, pairs: Pairs) -> int:
    """What a row (of a cell, prompt and position) takes on its way, at the widest."""
    config = model.last.config
    wide = 2 * config.d_mlp * (2 if hasattr(config.mlp, "activation") else 0)
    width = 6 * config.d_model + wide + 2 * (config.n_heads + 2 * config.kv_heads) * config.d_head
    length = int(pairs.last.max()) + 1
    return (width + 3 * config.n_heads * length) * model.last.embed.token.weight.element_size()


def _cell_bytes(model: Transformer, pairs: Pairs) -> int:
    """What one cell of the longest prompt takes."""
    return positions_changed(model, pairs) * _row_bytes(model, pairs)


def positions_changed(model: Transformer, pairs: Pairs) -> int:
    """The most that one cell can change in any prompt."""
    return int((pairs.last + 1 - (pairs.first_changed if model.last.config.causal else 0)).max())


def most_rows(model: Transformer, pairs: Pairs, budget: int) -> int:
    """How many rows (cells x prompts x positions) a pass carries: at least those of one cell of one prompt."""
    fitting = min(MOST // model.config.d_model, budget // _row_bytes(model, pairs))
    return max(positions_changed(model, pairs), fitting)
