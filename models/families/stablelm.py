"""StableLM 2 (Bellagente 2024): Llama with layer norms, of whose heads a part rotates."""

from typing import Any

from interp.config import LayerNorm, TransformerConfig
from models.families.family import Fields, with_output
from models.families.llama import common, family, stack, without


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    fields.only(qk_layernorm=False)  # each head would have a norm of its own
    norm, bias = LayerNorm(fields.number("layer_norm_eps", 1e-5)), fields.flag("use_qkv_bias", False)
    wiring = "parallel_one_norm" if fields.flag("use_parallel_residual", False) else "pre"
    own = stack(fields, share=0.25, kv_heads=32, norm=norm, wiring=wiring, attention_bias=bias, out_bias=False)
    return with_output(fields, own)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    usual = common(config)
    return without(usual, "attention_bias", "rms_norm_eps", "head_dim") | {
        "layer_norm_eps": usual["rms_norm_eps"],
        "use_qkv_bias": config.last.attention_bias,
        "use_parallel_residual": config.last.parallel,
    }


FAMILY = family("stablelm", "StableLmForCausalLM", config, raw)
