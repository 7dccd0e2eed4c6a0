"""OPT (Zhang 2022): GPT-2's blocks with relu; the first two rows of the position table are never read."""

from typing import Any

from interp.config import Learned, Plain, TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.sizes import Sizes

SIZES = Sizes.named("opt")
UNREAD = 2  # rows of the position table before that of position 0
EPS = 1e-5  # of all norms; their configuration has no field for it


def _config(fields: Fields) -> TransformerConfig:
    sizes, bias = SIZES.read(fields), fields.flag("enable_bias", True)
    # of OPT-350m alone: embeddings narrower than the stream, brought to its width after positions are added
    fields.only(
        word_embed_proj_dim=sizes["d_model"], layer_norm_elementwise_affine=True, _remove_final_layer_norm=False
    )
    parts = {
        "wiring": "pre" if fields.flag("do_layer_norm_before", True) else "post",
        "positions": Learned(UNREAD),
        "mlp": Plain(fields.activation("activation_function", "relu"), bias),
        "attention_bias": bias,
    }
    return with_output(fields, SIZES.stack(fields, sizes, activation="relu", eps=EPS, **parts), tied=True)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return SIZES.decoder(
        config,
        word_embed_proj_dim=stack.d_model,
        do_layer_norm_before=stack.wiring == "pre",
        enable_bias=stack.attention_bias,
    )


FAMILY = named_family("opt", _config, _raw)
