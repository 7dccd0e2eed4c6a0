"""BERT (Devlin 2019): an encoder; norms after each sum and after the embedding, token types, learned positions.

Heads for masked words and sentence pairs are left unread: the last residual stream is what the model gives.
"""

from collections.abc import Mapping
from typing import Any

from interp.config import LayerNorm, Plain, StackConfig, TransformerConfig
from models.family import Family, Fields, parts_of, rows


def config(raw: Mapping[str, Any]) -> TransformerConfig:
    """Ours for their config.json."""
    fields = Fields(raw)
    fields.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    encoder = StackConfig(
        n_layers=fields.size("num_hidden_layers"),
        d_model=fields.size("hidden_size"),
        n_heads=fields.size("num_attention_heads"),
        d_head=fields.head_width("hidden_size", "num_attention_heads"),
        d_mlp=fields.size("intermediate_size"),
        n_ctx=fields.size("max_position_embeddings"),
        d_vocab=fields.size("vocab_size"),
        causal=False,
        norm=LayerNorm(fields.number("layer_norm_eps", 1e-12)),
        wiring="post",
        mlp=Plain(fields.activation("hidden_act", "gelu")),
        embedding_norm=True,
        n_token_types=fields.size("type_vocab_size", 2),
    )
    return TransformerConfig(encoder=encoder, output="none")


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their config.json for ours."""
    stack = config.last
    activation, eps = parts_of(stack)
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": stack.d_vocab,
        "max_position_embeddings": stack.n_ctx,
        "hidden_size": stack.d_model,
        "intermediate_size": stack.d_mlp,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "hidden_act": activation,
        "layer_norm_eps": eps,
        "type_vocab_size": stack.n_token_types,
    }


FAMILY = Family(
    config,
    raw,
    prefix="bert.",
    ignored=r"embeddings\.position_ids|pooler\..*|cls\..*",
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    weights={
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
    },
)
