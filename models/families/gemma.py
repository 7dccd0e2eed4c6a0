"""Gemma 1, 2 and 3 (2024-2025): norms that add 1 to their weights, embeddings scaled by the root of their width.

Gemma 2 has norms before and after each layer, caps on scores and logits, and a window in every other layer; Gemma 3
normalises queries and keys instead of capping, and turns them by other angles where layers see a window.
"""

from collections.abc import Mapping
from typing import Any

from interp.config import Gated, Local, RMSNorm, Rotary, StackConfig, TransformerConfig
from models.families.family import Fields, Theirs, rows, with_output
from models.families.llama import WEIGHTS, common, family, layer_types, near, stack, window, without
from models.families.rotation import one_rotary, stated


def config(fields: Fields) -> TransformerConfig:
    """Ours for a Gemma 1's config.json."""
    fields.only(hidden_activation="gelu_pytorch_tanh")
    name = fields.activation("hidden_act", "gelu_pytorch_tanh")
    # the first files say gelu and mean its approximation
    own = _stack(fields, mlp=Gated("gelu_tanh" if name == "gelu" else name), kv_heads=16)
    return with_output(fields, own, tied=True)


def gemma2_config(fields: Fields) -> TransformerConfig:
    """Ours for a Gemma 2's config.json."""
    n_layers, size = fields.size("num_hidden_layers"), fields.size("sliding_window", 4096)
    layers = near(fields, [layer % 2 == 0 for layer in range(n_layers)])
    return _later(fields, caps=(50.0, 30.0), local=Local(layers, size - 1))


def gemma3_config(fields: Fields) -> TransformerConfig:
    """Ours for a Gemma 3's config.json, where it reads text alone."""
    n_layers, size = fields.size("num_hidden_layers"), fields.size("sliding_window", 4096)
    every = fields.size("sliding_window_pattern", 6)
    layers = near(fields, [(layer + 1) % every > 0 for layer in range(n_layers)])
    everywhere, nearby = _two_rotations(fields)
    local = Local(layers, size - 1, nearby)
    fields.only(attn_logit_softcapping=None)  # which they read and never apply
    return _later(fields, caps=(None, None), local=local, positions=everywhere, qk_norm="head")


def _two_rotations(fields: Fields) -> tuple[Rotary, Rotary]:
    """Of layers that see everything, and of those that see a window."""
    parameters = fields.inner("rope_parameters")
    full, near = parameters.inner("full_attention"), parameters.inner("sliding_attention")
    parameters.rest(())
    full = Fields({**full.raw, **fields.inner("rope_scaling").raw})
    d_head, n_ctx = fields.size("head_dim", 256), fields.size("max_position_embeddings")
    for rope in (full, near):
        rope.only(partial_rotary_factor=1.0, truncate=True)
    return (
        one_rotary(full, d_head, fields.number("rope_theta", 1e6), n_ctx),
        one_rotary(near, d_head, fields.number("rope_local_base_freq", 1e4), n_ctx),
    )


def _later(fields: Fields, caps: tuple[float | None, float | None], **own: Any) -> TransformerConfig:
    """What Gemma 2 and 3 share; `caps` of scores and logits are those of files that say nothing of them."""
    fields.only(hidden_act="gelu_pytorch_tanh")
    mlp = Gated(fields.activation("hidden_activation", "gelu_pytorch_tanh"))
    scale = fields.number("query_pre_attn_scalar", 256.0) ** -0.5
    cap = _cap(fields, "attn_logit_softcapping", caps[0])
    decoder = _stack(fields, kv_heads=4, mlp=mlp, scale=scale, score_cap=cap, wiring="sandwich", **own)
    return with_output(fields, decoder, tied=True, logit_cap=_cap(fields, "final_logit_softcapping", caps[1]))


def _cap(fields: Fields, key: str, default: float | None) -> float | None:
    """A cap, which null takes away."""
    return None if fields.raw.get(key, default) is None else fields.number(key, default)


def _stack(fields: Fields, **own: Any) -> StackConfig:
    fields.only(use_bidirectional_attention=False)
    bias, norm = fields.flag("attention_bias", False), RMSNorm(fields.number("rms_norm_eps", 1e-6), offset=1.0)
    scale = fields.size("hidden_size") ** 0.5
    return stack(fields, head_dim=256, attention_bias=bias, norm=norm, embedding_scale=scale, **own)


def gemma2_raw(config: TransformerConfig) -> dict[str, Any]:
    """A Gemma 2's fields for ours."""
    stack, usual = config.last, common(config)
    scalar = stack.score_scale**-2
    return without(usual, "hidden_act") | {
        "hidden_activation": usual["hidden_act"],
        "query_pre_attn_scalar": round(scalar) if round(scalar) ** -0.5 == stack.score_scale else scalar,
        "sliding_window": window(stack),
        "layer_types": layer_types(stack),
        "attn_logit_softcapping": stack.score_cap,
        "final_logit_softcapping": config.logit_cap,
    }


def gemma3_raw(config: TransformerConfig) -> dict[str, Any]:
    """A Gemma 3's fields for ours."""
    stack = config.last
    nearby = stack.local.positions if stack.local else None
    return gemma2_raw(config) | {
        "rope_parameters": {
            "full_attention": stated(stack.positions, stack.d_head),
            "sliding_attention": stated(nearby or stack.positions, stack.d_head),
        },
    }


SANDWICH: Mapping[str, Theirs] = {
    **without(WEIGHTS, "stacks.decoder.blocks.*.norm_attn", "stacks.decoder.blocks.*.norm_mlp"),
    "stacks.decoder.blocks.*.norm_attn.before": rows("layers.*.input_layernorm"),
    "stacks.decoder.blocks.*.norm_attn.after": rows("layers.*.post_attention_layernorm"),
    "stacks.decoder.blocks.*.norm_mlp.before": rows("layers.*.pre_feedforward_layernorm"),
    "stacks.decoder.blocks.*.norm_mlp.after": rows("layers.*.post_feedforward_layernorm"),
}

GEMMA = family("gemma", "GemmaForCausalLM", config, common)
GEMMA2 = family("gemma2", "Gemma2ForCausalLM", gemma2_config, gemma2_raw, SANDWICH, "cache_implementation")
GEMMA3 = family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    gemma3_config,
    gemma3_raw,
    SANDWICH,
    "_sliding_window_pattern cache_implementation",
)
