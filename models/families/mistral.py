"""Mistral (Jiang 2023), Llama whose queries see a window of tokens; and Mixtral (Jiang 2024), with experts."""

from typing import Any

from interp.config import Experts, TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.llama import common, gated, leave_out, stack
from models.families.local_attention import all_near, window


def _config(fields: Fields) -> TransformerConfig:
    return with_output(fields, stack(fields, kv_heads=8, local=all_near(fields, 4096)))


def _raw(config: TransformerConfig) -> dict[str, Any]:
    return leave_out(common(config), "attention_bias") | {"sliding_window": window(config.last)}


def _mixtral_config(fields: Fields) -> TransformerConfig:
    mlp = Experts(fields.size("num_local_experts", 8), fields.size("num_experts_per_tok", 2), gated(fields))
    return with_output(fields, stack(fields, base=1e6, eps=1e-5, kv_heads=8, local=all_near(fields), mlp=mlp))


def _mixtral_raw(config: TransformerConfig) -> dict[str, Any]:
    mlp = config.last.mlp
    experts = (mlp.n_experts, mlp.n_chosen) if isinstance(mlp, Experts) else (None, None)
    return _raw(config) | {"num_local_experts": experts[0], "num_experts_per_tok": experts[1]}


MISTRAL = named_family("mistral", _config, _raw)
MIXTRAL = named_family("mixtral", _mixtral_config, _mixtral_raw)
