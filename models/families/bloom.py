"""Bloom (Le Scao 2022): heads lower their scores with distance (ALiBi), a norm after the embedding, q, k, v by head."""

from dataclasses import replace

from interp.config import Alibi, LayerNorm, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, by_head, rows, with_output
from models.families.sizes import Sizes

EPS = "layer_norm_epsilon"
SIZES = Sizes(n_layers="n_layer", n_heads="n_head", d_mlp=None, n_ctx="seq_length", activation=None, eps=EPS)
OLDER = {"n_layers": "num_hidden_layers", "d_model": "n_embed", "n_heads": "num_attention_heads"}  # fields' other names
TRAINED = 2048  # the context that it was trained with; nothing in the model ends there


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    fields.only(apply_residual_connection_post_layernorm=False, slow_but_exact=False)
    sizes = replace(SIZES, **{ours: older for ours, older in OLDER.items() if fields.get(getattr(SIZES, ours)) is None})
    decoder = StackConfig(
        **sizes.read(fields, d_mlp=4 * fields.size(sizes.d_model), n_ctx=TRAINED),
        causal=True,
        norm=LayerNorm(fields.number(EPS, 1e-5)),
        positions=Alibi(),
        mlp=Plain("gelu_tanh"),
        embedding_norm=True,
    )
    return with_output(fields, decoder, tied=True)


FAMILY = Family(
    "bloom",
    "BloomForCausalLM",
    config,
    SIZES.decoder,
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
