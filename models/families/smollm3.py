"""SmolLM 3 (2025): Llama with layers that do not rotate; SmolLM 1 and 2 are Llama itself."""

from typing import Any

from interp.config import Gated, Local, NoPositions, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, with_output
from models.families.llama import common, family, gated, layer_types, near, stack, window


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    bias, mlp = fields.flag("attention_bias", False), gated(fields, bias="mlp_bias")
    own = stack(fields, base=2e6, kv_heads=4, attention_bias=bias, mlp=mlp, local=_still(fields))
    return with_output(fields, own, tied=True)


def _still(fields: Fields) -> Local | None:
    """The layers that do not rotate, and that may see a window alone."""
    n_layers, every = fields.size("num_hidden_layers"), fields.size("no_rope_layer_interval", 4)
    turns = fields.get("no_rope_layers") or [int((layer + 1) % every > 0) for layer in range(n_layers)]
    if not isinstance(turns, list) or len(turns) < n_layers or not {*turns} <= {0, 1}:
        raise InputError(f"config.json: no_rope_layers must be 1 (turns) or 0 for each layer, got {turns!r}")
    still = tuple(layer for layer in range(n_layers) if not turns[layer])
    on, size = fields.flag("use_sliding_window", False), fields.get("sliding_window")
    # of what each layer sees, layer_types has the last word, even where windows are not switched on
    layers = near(fields, [on and size is not None and layer in still for layer in range(n_layers)])
    if not layers:
        return Local(still, None, NoPositions()) if still else None
    if layers != still:
        raise InputError(f"config.json: expected a window in the layers that do not rotate, {still}; got {layers}")
    return Local(still, fields.size("sliding_window") - 1, NoPositions())


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack = config.last
    still = stack.local.layers if stack.local else ()
    return common(config) | {
        "mlp_bias": isinstance(stack.mlp, Gated) and stack.mlp.bias,
        "no_rope_layers": [int(layer not in still) for layer in range(stack.n_layers)],
        "use_sliding_window": window(stack) is not None,
        "sliding_window": window(stack),
        "layer_types": layer_types(stack),
        "pad_token_id": None,  # theirs lies outside of most vocabularies
    }


FAMILY = family("smollm3", "SmolLM3ForCausalLM", config, raw, harmless="max_window_layers pretraining_tp")
