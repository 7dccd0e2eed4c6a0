"""Bloom (Le Scao 2022): heads lower their scores with distance (ALiBi), a norm after the embedding, q, k, v by head."""

from typing import Any

from interp.config import Alibi, LayerNorm, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, by_head, parts_of, rows


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    fields.only(apply_residual_connection_post_layernorm=False, slow_but_exact=False)
    # fields have two names each
    width, heads, layers = (
        theirs if fields.get(theirs) is not None else older
        for theirs, older in (
            ("hidden_size", "n_embed"),
            ("n_head", "num_attention_heads"),
            ("n_layer", "num_hidden_layers"),
        )
    )
    decoder = StackConfig(
        n_layers=fields.size(layers),
        d_model=fields.size(width),
        n_heads=fields.size(heads),
        d_head=fields.head_width(width, heads),
        d_mlp=4 * fields.size(width),
        n_ctx=fields.size("seq_length", 2048),  # as trained; nothing in the model ends there
        d_vocab=fields.size("vocab_size"),
        causal=True,
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        positions=Alibi(),
        mlp=Plain("gelu_tanh"),
        embedding_norm=True,
    )
    return TransformerConfig(decoder=decoder, output="tied" if fields.flag("tie_word_embeddings", True) else "untied")


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their config.json for ours."""
    stack = config.last
    _, eps = parts_of(stack)
    return {
        "model_type": "bloom",
        "architectures": ["BloomForCausalLM"],
        "vocab_size": stack.d_vocab,
        "seq_length": stack.n_ctx,
        "hidden_size": stack.d_model,
        "n_layer": stack.n_layers,
        "n_head": stack.n_heads,
        "layer_norm_epsilon": eps,
        "tie_word_embeddings": config.output == "tied",
    }


FAMILY = Family(
    config,
    raw,
    prefix="transformer.",
    ignored="",
    harmless="attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add "
    "skip_bias_add_qkv pretraining_tp",
    weights={
        "stacks.decoder.embed.token": rows("word_embeddings"),
        "stacks.decoder.embed.norm": rows("word_embeddings_layernorm"),
        "stacks.decoder.blocks.*.norm_attn": rows("h.*.input_layernorm"),
        "stacks.decoder.blocks.*.attn.qkv": by_head("h.*.self_attention.query_key_value"),
        "stacks.decoder.blocks.*.attn.out": rows("h.*.self_attention.dense"),
        "stacks.decoder.blocks.*.norm_mlp": rows("h.*.post_attention_layernorm"),
        "stacks.decoder.blocks.*.mlp.up": rows("h.*.mlp.dense_h_to_4h"),
        "stacks.decoder.blocks.*.mlp.down": rows("h.*.mlp.dense_4h_to_h"),
        "stacks.decoder.norm": rows("ln_f"),
        "output": rows("lm_head"),
    },
)
