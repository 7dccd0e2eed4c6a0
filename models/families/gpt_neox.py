"""GPT-NeoX and Pythia (Black 2022, Biderman 2023): attention beside the feed-forward; part of each head rotates."""

from typing import Any

from interp.config import LayerNorm, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, by_head, rows, with_output
from models.families.rotation import rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes()


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    sizes = SIZES.read(fields)
    decoder = StackConfig(
        **sizes,
        causal=True,
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-5)),
        wiring="parallel" if fields.flag("use_parallel_residual", True) else "pre",
        positions=rotary(
            fields,
            sizes["d_head"],
            base=fields.number("rotary_emb_base", 10_000.0),
            share=fields.number("rotary_pct", 0.25),
        ),
        mlp=Plain(fields.activation("hidden_act", "gelu")),
        attention_bias=fields.flag("attention_bias", True),
    )
    return with_output(fields, decoder)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack = config.last
    return SIZES.decoder(
        config,
        use_parallel_residual=stack.wiring == "parallel",
        attention_bias=stack.attention_bias,
        rope_parameters=stated(stack.positions, stack.d_head),
    )


FAMILY = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    config,
    raw,
    prefix="gpt_neox.",
    ignored=r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
    harmless="is_decoder",
    weights={
        "stacks.decoder.embed.token": rows("embed_in"),
        "stacks.decoder.blocks.*.norm_attn": rows("layers.*.input_layernorm"),
        "stacks.decoder.blocks.*.attn.qkv": by_head("layers.*.attention.query_key_value"),
        "stacks.decoder.blocks.*.attn.out": rows("layers.*.attention.dense"),
        "stacks.decoder.blocks.*.norm_mlp": rows("layers.*.post_attention_layernorm"),
        "stacks.decoder.blocks.*.mlp.up": rows("layers.*.mlp.dense_h_to_4h"),
        "stacks.decoder.blocks.*.mlp.down": rows("layers.*.mlp.dense_4h_to_h"),
        "stacks.decoder.norm": rows("final_layer_norm"),
        "output": rows("embed_out"),
    },
)
