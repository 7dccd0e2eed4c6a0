"""SmolLM 3 (2025): Llama with layers that do not rotate; SmolLM 1 and 2 are Llama itself."""

from typing import Any

from interp.config import Gated, Local, NoPositions, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, named_family, with_output
from models.families.llama import common, gated, stack
from models.families.local_attention import layer_types, near, window


def _config(fields: Fields) -> TransformerConfig:
    bias, mlp = fields.flag("attention_bias", False), gated(fields, bias="mlp_bias")
    decoder = stack(fields, base=2e6, kv_heads=4, attention_bias=bias, mlp=mlp, local=_unrotated(fields))
    return with_output(fields, decoder, tied=True)


def _unrotated(fields: Fields) -> Local | None:
    """The layers that do not rotate, and that may see a window alone."""
    n_layers, interval = fields.size("num_hidden_layers"), fields.size("no_rope_layer_interval", 4)
    rotate = fields.get("no_rope_layers") or [int((layer + 1) % interval > 0) for layer in range(n_layers)]
    if not isinstance(rotate, list) or len(rotate) < n_layers or not {*rotate} <= {0, 1}:
        raise InputError(f"config.json: no_rope_layers must be 1 (turns) or 0 for each layer, got {rotate!r}")
    unrotated = tuple(layer for layer in range(n_layers) if not rotate[layer])
    on, size = fields.flag("use_sliding_window", False), fields.get("sliding_window")
    # of what each layer sees, layer_types has the last word, even where windows are not switched on
    layers = near(fields, [on and size is not None and layer in unrotated for layer in range(n_layers)])
    if not layers:
        return Local(unrotated, None, NoPositions()) if unrotated else None
    if layers != unrotated:
        raise InputError(f"config.json: expected a window in the layers that do not rotate, {unrotated}; got {layers}")
    return Local(unrotated, fields.size("sliding_window") - 1, NoPositions())


def _raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    unrotated = stack.local.layers if stack.local else ()
    return common(config) | {
        "mlp_bias": isinstance(stack.mlp, Gated) and stack.mlp.bias,
        "no_rope_layers": [int(layer not in unrotated) for layer in range(stack.n_layers)],
        "use_sliding_window": window(stack) is not None,
        "sliding_window": window(stack),
        "layer_types": layer_types(stack),
        "pad_token_id": None,  # theirs lies outside of most vocabularies
    }


FAMILY = named_family("smollm3", _config, _raw)
