"""Llama (Touvron 2023): rotary positions, RMS norms before each layer, shared key/value heads, a gated feed-forward."""

from collections.abc import Mapping
from typing import Any

from interp.config import Gated, RMSNorm, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from models.family import Family, Fields, parts_of, rows


def config(raw: Mapping[str, Any]) -> TransformerConfig:
    """Ours for their config.json."""
    fields = Fields(raw)
    fields.only(sliding_window=None, partial_rotary_factor=1.0)
    heads = fields.size("num_attention_heads")
    decoder = StackConfig(
        n_layers=fields.size("num_hidden_layers"),
        d_model=fields.size("hidden_size"),
        n_heads=heads,
        d_head=fields.size("head_dim")
        if raw.get("head_dim")
        else fields.head_width("hidden_size", "num_attention_heads"),
        d_mlp=fields.size("intermediate_size"),
        n_ctx=fields.size("max_position_embeddings"),
        d_vocab=fields.size("vocab_size"),
        causal=True,
        n_kv_heads=fields.size("num_key_value_heads", heads),
        norm=RMSNorm(fields.number("rms_norm_eps", 1e-6)),
        positions=rotary(raw),
        mlp=Gated(fields.activation("hidden_act", "silu"), bias=fields.flag("mlp_bias", False)),
        attention_bias=fields.flag("attention_bias", False),
    )
    return TransformerConfig(decoder=decoder, output="tied" if fields.flag("tie_word_embeddings", False) else "untied")


def rotary(raw: Mapping[str, Any]) -> Rotary:
    """The rotation, from `rope_parameters` or, in older files, `rope_theta` and `rope_scaling`."""
    stated: dict[str, Any] = {"rope_theta": raw.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        rope = raw.get(key) or {}
        if not isinstance(rope, dict):
            raise InputError(f"config.json: {key} must be an object, got {rope!r}")
        Fields(rope).only(rope_type="default", type="default", partial_rotary_factor=1.0)
        stated |= rope
    return Rotary(Fields(stated).number("rope_theta", 10_000.0))


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their config.json for ours."""
    stack = config.last
    activation, eps = parts_of(stack)
    base = stack.positions.base if isinstance(stack.positions, Rotary) else None
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": stack.d_vocab,
        "max_position_embeddings": stack.n_ctx,
        "hidden_size": stack.d_model,
        "intermediate_size": stack.d_mlp,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.d_head,
        "hidden_act": activation,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_theta": base, "rope_type": "default"},
        "attention_bias": stack.attention_bias,
        "mlp_bias": isinstance(stack.mlp, Gated) and stack.mlp.bias,
        "tie_word_embeddings": config.output == "tied",
    }


FAMILY = Family(
    config,
    raw,
    prefix="model.",
    ignored=r".*rotary_emb\.inv_freq",
    weights={
        "stacks.decoder.embed.token": rows("embed_tokens"),
        "stacks.decoder.blocks.*.norm_attn": rows("layers.*.input_layernorm"),
        "stacks.decoder.blocks.*.attn.qkv": rows(*(f"layers.*.self_attn.{part}_proj" for part in "qkv")),
        "stacks.decoder.blocks.*.attn.out": rows("layers.*.self_attn.o_proj"),
        "stacks.decoder.blocks.*.norm_mlp": rows("layers.*.post_attention_layernorm"),
        "stacks.decoder.blocks.*.mlp.up": rows("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"),
        "stacks.decoder.blocks.*.mlp.down": rows("layers.*.mlp.down_proj"),
        "stacks.decoder.norm": rows("norm"),
        "output": rows("lm_head"),
    },
)
