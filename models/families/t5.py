"""T5 (Raffel 2020): an encoder and a decoder told positions by buckets of distances on the scores, which have no scale.

The first version has ReLU, and scales the stream before an output layer that is the embedding; version 1.1 (and
FLAN-T5) has a gated GELU and an output layer of its own, unscaled.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from interp.config import Activation, Buckets, Gated, Plain, RMSNorm, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, Theirs, named_family, parts_of
from models.families.sizes import Sizes
from models.families.target_ids import ids_of, target_ids

SIZES = Sizes.named("t5")
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


def _config(fields: Fields) -> TransformerConfig:
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
        **target_ids(fields),
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


def _settled(raw: Mapping[str, Any], stored: Collection[str]) -> dict[str, Any]:
    """Their fields with what is known of the output layer.

    `tie_word_embeddings` says in old files whether the stream is scaled too; new ones say that of its own, and then
    only the weights tell whether there is an output layer.
    """
    tied = raw.get("tie_word_embeddings") is not False
    scaled = raw.get("scale_decoder_outputs", tied)
    untied = "lm_head.weight" in stored and not (tied and scaled)
    return {**raw, "tie_word_embeddings": not untied, "scale_decoder_outputs": scaled}


def _raw(config: TransformerConfig) -> dict[str, Any]:
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


def _suited(family: Family, config: TransformerConfig) -> Family:
    """The gate under its own name where there is one."""
    if not isinstance(config.last.mlp, Gated):
        return family
    gates = {
        ours: Theirs((f"{names.names[0]}_0", f"{names.names[0]}_1"))
        for ours, names in family.weights.items()
        if ours.endswith("mlp.up")
    }
    return replace(family, weights={**family.weights, **gates})


FAMILY = named_family("t5", _config, _raw, suit=_suited, settle=_settled)
