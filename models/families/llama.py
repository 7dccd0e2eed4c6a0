"""Llama (Touvron 2023): rotary positions, RMS norms before each layer, shared key/value heads, a gated feed-forward.

Many later families differ from it in a part or two: what they have in common is here.
"""

from collections.abc import Mapping
from typing import Any

from interp.config import Gated, RMSNorm, StackConfig, TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.rotation import rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes.named("llama")


def _config(fields: Fields) -> TransformerConfig:
    fields.only(sliding_window=None, rope_interleaved=False)
    bias = fields.flag("attention_bias", False)
    return with_output(fields, stack(fields, attention_bias=bias, mlp=gated(fields, bias="mlp_bias")))


def stack(
    fields: Fields,
    *,
    base: float = 10_000.0,
    share: float | None = None,
    eps: float = 1e-6,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    **parts: Any,
) -> StackConfig:
    """A decoder of the usual fields, but for these `parts`.

    Where the file has no such field, rotations have `base` and `share`, norms `eps`, layers `head_dim` and `kv_heads`.
    """
    width, shared = fields.get("head_dim") or head_dim, fields.raw.get("num_key_value_heads", kv_heads)
    d_head = fields.size("head_dim", width) if width else fields.head_width("hidden_size", "num_attention_heads")
    sizes = SIZES.read(fields, d_head=d_head)
    if "attention_bias" not in parts:
        fields.only(attention_bias=False)
    usual = {
        "norm": RMSNorm(fields.number("rms_norm_eps", eps)) if "norm" not in parts else None,
        "positions": rotary(fields, d_head, base=base, share=share) if "positions" not in parts else None,
        "mlp": gated(fields) if "mlp" not in parts else None,
        "attention_bias": False,
        "n_kv_heads": fields.size("num_key_value_heads", sizes["n_heads"] if shared is None else shared),
    }
    return StackConfig(**sizes, causal=True, **(usual | parts))


def gated(fields: Fields, *, bias: str | None = None) -> Gated:
    """The feed-forward."""
    if bias is None:
        fields.only(mlp_bias=False)
    return Gated(fields.activation("hidden_act", "silu"), bias=bias is not None and fields.flag(bias, False))


def _raw(config: TransformerConfig) -> dict[str, Any]:
    return common(config) | {"mlp_bias": isinstance(config.last.mlp, Gated) and config.last.mlp.bias}


def common(config: TransformerConfig) -> dict[str, Any]:
    """The usual fields."""
    stack = config.last
    return SIZES.decoder(
        config,
        num_key_value_heads=stack.kv_heads,
        head_dim=stack.d_head,
        rope_parameters=stated(stack.positions, stack.d_head),
        attention_bias=stack.attention_bias,
    )


def leave_out(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The other fields: a family that has no such setting does not state it."""
    return {key: value for key, value in raw.items() if key not in names}


FAMILY = named_family("llama", _config, _raw)
