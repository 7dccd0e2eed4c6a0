"""StableLM 2 (Bellagente 2024): Llama with layer norms, of whose heads a part rotates."""

from typing import Any

from interp.config import LayerNorm, TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.llama import common, leave_out, stack


def _config(fields: Fields) -> TransformerConfig:
    fields.only(qk_layernorm=False)  # each head would have a norm of its own
    norm, bias = LayerNorm(fields.number("layer_norm_eps", 1e-5)), fields.flag("use_qkv_bias", False)
    wiring = "parallel_one_norm" if fields.flag("use_parallel_residual", False) else "pre"
    parts = {"norm": norm, "wiring": wiring, "attention_bias": bias, "out_bias": False}
    return with_output(fields, stack(fields, share=0.25, kv_heads=32, **parts))


def _raw(config: TransformerConfig) -> dict[str, Any]:
    usual = common(config)
    return leave_out(usual, "attention_bias", "rms_norm_eps", "head_dim") | {
        "layer_norm_eps": usual["rms_norm_eps"],
        "use_qkv_bias": config.last.attention_bias,
        "use_parallel_residual": config.last.parallel,
    }


FAMILY = named_family("stablelm", _config, _raw)
