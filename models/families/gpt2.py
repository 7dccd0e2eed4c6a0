"""GPT-2 (Radford 2019): learned positions, norms before each layer, one stored matrix for q, k and v."""

from typing import Any

from interp.config import TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.sizes import Sizes

SIZES = Sizes.named("gpt2")


def _config(fields: Fields) -> TransformerConfig:
    fields.only(scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False, add_cross_attention=False)
    sizes = SIZES.read(fields, d_mlp=4 * fields.size("n_embd"))
    scale = None if fields.flag("scale_attn_weights", True) else 1.0
    return with_output(fields, SIZES.stack(fields, sizes, activation="gelu_new", eps=1e-5, scale=scale), tied=True)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    return SIZES.decoder(config, scale_attn_weights=config.last.scale is None)


FAMILY = named_family("gpt2", _config, _raw)
