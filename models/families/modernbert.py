"""ModernBERT (Warner 2024): a pre-norm encoder with rotary positions; most layers see near tokens alone.

Local layers rotate at a base of their own; the embedding's norm serves the first attention too.
"""

from typing import Any

from interp.config import Gated, LayerNorm, Local, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families import bert
from models.families.family import Family, Fields, activation_name, rows
from models.families.rotation import one_rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes(activation="hidden_activation", eps="norm_eps")
FULL, NEAR = "full_attention", "sliding_attention"  # what their layer_types call the two kinds
PADDING = 50_283  # their default, which no smaller vocabulary has; it says which embedding is not trained


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    norm = LayerNorm(fields.number("norm_eps", 1e-5), fields.flag("norm_bias", False))
    sizes = SIZES.read(fields)
    (full, near), layers = rotaries(fields, sizes["d_head"]), local_layers(fields)
    reach = fields.size("local_attention", 128) // 2
    encoder = StackConfig(
        **sizes,
        causal=False,
        norm=norm,
        positions=full,
        mlp=Gated(fields.activation("hidden_activation", "gelu"), fields.flag("mlp_bias", False)),
        attention_bias=fields.flag("attention_bias", False),
        embedding_norm=True,
        first_norm=False,
        local=Local(layers, reach, near) if layers else None,
    )
    activation = fields.activation("classifier_activation", "gelu")
    biases = {"bias": fields.flag("classifier_bias", False), "output_bias": fields.flag("decoder_bias", True)}
    return bert.masked_words(fields, encoder, activation, **biases)


def local_layers(fields: Fields) -> tuple[int, ...]:
    """The layers that see near tokens alone: as `layer_types` has it or, in older files, all but every n-th."""
    n_layers, every = fields.size("num_hidden_layers"), fields.size("global_attn_every_n_layers", 3)
    kinds = fields.names("layer_types", [NEAR if layer % every else FULL for layer in range(n_layers)])
    if len(kinds) != n_layers or not {*kinds} <= {FULL, NEAR}:
        raise InputError(
            f'config.json: layer_types must call each of {n_layers} layers "{FULL}" or "{NEAR}", got {kinds}'
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind == NEAR)


def rotaries(fields: Fields, d_head: int) -> tuple[Rotary, Rotary]:
    """The rotations of full and of local layers, from `rope_parameters` or from the two bases of older files."""
    fields.only(rope_scaling=None)
    parameters, n_ctx = fields.inner("rope_parameters"), fields.size("max_position_embeddings")
    full, near = parameters.inner(FULL), parameters.inner(NEAR)
    parameters.rest(())
    for rope in (full, near):
        rope.only(truncate=True)  # theirs would not find it here
    return (
        one_rotary(full, d_head, fields.number("global_rope_theta", 160_000.0), n_ctx),
        one_rotary(near, d_head, fields.number("local_rope_theta", 10_000.0), n_ctx),
    )


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack, transform = config.last, config.transform
    local = stack.local or Local((), None, None)
    near = local.positions or stack.positions
    fields: dict[str, Any] = {
        **SIZES.written(stack),
        "norm_bias": isinstance(stack.norm, LayerNorm) and stack.norm.bias,
        "attention_bias": stack.attention_bias,
        "mlp_bias": isinstance(stack.mlp, Gated) and stack.mlp.bias,
        "layer_types": [NEAR if layer in local.layers else FULL for layer in range(stack.n_layers)],
        "local_attention": 128 if local.reach is None else 2 * local.reach,
        "rope_parameters": {FULL: stated(stack.positions, stack.d_head), NEAR: stated(near, stack.d_head)},
    }
    if stack.d_vocab <= PADDING:
        fields["pad_token_id"] = 0
    if transform is not None:
        fields["classifier_activation"] = activation_name(transform.activation)
        fields["classifier_bias"], fields["decoder_bias"] = transform.bias, config.output_bias
    return fields


FAMILY = Family(
    "modernbert",
    "ModernBertForMaskedLM",
    config,
    raw,
    prefix="model.",
    ignored=r".*rotary_emb\..*|classifier\..*",
    harmless="classifier_pooling deterministic_flash_attn initializer_cutoff_factor layer_norm_eps mlp_dropout "
    "position_embedding_type reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction",
    masked="head.dense.weight",
    other_task="classifier.weight",
    weights={
        "stacks.encoder.embed.token": rows("embeddings.tok_embeddings"),
        "stacks.encoder.embed.norm": rows("embeddings.norm"),
        "stacks.encoder.blocks.*.norm_attn": rows("layers.*.attn_norm"),
        "stacks.encoder.blocks.*.attn.qkv": rows("layers.*.attn.Wqkv"),
        "stacks.encoder.blocks.*.attn.out": rows("layers.*.attn.Wo"),
        "stacks.encoder.blocks.*.norm_mlp": rows("layers.*.mlp_norm"),
        "stacks.encoder.blocks.*.mlp.up": rows("layers.*.mlp.Wi"),
        "stacks.encoder.blocks.*.mlp.down": rows("layers.*.mlp.Wo"),
        "stacks.encoder.norm": rows("final_norm"),
        "output": rows("decoder"),
        "output.transform.dense": rows("head.dense"),
        "output.transform.norm": rows("head.norm"),
    },
)
