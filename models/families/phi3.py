"""Phi-3 (Abdin 2024): Llama whose q, k and v, and whose gate and its partner, are stored as one matrix each."""

from typing import Any

from interp.config import Rotary, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, named_family, with_output
from models.families.llama import common, leave_out, stack
from models.families.local_attention import all_near, window


def _config(fields: Fields) -> TransformerConfig:
    decoder = stack(fields, share=1.0, eps=1e-5, local=all_near(fields))
    if isinstance(decoder.positions, Rotary) and decoder.positions.scaling is not None:
        raise InputError("config.json: a rotation that depends on the text's length (longrope) is not supported")
    return with_output(fields, decoder)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    padding = {"pad_token_id": None}  # theirs lies outside of most vocabularies
    return leave_out(common(config), "attention_bias", "head_dim") | {"sliding_window": window(config.last)} | padding


FAMILY = named_family("phi3", _config, _raw)
