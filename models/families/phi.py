"""Phi 1 to 2 (Gunasekar 2023): attention and feed-forward read one norm and add at once; biases everywhere."""

from typing import Any

from interp.config import TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.rotation import rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes.named("phi")


def _config(fields: Fields) -> TransformerConfig:
    sizes = SIZES.read(fields)
    fields.only(head_dim=sizes["d_head"])
    parts = {
        "n_kv_heads": fields.size("num_key_value_heads", sizes["n_heads"]),
        "wiring": "parallel_one_norm",
        "positions": rotary(fields, sizes["d_head"], share=0.5),
        "qk_norm": "head" if fields.flag("qk_layernorm", False) else None,
    }
    return with_output(fields, SIZES.stack(fields, sizes, activation="gelu_new", eps=1e-5, **parts), output_bias=True)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return SIZES.decoder(
        config,
        num_key_value_heads=stack.kv_heads,
        qk_layernorm=stack.qk_norm == "head",
        rope_parameters=stated(stack.positions, stack.d_head),
    )


FAMILY = named_family("phi", _config, _raw)
