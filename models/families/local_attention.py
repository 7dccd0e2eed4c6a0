"""Which layers see only the tokens of a window? How a config.json says it, and how we write it."""

from collections.abc import Sequence
from typing import Any

from interp.config import Local, StackConfig
from interp.errors import InputError
from models.families.fields import Fields

FULL, NEAR = "full_attention", "sliding_attention"  # the names of the two kinds in `layer_types`


def layers_called(name: str, kinds: Sequence[str], n_layers: int, pair: Sequence[str], stated: Any) -> tuple[int, ...]:
    """The layers of the second kind in the `pair`; InputError if there are other kinds, or too few or many."""
    if len(kinds) != n_layers or not {*kinds} <= {*pair}:
        expected = " or ".join(f'"{kind}"' for kind in pair)
        raise InputError(f"config.json: {name} must call each of {n_layers} layers {expected}, got {stated!r}")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == pair[1])


def local_layers(fields: Fields, default: Sequence[bool]) -> tuple[int, ...]:
    """The layers that see only near tokens, by `layer_types` or by default."""
    kinds = fields.names("layer_types", [NEAR if slides else FULL for slides in default])
    return layers_called("layer_types", kinds, len(default), (FULL, NEAR), kinds)


def shared_window(fields: Fields, default: int | None = None) -> Local | None:
    """One window for all layers, of `default` tokens where the file has none; None where it says null."""
    fields.get("sliding_window")
    if fields.raw.get("sliding_window", default) is None:
        return None
    return Local(tuple(range(fields.size("num_hidden_layers"))), fields.size("sliding_window", default) - 1)


def window(stack: StackConfig) -> int | None:
    """How many tokens a query of a local layer sees, itself included."""
    return None if stack.local is None or stack.local.reach is None else stack.local.reach + 1


def layer_types(stack: StackConfig) -> list[str]:
    """What they call each layer."""
    return [FULL if stack.reach(layer) is None else NEAR for layer in range(stack.n_layers)]
