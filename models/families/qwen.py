"""Qwen 2 (Yang 2024), Llama with biases on q, k and v; Qwen 3 (2025), without them, normalises queries and keys."""

from typing import Any

from interp.config import Local, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, named_family, with_output
from models.families.llama import common, leave_out, stack
from models.families.local_attention import layer_types, near, window


def _config(fields: Fields) -> TransformerConfig:
    fields.only(use_mrope=False)
    return with_output(fields, stack(fields, attention_bias=True, out_bias=False, local=_late_window(fields)))


def _qwen3_config(fields: Fields) -> TransformerConfig:
    bias, local = fields.flag("attention_bias", False), _late_window(fields)
    return with_output(fields, stack(fields, head_dim=128, attention_bias=bias, qk_norm="head", local=local))


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


def _raw(config: TransformerConfig) -> dict[str, Any]:
    return leave_out(_qwen3_raw(config), "attention_bias")


def _qwen3_raw(config: TransformerConfig) -> dict[str, Any]:
    slides = {"use_sliding_window": config.last.local is not None, "sliding_window": window(config.last)}
    return common(config) | slides | {"layer_types": layer_types(config.last)}


QWEN2 = named_family("qwen2", _config, _raw)
QWEN3 = named_family("qwen3", _qwen3_config, _qwen3_raw)
