"""Marian (Junczys-Dowmunt 2018), as of OPUS-MT: the original transformer whose sines stand before its cosines.

Encoder and decoder may have vocabularies of their own.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import Sinusoidal, TransformerConfig
from interp.errors import InputError
from interp.positions import sinusoids
from models.families import bart
from models.families.family import Family, Fields, named_family, rows
from models.families.target_ids import target_ids

_POSITIONS = Sinusoidal(layout="halves")


def _config(fields: Fields) -> TransformerConfig:
    fields.only(normalize_before=False, add_final_layer_norm=False, normalize_embedding=False)
    fields.only(static_position_embeddings=True, add_bias_logits=False)
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    tied = fields.flag("tie_word_embeddings", True)
    if shared and not tied:
        raise InputError("config.json: tie_word_embeddings False is not supported where the embeddings are shared")
    vocabulary = "vocab_size" if shared or fields.get("decoder_vocab_size") is None else "decoder_vocab_size"
    if shared:
        fields.only(decoder_vocab_size=fields.size("vocab_size"))
    return TransformerConfig(
        encoder=bart.stack_of(fields, "encoder", positions=_POSITIONS),
        decoder=bart.stack_of(fields, "decoder", vocabulary, positions=_POSITIONS),
        output="tied" if tied else "untied",
        output_bias=True,
        shared_embedding=shared,
        **target_ids(fields),
    )


def _raw(config: TransformerConfig) -> dict[str, Any]:
    return {
        **bart.raw(config),
        "decoder_vocab_size": config.d_vocab,
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "pad_token_id": config.target_start,  # with which its decoder starts
    }


def _suited(family: Family, config: TransformerConfig) -> Family:
    """Embeddings under one name where they are one."""
    if not config.shared_embedding:
        return family
    copies = {"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
    return replace(family, weights={**family.weights, "stacks.encoder.embed.token": rows("shared")}, also=copies)


def _sines(rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """The table of positions as it must be."""
    return sinusoids(torch.arange(rows), columns, _POSITIONS)


COMPUTED = {f"{stack}.embed_positions.weight": _sines for stack in ("encoder", "decoder")}  # in old files
FAMILY = named_family("marian", _config, _raw, computed=COMPUTED, suit=_suited)
