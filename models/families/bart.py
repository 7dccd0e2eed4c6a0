"""BART and Marian: an encoder and a decoder with norms after each sum."""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import Learned, Sinusoidal, StackConfig, TransformerConfig
from interp.errors import InputError
from interp.positions import sinusoids
from models.families.family import Family, named_family, rows
from models.families.fields import Fields, Sizes
from models.families.target_ids import ids_of, target_ids

SIZES = {stack: Sizes.named("bart", stack) for stack in ("encoder", "decoder")}
_SINES = Sinusoidal(layout="halves")


def _bart(fields: Fields) -> TransformerConfig:
    """Lewis 2020: norms after the embedding too, learned positions.

    Both stacks and the output layer share one embedding; the first two rows of the position tables are never read.
    """
    parts = {"positions": Learned(first=2), "embedding_norm": True}
    return TransformerConfig(
        encoder=_stack(fields, "encoder", **parts),
        decoder=_stack(fields, "decoder", **parts),
        output="tied",
        output_bias=True,
        shared_embedding=True,
        **target_ids(fields),
    )


def _stack(fields: Fields, name: str, vocabulary: str = "vocab_size", **parts: Any) -> StackConfig:
    names = replace(SIZES[name], d_vocab=vocabulary)
    sizes = names.read(fields)
    parts |= {"causal": name == "decoder", "cross_attention": name == "decoder", "wiring": "post"}
    scale = math.sqrt(sizes["d_model"]) if fields.flag("scale_embedding", False) else 1.0
    return names.stack(fields, sizes, activation="gelu", embedding_scale=scale, **parts)


def _bart_raw(config: TransformerConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "is_encoder_decoder": True,
        "scale_embedding": config.last.embedding_scale != 1,
        "tie_word_embeddings": config.output == "tied",
        **ids_of(config),
    }
    for name, stack in reversed(config.stacks.items()):  # the first stack's fields win
        fields |= SIZES[name].written(stack)
    return fields


def _marian(fields: Fields) -> TransformerConfig:
    """Junczys-Dowmunt 2018, as in OPUS-MT: the original transformer whose sines stand before its cosines.

    Encoder and decoder may have vocabularies of their own.
    """
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    tied = fields.flag("tie_word_embeddings", True)
    if shared and not tied:
        raise InputError("config.json: tie_word_embeddings False is not supported where the embeddings are shared")
    vocabulary = "vocab_size" if shared or fields.get("decoder_vocab_size") is None else "decoder_vocab_size"
    if shared:
        fields.only(decoder_vocab_size=fields.size("vocab_size"))
    return TransformerConfig(
        encoder=_stack(fields, "encoder", positions=_SINES),
        decoder=_stack(fields, "decoder", vocabulary, positions=_SINES),
        output="tied" if tied else "untied",
        output_bias=True,
        shared_embedding=shared,
        **target_ids(fields),
    )


def _marian_raw(config: TransformerConfig) -> dict[str, Any]:
    return {
        **_bart_raw(config),
        "decoder_vocab_size": config.d_vocab,
        "share_encoder_decoder_embeddings": config.shared_embedding,
        "pad_token_id": config.target_start,  # its decoder starts with it
    }


def _with_shared_embedding(family: Family, config: TransformerConfig) -> Family:
    """Embeddings under one name where they are one."""
    if not config.shared_embedding:
        return family
    copies = {"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
    return replace(family, weights={**family.weights, "stacks.encoder.embed.token": rows("shared")}, also=copies)


def _sines(rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """The table of positions as it must be."""
    return sinusoids(torch.arange(rows), columns, _SINES)


_COMPUTED = {f"{stack}.embed_positions.weight": _sines for stack in SIZES}  # in old files
FAMILIES = [
    named_family("bart", _bart, _bart_raw),
    named_family("marian", _marian, _marian_raw, computed=_COMPUTED, suit=_with_shared_embedding),
]
