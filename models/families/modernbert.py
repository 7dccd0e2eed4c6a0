"""ModernBERT (Warner 2024): a pre-norm encoder with rotary positions; most layers see only near tokens.

Local layers rotate at a base of their own; the embedding's norm serves the first attention too.
"""

from typing import Any

from interp.config import Gated, LayerNorm, Local, StackConfig, TransformerConfig
from models.families.bert import masked_words
from models.families.family import named_family
from models.families.fields import Fields, Sizes, activation_name
from models.families.local_attention import FULL, NEAR, local_layers
from models.families.rotation import rope_fields, two_rotaries

SIZES = Sizes.named("modernbert")
PADDING = 50_283  # their default padding id, too large for small vocabularies


def _config(fields: Fields) -> TransformerConfig:
    norm = LayerNorm(fields.number("norm_eps", 1e-5), fields.flag("norm_bias", False))
    sizes = SIZES.read(fields)
    fields.only(rope_scaling=None)
    bases = fields.number("global_rope_theta", 160_000.0), fields.number("local_rope_theta", 10_000.0)
    full, nearby = two_rotaries(fields, sizes["d_head"], bases, {})
    interval = fields.size("global_attn_every_n_layers", 3)  # of older files
    layers = local_layers(fields, [layer % interval > 0 for layer in range(sizes["n_layers"])])
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
        local=Local(layers, reach, nearby) if layers else None,
    )
    activation = fields.activation("classifier_activation", "gelu")
    biases = {"bias": fields.flag("classifier_bias", False), "output_bias": fields.flag("decoder_bias", True)}
    return masked_words(fields, encoder, activation, **biases)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    stack, transform = config.last, config.transform
    local = stack.local or Local((), None, None)
    nearby = local.positions or stack.positions
    fields: dict[str, Any] = {
        **SIZES.written(stack),
        "norm_bias": isinstance(stack.norm, LayerNorm) and stack.norm.bias,
        "attention_bias": stack.attention_bias,
        "mlp_bias": isinstance(stack.mlp, Gated) and stack.mlp.bias,
        "layer_types": [NEAR if layer in local.layers else FULL for layer in range(stack.n_layers)],
        "local_attention": 128 if local.reach is None else 2 * local.reach,
        "rope_parameters": {FULL: rope_fields(stack.positions, stack.d_head), NEAR: rope_fields(nearby, stack.d_head)},
    }
    if stack.d_vocab <= PADDING:
        fields["pad_token_id"] = 0
    if transform is not None:
        fields["classifier_activation"] = activation_name(transform.activation)
        fields["classifier_bias"], fields["decoder_bias"] = transform.bias, config.output_bias
    return fields


FAMILIES = [named_family("modernbert", _config, _raw)]
