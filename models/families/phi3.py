"""Phi-3 (Abdin 2024): Llama whose q, k and v, and whose gate and its partner, are stored as one matrix each."""

from typing import Any

from interp.config import Rotary, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, rows, with_output
from models.families.llama import WEIGHTS, all_near, common, family, stack, window, without


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    own = stack(fields, share=1.0, eps=1e-5, local=all_near(fields))
    if isinstance(own.positions, Rotary) and own.positions.scaling is not None:
        raise InputError("config.json: a rotation that depends on the text's length (longrope) is not supported")
    return with_output(fields, own)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    return without(common(config), "attention_bias", "head_dim") | {
        "sliding_window": window(config.last),
        "pad_token_id": None,  # theirs lies outside of most vocabularies
    }


STORED_AS_ONE = {
    "stacks.decoder.blocks.*.attn.qkv": rows("layers.*.self_attn.qkv_proj"),
    "stacks.decoder.blocks.*.mlp.up": rows("layers.*.mlp.gate_up_proj"),
}
FAMILY = family(
    "phi3", "Phi3ForCausalLM", config, raw, {**WEIGHTS, **STORED_AS_ONE}, "original_max_position_embeddings"
)
