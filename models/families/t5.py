"""T5 (Raffel 2020): an encoder and a decoder with buckets of distances on the scores, which have no scale.

The first version has ReLU, and scales the stream before an output layer that is the embedding; version 1.1 (and
FLAN-T5) has a gated GELU and an output layer of its own, unscaled.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from interp.config import Buckets, Gated, Plain, RMSNorm, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Theirs, named_family
from models.families.fields import Fields, Sizes
from models.families.target_ids import ids_of, target_ids

SIZES = Sizes.named("t5")
TRAINED = 512  # the length in training; distances are defined at any length
# their names of feed-forwards, their activation, and ours; "gated-gelu" approximates GELU
SHAPES: dict[str, tuple[str, Plain | Gated]] = {
    "relu": ("relu", Plain("relu", bias=False)),
    "gelu": ("gelu", Plain("gelu", bias=False)),
    "gelu_new": ("gelu_new", Plain("gelu_tanh", bias=False)),
    "silu": ("silu", Plain("silu", bias=False)),
    "gated-relu": ("relu", Gated("relu")),
    "gated-gelu": ("gelu_new", Gated("gelu_tanh")),
    "gated-silu": ("silu", Gated("silu")),
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
    theirs, mlp = SHAPES[name]
    fields.only(dense_act_fn=theirs, is_gated_act=isinstance(mlp, Gated))
    return mlp


def _with_output_fields(raw: Mapping[str, Any], stored: Collection[str]) -> dict[str, Any]:
    """Their fields with what is known about the output layer.

    In old files `tie_word_embeddings` also says whether the stream is scaled. New files have a field for that, and then
    only the weights tell whether there is an output layer.
    """
    tied = raw.get("tie_word_embeddings") is not False
    scaled = raw.get("scale_decoder_outputs", tied)
    untied = "lm_head.weight" in stored and not (tied and scaled)
    return {**raw, "tie_word_embeddings": not untied, "scale_decoder_outputs": scaled}


def _raw(config: TransformerConfig) -> dict[str, Any]:
    encoder, decoder = config.encoder or config.last, config.last
    buckets = encoder.positions if isinstance(encoder.positions, Buckets) else None
    return {
        "is_encoder_decoder": True,
        **SIZES.written(encoder),
        "d_kv": encoder.d_head,
        "num_decoder_layers": decoder.n_layers,
        "relative_attention_num_buckets": buckets and buckets.n_buckets,
        "relative_attention_max_distance": buckets and buckets.max_distance,
        "feed_forward_proj": next((name for name, (_, mlp) in SHAPES.items() if mlp == encoder.mlp), None),
        "tie_word_embeddings": config.output == "tied",
        "scale_decoder_outputs": config.output_scale != 1,
        **ids_of(config),
    }


def _with_gate_names(family: Family, config: TransformerConfig) -> Family:
    """The gate under its own name where there is one."""
    if not isinstance(config.last.mlp, Gated):
        return family
    gates = {
        ours: Theirs((f"{names.names[0]}_0", f"{names.names[0]}_1"))
        for ours, names in family.weights.items()
        if ours.endswith("mlp.up")
    }
    return replace(family, weights={**family.weights, **gates})


FAMILIES = [named_family("t5", _config, _raw, suit=_with_gate_names, settle=_with_output_fields)]
