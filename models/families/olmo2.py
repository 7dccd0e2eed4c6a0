"""OLMo 2 (2025): Llama whose layers' outputs are normalised, not what they read; queries and keys too, as a whole."""

from interp.config import TransformerConfig
from models.families.family import Fields, rows, with_output
from models.families.llama import WEIGHTS, common, family, stack


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    bias = fields.flag("attention_bias", False)
    return with_output(fields, stack(fields, eps=1e-5, wiring="after", attention_bias=bias, qk_norm="all"))


NORMS = {
    "stacks.decoder.blocks.*.norm_attn": rows("layers.*.post_attention_layernorm"),
    "stacks.decoder.blocks.*.norm_mlp": rows("layers.*.post_feedforward_layernorm"),
}
FAMILY = family("olmo2", "Olmo2ForCausalLM", config, common, {**WEIGHTS, **NORMS})
