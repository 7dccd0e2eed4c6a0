"""Qwen 2 (Yang 2024), Llama with biases on q, k and v; Qwen 3 (2025), without them, normalises queries and keys."""

from typing import Any

from interp.config import Local, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, with_output
from models.families.llama import common, family, layer_types, near, stack, window, without


def config(fields: Fields) -> TransformerConfig:
    """Ours for a Qwen 2's config.json."""
    fields.only(use_mrope=False)
    return with_output(fields, stack(fields, attention_bias=True, out_bias=False, local=_late_window(fields)))


def qwen3_config(fields: Fields) -> TransformerConfig:
    """Ours for a Qwen 3's config.json."""
    bias = fields.flag("attention_bias", False)
    own = stack(fields, head_dim=128, attention_bias=bias, qk_norm="head", local=_late_window(fields))
    return with_output(fields, own)


def _late_window(fields: Fields) -> Local | None:
    """Later layers see the tokens of a window alone, where it is switched on."""
    n_layers, first = fields.size("num_hidden_layers"), fields.size("max_window_layers", 28, least=0)
    size = fields.size("sliding_window", 4096)
    on = fields.flag("use_sliding_window", False) and fields.raw.get("sliding_window", size) is not None
    layers = near(fields, [on and layer >= first for layer in range(n_layers)])
    if layers and not on:
        raise InputError(
            "config.json: layer_types has windows, but use_sliding_window or sliding_window switches them off"
        )
    return Local(layers, size - 1) if layers else None


def raw(config: TransformerConfig) -> dict[str, Any]:
    """A Qwen 2's fields for ours."""
    return without(qwen3_raw(config), "attention_bias")


def qwen3_raw(config: TransformerConfig) -> dict[str, Any]:
    """A Qwen 3's fields for ours."""
    slides = {"use_sliding_window": config.last.local is not None, "sliding_window": window(config.last)}
    return common(config) | slides | {"layer_types": layer_types(config.last)}


QWEN2 = family("qwen2", "Qwen2ForCausalLM", config, raw)
QWEN3 = family("qwen3", "Qwen3ForCausalLM", qwen3_config, qwen3_raw)
