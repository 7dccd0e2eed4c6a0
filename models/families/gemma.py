"""Gemma 1, 2 and 3 (2024-2025): norms that add 1 to their weights, embeddings scaled by the root of their width.

Gemma 2 has norms before and after each layer, caps on scores and logits, and a window in every other layer; Gemma 3
normalises queries and keys instead of capping, and turns them by other angles where layers see a window.
"""

from typing import Any

from interp.config import Gated, Local, RMSNorm, StackConfig, TransformerConfig
from models.families.family import named_family
from models.families.fields import Fields, with_output
from models.families.llama import common, leave_out, stack
from models.families.local_attention import FULL, NEAR, layer_types, local_layers, window
from models.families.rotation import rope_fields, two_rotaries


def _config(fields: Fields) -> TransformerConfig:
    name = fields.activation("hidden_act", "gelu_pytorch_tanh")
    # the first files say gelu but mean its approximation
    mlp = Gated("gelu_tanh" if name == "gelu" else name)
    return with_output(fields, _stack(fields, mlp=mlp, kv_heads=16), tied=True)


def _gemma2_config(fields: Fields) -> TransformerConfig:
    n_layers, size = fields.size("num_hidden_layers"), fields.size("sliding_window", 4096)
    layers = local_layers(fields, [layer % 2 == 0 for layer in range(n_layers)])
    return _later(fields, caps=(50.0, 30.0), local=Local(layers, size - 1))


def _gemma3_config(fields: Fields) -> TransformerConfig:
    n_layers, size = fields.size("num_hidden_layers"), fields.size("sliding_window", 4096)
    interval = fields.size("sliding_window_pattern", 6)
    layers = local_layers(fields, [(layer + 1) % interval > 0 for layer in range(n_layers)])
    scaling, d_head = fields.inner("rope_scaling"), fields.size("head_dim", 256)
    bases = fields.number("rope_theta", 1e6), fields.number("rope_local_base_freq", 1e4)
    everywhere, nearby = two_rotaries(fields, d_head, bases, scaling.raw)
    fields.only(attn_logit_softcapping=None)  # their code reads it and never applies it
    local = Local(layers, size - 1, nearby)
    return _later(fields, caps=(None, None), local=local, positions=everywhere, qk_norm="head")


def _later(fields: Fields, caps: tuple[float | None, float | None], **parts: Any) -> TransformerConfig:
    """What Gemma 2 and 3 share; `caps` of scores and logits count where the file says nothing."""
    mlp = Gated(fields.activation("hidden_activation", "gelu_pytorch_tanh"))
    scale = fields.number("query_pre_attn_scalar", 256.0) ** -0.5
    cap = _cap(fields, "attn_logit_softcapping", caps[0])
    decoder = _stack(fields, kv_heads=4, mlp=mlp, scale=scale, score_cap=cap, wiring="sandwich", **parts)
    return with_output(fields, decoder, tied=True, logit_cap=_cap(fields, "final_logit_softcapping", caps[1]))


def _cap(fields: Fields, key: str, default: float | None) -> float | None:
    """A cap, which null takes away."""
    return None if fields.raw.get(key, default) is None else fields.number(key, default)


def _stack(fields: Fields, **parts: Any) -> StackConfig:
    bias, norm = fields.flag("attention_bias", False), RMSNorm(fields.number("rms_norm_eps", 1e-6), offset=1.0)
    scale = fields.size("hidden_size") ** 0.5
    return stack(fields, head_dim=256, attention_bias=bias, norm=norm, embedding_scale=scale, **parts)


def _gemma2_raw(config: TransformerConfig) -> dict[str, Any]:
    stack, usual = config.last, common(config)
    scalar = stack.score_scale**-2
    return leave_out(usual, "hidden_act") | {
        "hidden_activation": usual["hidden_act"],
        "query_pre_attn_scalar": round(scalar) if round(scalar) ** -0.5 == stack.score_scale else scalar,
        "sliding_window": window(stack),
        "layer_types": layer_types(stack),
        "attn_logit_softcapping": stack.score_cap,
        "final_logit_softcapping": config.logit_cap,
    }


def _gemma3_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    nearby = stack.local.positions if stack.local else None
    return _gemma2_raw(config) | {
        "rope_parameters": {
            FULL: rope_fields(stack.positions, stack.d_head),
            NEAR: rope_fields(nearby or stack.positions, stack.d_head),
        },
    }


FAMILIES = [
    named_family("gemma", _config, common),
    named_family("gemma2", _gemma2_config, _gemma2_raw),
    named_family("gemma3_text", _gemma3_config, _gemma3_raw),
]
