"""T5 (Raffel 2020): an encoder and a decoder told positions by buckets of distances on the scores, which have no scale.

The first version has ReLU, and scales the stream before an output layer that is the embedding; version 1.1 (and
FLAN-T5) has a gated GELU and an output layer of its own, unscaled.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from interp.config import Activation, Buckets, Gated, Plain, RMSNorm, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, parts_of, rows
from models.families.sizes import Sizes
from models.families.target_ids import STRATEGY, ids_of, start_of, writing_of

SIZES = Sizes(
    n_layers="num_layers",
    d_model="d_model",
    n_heads="num_heads",
    d_mlp="d_ff",
    n_ctx="n_positions",
    activation=None,
    eps="layer_norm_epsilon",
)
TRAINED = 512  # the length that it was trained with: distances are known at any
# their names of feed-forwards, the activation in their words and in ours; "gated-gelu" is an approximation of GELU
SHAPES: dict[str, tuple[str, Activation]] = {
    "relu": ("relu", "relu"),
    "gelu": ("gelu", "gelu"),
    "gelu_new": ("gelu_new", "gelu_tanh"),
    "silu": ("silu", "silu"),
    "gated-relu": ("relu", "relu"),
    "gated-gelu": ("gelu_new", "gelu_tanh"),
    "gated-silu": ("silu", "silu"),
}


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    sizes = SIZES.read(fields, d_head=fields.size("d_kv"), n_ctx=TRAINED)
    encoder = StackConfig(
        **sizes,
        causal=False,
        norm=RMSNorm(fields.number("layer_norm_epsilon", 1e-6), in_float32="length"),
        positions=Buckets(
            fields.size("relative_attention_num_buckets", 32), fields.size("relative_attention_max_distance", 128)
        ),
        mlp=_feed_forward(fields),
        attention_bias=False,
        scale=1.0,
    )
    n_decoding = fields.size("num_decoder_layers", sizes["n_layers"])
    tied = fields.flag("tie_word_embeddings", True)
    return TransformerConfig(
        encoder=encoder,
        decoder=replace(encoder, n_layers=n_decoding, causal=True, cross_attention=True),
        output="tied" if tied else "untied",
        output_scale=sizes["d_model"] ** -0.5 if fields.flag("scale_decoder_outputs", tied) else 1.0,
        shared_embedding=True,
        target_start=start_of(fields),
        writing=writing_of(fields),
    )


def _feed_forward(fields: Fields) -> Plain | Gated:
    name = fields.get("feed_forward_proj") or "relu"
    if name not in SHAPES:
        raise InputError(
            f"config.json: feed_forward_proj {name!r} is not supported, expected one of {', '.join(SHAPES)}"
        )
    theirs, activation = SHAPES[name]
    gated = name.startswith("gated-")
    fields.only(dense_act_fn=theirs, is_gated_act=gated)
    return Gated(activation) if gated else Plain(activation, bias=False)


def settled(raw: Mapping[str, Any], stored: Collection[str]) -> dict[str, Any]:
    """Their fields with what is known of the output layer.

    `tie_word_embeddings` says in old files whether the stream is scaled too; new ones say that of its own, and then
    only the weights tell whether there is an output layer.
    """
    tied = raw.get("tie_word_embeddings") is not False
    scaled = raw.get("scale_decoder_outputs", tied)
    own = "lm_head.weight" in stored and not (tied and scaled)
    return {**raw, "tie_word_embeddings": not own, "scale_decoder_outputs": scaled}


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    encoder, decoder = config.encoder or config.last, config.last
    activation, _ = parts_of(encoder)
    buckets = encoder.positions if isinstance(encoder.positions, Buckets) else None
    gated = isinstance(encoder.mlp, Gated)
    shape = (
        name for name, (theirs, _) in SHAPES.items() if theirs == activation and name.startswith("gated-") == gated
    )
    return {
        "is_encoder_decoder": True,
        **SIZES.written(encoder),
        "d_kv": encoder.d_head,
        "num_decoder_layers": decoder.n_layers,
        "relative_attention_num_buckets": buckets and buckets.n_buckets,
        "relative_attention_max_distance": buckets and buckets.max_distance,
        "feed_forward_proj": next(shape, None),
        "tie_word_embeddings": config.output == "tied",
        "scale_decoder_outputs": config.output_scale != 1,
        **ids_of(config),
    }


def suited(family: Family, config: TransformerConfig) -> Family:
    """The gate under its own name where there is one."""
    if not isinstance(config.last.mlp, Gated):
        return family
    gates = {ours: rows(f"{theirs}.wi_0", f"{theirs}.wi_1") for ours, theirs in _UP.items()}
    return replace(family, weights={**family.weights, **gates})


def _stack(name: str) -> dict[str, Any]:
    ours, theirs = f"stacks.{name}.blocks.*", f"{name}.block.*.layer"
    last = 2 if name == "decoder" else 1
    table = {
        f"stacks.{name}.norm": rows(f"{name}.final_layer_norm"),
        f"{ours}.attn.qkv": rows(*(f"{theirs}.0.SelfAttention.{part}" for part in "qkv")),
        f"{ours}.attn.out": rows(f"{theirs}.0.SelfAttention.o"),
        f"{ours}.attn.bias.table": rows(f"{theirs}.0.SelfAttention.relative_attention_bias"),
        f"{ours}.norm_attn": rows(f"{theirs}.0.layer_norm"),
        f"{ours}.mlp.up": rows(f"{theirs}.{last}.DenseReluDense.wi"),
        f"{ours}.mlp.down": rows(f"{theirs}.{last}.DenseReluDense.wo"),
        f"{ours}.norm_mlp": rows(f"{theirs}.{last}.layer_norm"),
    }
    if name == "decoder":
        table |= {
            f"{ours}.cross_attn.qkv": rows(*(f"{theirs}.1.EncDecAttention.{part}" for part in "qkv")),
            f"{ours}.cross_attn.out": rows(f"{theirs}.1.EncDecAttention.o"),
            f"{ours}.norm_cross": rows(f"{theirs}.1.layer_norm"),
        }
    return table


_UP = {
    "stacks.encoder.blocks.*.mlp.up": "encoder.block.*.layer.1.DenseReluDense",
    "stacks.decoder.blocks.*.mlp.up": "decoder.block.*.layer.2.DenseReluDense",
}

FAMILY = Family(
    "t5",
    "T5ForConditionalGeneration",
    config,
    raw,
    prefix="",
    # of files of old, in which the decoder's attention to the encoder has distances that nothing reads
    ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    also={"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")},
    suit=suited,
    settle=settled,
    harmless=f"classifier_dropout dropout_rate initializer_factor is_decoder output_past {STRATEGY}",
    weights={
        "stacks.encoder.embed.token": rows("shared"),
        **_stack("encoder"),
        **_stack("decoder"),
        "output": rows("lm_head"),
    },
)
