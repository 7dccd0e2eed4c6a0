"""GPT-2 (Radford 2019): learned positions, norms before each layer, one stored matrix for q, k and v."""

from collections.abc import Mapping
from typing import Any

from interp.config import LayerNorm, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, Theirs, columns, rows, with_output
from models.families.sizes import Sizes

SIZES = Sizes(
    n_layers="n_layer",
    d_model="n_embd",
    n_heads="n_head",
    d_mlp="n_inner",
    n_ctx="n_positions",
    activation="activation_function",
    eps="layer_norm_epsilon",
)

SUMMARY = "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"  # harmless


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    fields.only(scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False, add_cross_attention=False)
    decoder = StackConfig(
        **SIZES.read(fields, d_mlp=4 * fields.size("n_embd")),
        causal=True,
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        mlp=Plain(fields.activation("activation_function", "gelu_new")),
        scale=None if fields.flag("scale_attn_weights", True) else 1.0,
    )
    return with_output(fields, decoder, tied=True)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    return SIZES.decoder(config, scale_attn_weights=config.last.scale is None)


WEIGHTS: Mapping[str, Theirs] = {
    "stacks.decoder.embed.token": rows("wte"),
    "stacks.decoder.embed.position": rows("wpe"),
    "stacks.decoder.blocks.*.norm_attn": rows("h.*.ln_1"),
    "stacks.decoder.blocks.*.attn.qkv": columns("h.*.attn.c_attn"),
    "stacks.decoder.blocks.*.attn.out": columns("h.*.attn.c_proj"),
    "stacks.decoder.blocks.*.norm_mlp": rows("h.*.ln_2"),
    "stacks.decoder.blocks.*.mlp.up": columns("h.*.mlp.c_fc"),
    "stacks.decoder.blocks.*.mlp.down": columns("h.*.mlp.c_proj"),
    "stacks.decoder.norm": rows("ln_f"),
    "output": rows("lm_head"),
}
FAMILY = Family(
    "gpt2",
    "GPT2LMHeadModel",
    config,
    raw,
    WEIGHTS,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
    harmless=f"n_ctx {SUMMARY}",
)
