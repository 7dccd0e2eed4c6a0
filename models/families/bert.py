"""BERT and encoders that differ from it in a part or two: norms after each sum and after the embedding.

The output layer for masked words is read where it is stored; heads for sentence pairs and other tasks are not.
"""

from dataclasses import replace
from typing import Any

from interp.config import Activation, LayerNorm, Learned, StackConfig, Transform, TransformerConfig
from models.families.family import named_family
from models.families.fields import Fields, Sizes

BERT, DISTILBERT = Sizes.named("bert"), Sizes.named("distilbert")
PARTS: dict[str, Any] = {"causal": False, "wiring": "post", "embedding_norm": True}


def _bert(fields: Fields) -> TransformerConfig:
    """Devlin 2019: token types, learned positions."""
    return masked_words(fields, _encoder(fields), fields.activation("hidden_act", "gelu"))


def _encoder(fields: Fields, first_position: int = 0) -> StackConfig:
    fields.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, pruned_heads={})
    sizes = BERT.read(fields)
    sizes["n_ctx"] -= first_position  # theirs counts rows of the table
    parts = {"positions": Learned(first_position), "n_token_types": fields.size("type_vocab_size", 2)}
    return BERT.stack(fields, sizes, activation="gelu", eps=1e-12, **PARTS, **parts)


def masked_words(
    fields: Fields, stack: StackConfig, activation: Activation, *, bias: bool = True, output_bias: bool = True
) -> TransformerConfig:
    """The encoder, with an output layer for masked words where there is one; `bias` is that of its transform."""
    fields.flag("tie_word_embeddings", True)
    if not fields.masked_words:
        return TransformerConfig(encoder=stack, output="none")
    fields.only(tie_word_embeddings=True)
    assert isinstance(stack.norm, LayerNorm)
    transform = Transform(activation, stack.norm, bias)
    return TransformerConfig(encoder=stack, output="tied", output_bias=output_bias, transform=transform)


def _bert_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    first = stack.positions.first if isinstance(stack.positions, Learned) else 0
    return {**BERT.written(replace(stack, n_ctx=stack.n_ctx + first)), "type_vocab_size": stack.n_token_types}


def _roberta(fields: Fields) -> TransformerConfig:
    """Liu 2019: the position table begins after the row of the padding token; one token type."""
    padding = fields.size("pad_token_id", 1, least=0)
    return masked_words(fields, _encoder(fields, first_position=padding + 1), "gelu")


def _roberta_raw(config: TransformerConfig) -> dict[str, Any]:
    positions = config.last.positions
    return _bert_raw(config) | {"pad_token_id": positions.first - 1 if isinstance(positions, Learned) else None}


def _distilbert(fields: Fields) -> TransformerConfig:
    """Sanh 2019: BERT's blocks under other names, without token types; no field holds the norms' epsilon."""
    fields.only(pruned_heads={})
    stack = DISTILBERT.stack(fields, activation="gelu", eps=1e-12, **PARTS)
    return masked_words(fields, stack, fields.activation("activation", "gelu"))


def _electra(fields: Fields) -> TransformerConfig:
    """Clark 2020: the embedding may be narrower than the stream; its generator fills masked words.

    The discriminator's own output, whether each token was replaced, predicts no words and is not read.
    """
    stack, width = _encoder(fields), fields.size("embedding_size", 128)
    return masked_words(fields, replace(stack, d_embedding=None if width == stack.d_model else width), "gelu")


def _electra_raw(config: TransformerConfig) -> dict[str, Any]:
    return _bert_raw(config) | {"embedding_size": config.last.d_embedding or config.d_model}


FAMILIES = [
    named_family("bert", _bert, _bert_raw),
    named_family("roberta", _roberta, _roberta_raw),
    named_family("distilbert", _distilbert, lambda config: DISTILBERT.written(config.last)),
    named_family("electra", _electra, _electra_raw),
]
