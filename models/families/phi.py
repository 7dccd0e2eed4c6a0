"""Phi 1 to 2 (Gunasekar 2023): attention and feed-forward read one norm and add at once; biases everywhere."""

from typing import Any

from interp.config import LayerNorm, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, rows, with_output
from models.families.llama import FREQUENCIES, WEIGHTS
from models.families.rotation import rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes()


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    sizes = SIZES.read(fields)
    fields.only(head_dim=sizes["d_head"])
    decoder = StackConfig(
        **sizes,
        causal=True,
        n_kv_heads=fields.size("num_key_value_heads", sizes["n_heads"]),
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-5)),
        wiring="parallel_one_norm",
        positions=rotary(fields, sizes["d_head"], share=0.5),
        mlp=Plain(fields.activation("hidden_act", "gelu_new")),
        qk_norm="head" if fields.flag("qk_layernorm", False) else None,
    )
    return with_output(fields, decoder, output_bias=True)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack = config.last
    return SIZES.decoder(
        config,
        num_key_value_heads=stack.kv_heads,
        qk_layernorm=stack.qk_norm == "head",
        rope_parameters=stated(stack.positions, stack.d_head),
    )


FAMILY = Family(
    "phi",
    "PhiForCausalLM",
    config,
    raw,
    prefix="model.",
    ignored=FREQUENCIES,
    weights={
        **WEIGHTS,
        "stacks.decoder.blocks.*.attn.norm_q": rows("layers.*.self_attn.q_layernorm"),
        "stacks.decoder.blocks.*.attn.norm_k": rows("layers.*.self_attn.k_layernorm"),
        "stacks.decoder.blocks.*.attn.out": rows("layers.*.self_attn.dense"),
        "stacks.decoder.blocks.*.mlp.up": rows("layers.*.mlp.fc1"),
        "stacks.decoder.blocks.*.mlp.down": rows("layers.*.mlp.fc2"),
        "stacks.decoder.norm": rows("final_layernorm"),
    },
)
