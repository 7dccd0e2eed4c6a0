"""Mistral (Jiang 2023), Llama whose queries see a window of tokens; and Mixtral (Jiang 2024), with experts."""

from typing import Any

from interp.config import Experts, TransformerConfig
from models.families.family import Fields, rows, with_output
from models.families.llama import WEIGHTS, all_near, common, family, gated, stack, window, without


def config(fields: Fields) -> TransformerConfig:
    """Ours for a Mistral's config.json."""
    return with_output(fields, stack(fields, kv_heads=8, local=all_near(fields, 4096)))


def raw(config: TransformerConfig) -> dict[str, Any]:
    """A Mistral's fields for ours."""
    return without(common(config), "attention_bias") | {"sliding_window": window(config.last)}


def mixtral_config(fields: Fields) -> TransformerConfig:
    """Ours for a Mixtral's config.json."""
    mlp = Experts(fields.size("num_local_experts", 8), fields.size("num_experts_per_tok", 2), gated(fields))
    return with_output(fields, stack(fields, base=1e6, eps=1e-5, kv_heads=8, local=all_near(fields), mlp=mlp))


def mixtral_raw(config: TransformerConfig) -> dict[str, Any]:
    """A Mixtral's fields for ours."""
    mlp = config.last.mlp
    experts = (mlp.n_experts, mlp.n_chosen) if isinstance(mlp, Experts) else (None, None)
    return raw(config) | {"num_local_experts": experts[0], "num_experts_per_tok": experts[1]}


EXPERTS = {
    "stacks.decoder.blocks.*.mlp.router": rows("layers.*.block_sparse_moe.gate"),
    "stacks.decoder.blocks.*.mlp.experts.*.up": rows(*(f"layers.*.block_sparse_moe.experts.*.w{i}" for i in (1, 3))),
    "stacks.decoder.blocks.*.mlp.experts.*.down": rows("layers.*.block_sparse_moe.experts.*.w2"),
}
MISTRAL = family("mistral", "MistralForCausalLM", config, raw)
MIXTRAL = family(
    "mixtral",
    "MixtralForCausalLM",
    mixtral_config,
    mixtral_raw,
    {**WEIGHTS, **EXPERTS},
    harmless="output_router_logits router_aux_loss_coef router_jitter_noise",
)
