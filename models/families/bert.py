"""BERT (Devlin 2019): an encoder; norms after each sum and after the embedding, token types, learned positions.

The output layer for masked words is read where it is stored; heads for sentence pairs and other tasks are not.
"""

from dataclasses import replace
from typing import Any

from interp.config import Activation, LayerNorm, Learned, StackConfig, Transform, TransformerConfig
from models.families.family import Fields, named_family
from models.families.sizes import Sizes

SIZES = Sizes.named("bert")
PARTS: dict[str, Any] = {"causal": False, "wiring": "post", "embedding_norm": True}


def _config(fields: Fields) -> TransformerConfig:
    return masked_words(fields, encoder(fields), fields.activation("hidden_act", "gelu"))


def encoder(fields: Fields, first_position: int = 0) -> StackConfig:
    """The stack, which some later families share."""
    fields.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, pruned_heads={})
    sizes = SIZES.read(fields)
    sizes["n_ctx"] -= first_position  # theirs counts rows of the table
    parts = {"positions": Learned(first_position), "n_token_types": fields.size("type_vocab_size", 2)}
    return SIZES.stack(fields, sizes, activation="gelu", eps=1e-12, **PARTS, **parts)


def masked_words(
    fields: Fields, stack: StackConfig, activation: Activation, *, bias: bool = True, output_bias: bool = True
) -> TransformerConfig:
    """The encoder, with an output layer for masked words where there is one; `bias` is of what stands before it."""
    fields.flag("tie_word_embeddings", True)
    if not fields.masked_words:
        return TransformerConfig(encoder=stack, output="none")
    fields.only(tie_word_embeddings=True)
    assert isinstance(stack.norm, LayerNorm)
    transform = Transform(activation, stack.norm, bias)
    return TransformerConfig(encoder=stack, output="tied", output_bias=output_bias, transform=transform)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack = config.last
    first = stack.positions.first if isinstance(stack.positions, Learned) else 0
    return {**SIZES.written(replace(stack, n_ctx=stack.n_ctx + first)), "type_vocab_size": stack.n_token_types}


FAMILY = named_family("bert", _config, raw)
