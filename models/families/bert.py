"""BERT (Devlin 2019): an encoder; norms after each sum and after the embedding, token types, learned positions.

The output layer for masked words is read where it is stored; heads for sentence pairs and other tasks are not.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.config import Activation, LayerNorm, Learned, Plain, StackConfig, Transform, TransformerConfig
from models.families.family import Family, Fields, Theirs, rows
from models.families.sizes import Sizes

SIZES = Sizes()


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    return masked_words(fields, encoder(fields), fields.activation("hidden_act", "gelu"))


def encoder(fields: Fields, first_position: int = 0) -> StackConfig:
    """The stack, which some later families share."""
    fields.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False, pruned_heads={})
    sizes = SIZES.read(fields)
    sizes["n_ctx"] -= first_position  # theirs counts rows of the table
    return StackConfig(
        **sizes,
        causal=False,
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-12)),
        wiring="post",
        positions=Learned(first_position),
        mlp=Plain(fields.activation("hidden_act", "gelu")),
        embedding_norm=True,
        n_token_types=fields.size("type_vocab_size", 2),
    )


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


ENCODER: Mapping[str, Theirs] = {
    "stacks.encoder.embed.token": rows("embeddings.word_embeddings"),
    "stacks.encoder.embed.position": rows("embeddings.position_embeddings"),
    "stacks.encoder.embed.token_type": rows("embeddings.token_type_embeddings"),
    "stacks.encoder.embed.norm": rows("embeddings.LayerNorm"),
    "stacks.encoder.blocks.*.attn.qkv": rows(
        *(f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value"))
    ),
    "stacks.encoder.blocks.*.attn.out": rows("encoder.layer.*.attention.output.dense"),
    "stacks.encoder.blocks.*.norm_attn": rows("encoder.layer.*.attention.output.LayerNorm"),
    "stacks.encoder.blocks.*.mlp.up": rows("encoder.layer.*.intermediate.dense"),
    "stacks.encoder.blocks.*.mlp.down": rows("encoder.layer.*.output.dense"),
    "stacks.encoder.blocks.*.norm_mlp": rows("encoder.layer.*.output.LayerNorm"),
}

FAMILY = Family(
    "bert",
    "BertForMaskedLM",
    config,
    raw,
    prefix="bert.",
    ignored=r"embeddings\.position_ids|pooler\..*|cls\.seq_relationship\..*|(classifier|qa_outputs)\..*",
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    harmless="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
    "pooler_type",
    masked="cls.predictions.transform.dense.weight",
    also={"cls.predictions.bias": ("cls.predictions.decoder.bias",)},
    weights={
        **ENCODER,
        "output.transform.dense": rows("cls.predictions.transform.dense"),
        "output.transform.norm": rows("cls.predictions.transform.LayerNorm"),
        "output.weight": rows("cls.predictions.decoder.weight"),
        "output.bias": rows("cls.predictions.bias"),
    },
)
