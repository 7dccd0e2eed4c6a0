"""OPT (Zhang 2022): GPT-2's blocks with relu; the first two rows of the position table are never read."""

from typing import Any

from interp.config import LayerNorm, Learned, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, rows, with_output
from models.families.sizes import Sizes

SIZES = Sizes(d_mlp="ffn_dim", activation="activation_function", eps=None)
UNREAD = 2  # rows of the position table before that of position 0
EPS = 1e-5  # of all norms; their configuration has no field for it


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    sizes = SIZES.read(fields)
    # of OPT-350m alone: embeddings narrower than the stream, brought to its width after positions are added
    fields.only(
        word_embed_proj_dim=sizes["d_model"], layer_norm_elementwise_affine=True, _remove_final_layer_norm=False
    )
    bias = fields.flag("enable_bias", True)
    decoder = StackConfig(
        **sizes,
        causal=True,
        norm=LayerNorm(EPS),
        wiring="pre" if fields.flag("do_layer_norm_before", True) else "post",
        positions=Learned(UNREAD),
        mlp=Plain(fields.activation("activation_function", "relu"), bias),
        attention_bias=bias,
    )
    return with_output(fields, decoder, tied=True)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack = config.last
    return SIZES.decoder(
        config,
        word_embed_proj_dim=stack.d_model,
        do_layer_norm_before=stack.wiring == "pre",
        enable_bias=stack.attention_bias,
    )


FAMILY = Family(
    "opt",
    "OPTForCausalLM",
    config,
    raw,
    prefix="model.",
    ignored="",
    harmless="activation_dropout init_std layerdrop",
    weights={
        "stacks.decoder.embed.token": rows("decoder.embed_tokens"),
        "stacks.decoder.embed.position": rows("decoder.embed_positions"),
        "stacks.decoder.blocks.*.norm_attn": rows("decoder.layers.*.self_attn_layer_norm"),
        "stacks.decoder.blocks.*.attn.qkv": rows(*(f"decoder.layers.*.self_attn.{part}_proj" for part in "qkv")),
        "stacks.decoder.blocks.*.attn.out": rows("decoder.layers.*.self_attn.out_proj"),
        "stacks.decoder.blocks.*.norm_mlp": rows("decoder.layers.*.final_layer_norm"),
        "stacks.decoder.blocks.*.mlp.up": rows("decoder.layers.*.fc1"),
        "stacks.decoder.blocks.*.mlp.down": rows("decoder.layers.*.fc2"),
        "stacks.decoder.norm": rows("decoder.final_layer_norm"),
        "output": rows("lm_head"),
    },
)
