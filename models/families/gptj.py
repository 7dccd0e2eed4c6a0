"""GPT-J (Wang 2021): attention and feed-forward read one norm and add at once; neighbouring dimensions rotate."""

from typing import Any

from interp.config import LayerNorm, Plain, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, parts_of, rows
from models.families.sizes import Sizes

SIZES = Sizes(n_layers="n_layer", d_model="n_embd", n_heads="n_head", d_mlp="n_inner", n_ctx="n_positions")


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
    output = "tied" if fields.flag("tie_word_embeddings", False) else "untied"
    return TransformerConfig(decoder=decoder, output=output, output_bias=True)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their config.json for ours."""
    stack = config.last
    activation, eps = parts_of(stack)
    return {
        "model_type": "gptj",
        "architectures": ["GPTJForCausalLM"],
        **SIZES.written(stack),
        "rotary_dim": stack.positions.dims if isinstance(stack.positions, Rotary) else None,
        "activation_function": activation,
        "layer_norm_epsilon": eps,
        "tie_word_embeddings": config.output == "tied",
    }


FAMILY = Family(
    config,
    raw,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
    harmless="rotary scale_attn_weights summary_activation summary_first_dropout summary_proj_to_labels summary_type "
    "summary_use_proj",
    weights={
        "stacks.decoder.embed.token": rows("wte"),
        "stacks.decoder.blocks.*.norm_attn": rows("h.*.ln_1"),
        "stacks.decoder.blocks.*.attn.qkv": rows(*(f"h.*.attn.{part}_proj" for part in "qkv")),
        "stacks.decoder.blocks.*.attn.out": rows("h.*.attn.out_proj"),
        "stacks.decoder.blocks.*.mlp.up": rows("h.*.mlp.fc_in"),
        "stacks.decoder.blocks.*.mlp.down": rows("h.*.mlp.fc_out"),
        "stacks.decoder.norm": rows("ln_f"),
        "output": rows("lm_head"),
    },
)
