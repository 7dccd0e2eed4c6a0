"""GPT-J (Wang 2021): attention and feed-forward read one norm and add at once; neighbouring dimensions rotate."""

from typing import Any

from interp.config import LayerNorm, Plain, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, rows, with_output
from models.families.gpt2 import SIZES, SUMMARY, WEIGHTS


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    sizes, turning = SIZES.read(fields, d_mlp=4 * fields.size("n_embd")), fields.size("rotary_dim", 64)
    if turning > sizes["d_head"]:
        raise InputError(f"config.json: rotary_dim {turning} is more than the {sizes['d_head']} dimensions of a head")
    decoder = StackConfig(
        **sizes,
        causal=True,
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        wiring="parallel_one_norm",
        positions=Rotary(10_000.0, dims=turning, pairing="adjacent"),
        mlp=Plain(fields.activation("activation_function", "gelu_new")),
        attention_bias=False,
    )
    return with_output(fields, decoder, output_bias=True)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    positions = config.last.positions
    return SIZES.decoder(config, rotary_dim=positions.dims if isinstance(positions, Rotary) else None)


FAMILY = Family(
    "gptj",
    "GPTJForCausalLM",
    config,
    raw,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
    harmless=f"rotary scale_attn_weights {SUMMARY}",
    weights={
        **WEIGHTS,
        "stacks.decoder.blocks.*.attn.qkv": rows(*(f"h.*.attn.{part}_proj" for part in "qkv")),
        "stacks.decoder.blocks.*.attn.out": rows("h.*.attn.out_proj"),
        "stacks.decoder.blocks.*.mlp.up": rows("h.*.mlp.fc_in"),
        "stacks.decoder.blocks.*.mlp.down": rows("h.*.mlp.fc_out"),
    },
)
