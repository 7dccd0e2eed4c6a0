"""Llama (Touvron 2023): rotary positions, RMS norms before each layer, shared key/value heads, a gated feed-forward.

Many later families differ from it in a part or two: what they have in common is here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interp.config import Gated, Local, RMSNorm, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, Theirs, rows, with_output
from models.families.rotation import rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes(eps="rms_norm_eps")
KINDS = {"full_attention": False, "sliding_attention": True}  # of layers: whether they see near tokens alone


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
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
    **own: Any,
) -> StackConfig:
    """A decoder of the usual fields, but for the parts in `own`.

    Where the file has no such field, rotations have `base` and `share`, norms `eps`, layers `head_dim` and `kv_heads`.
    """
    given, shared = fields.get("head_dim") or head_dim, fields.raw.get("num_key_value_heads", kv_heads)
    d_head = fields.size("head_dim", given) if given else fields.head_width("hidden_size", "num_attention_heads")
    sizes = SIZES.read(fields, d_head=d_head)
    if "attention_bias" not in own:
        fields.only(attention_bias=False)
    parts = {
        "norm": RMSNorm(fields.number("rms_norm_eps", eps)) if "norm" not in own else None,
        "positions": rotary(fields, d_head, base=base, share=share) if "positions" not in own else None,
        "mlp": gated(fields) if "mlp" not in own else None,
        "attention_bias": False,
    }
    return StackConfig(
        **sizes,
        causal=True,
        n_kv_heads=fields.size("num_key_value_heads", sizes["n_heads"] if shared is None else shared),
        **(parts | own),
    )


def gated(fields: Fields, *, bias: str | None = None) -> Gated:
    """The feed-forward."""
    if bias is None:
        fields.only(mlp_bias=False)
    return Gated(fields.activation("hidden_act", "silu"), bias=bias is not None and fields.flag(bias, False))


def all_near(fields: Fields, default: int | None = None) -> Local | None:
    """Layers that all see the tokens of one window; null where there is none, by default that of `default` tokens."""
    fields.get("sliding_window")
    if fields.raw.get("sliding_window", default) is None:
        return None
    return Local(tuple(range(fields.size("num_hidden_layers"))), fields.size("sliding_window", default) - 1)


def near(fields: Fields, default: Sequence[bool]) -> tuple[int, ...]:
    """The layers that see the tokens of a window alone: as `layer_types` says, or by default.

    Raises:
        InputError: other types of layers, or too few or many.
    """
    names = fields.names("layer_types", [name for slides in default for name in KINDS if KINDS[name] == slides])
    if len(names) != len(default) or not {*names} <= {*KINDS}:
        raise InputError(
            f"config.json: layer_types must name {len(default)} layers, each of {', '.join(KINDS)}; got {names}"
        )
    return tuple(layer for layer, name in enumerate(names) if KINDS[name])


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
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


def without(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The other fields: a family that has no such setting does not state it."""
    return {key: value for key, value in raw.items() if key not in names}


def window(stack: StackConfig) -> int | None:
    """How many tokens a query of a local layer sees, itself included."""
    return None if stack.local is None or stack.local.reach is None else stack.local.reach + 1


def layer_types(stack: StackConfig) -> list[str]:
    """What they call each layer."""
    return [next(name for name in KINDS if KINDS[name] == (stack.reach(i) is not None)) for i in range(stack.n_layers)]


WEIGHTS: Mapping[str, Theirs] = {
    "stacks.decoder.embed.token": rows("embed_tokens"),
    "stacks.decoder.blocks.*.norm_attn": rows("layers.*.input_layernorm"),
    "stacks.decoder.blocks.*.attn.qkv": rows(*(f"layers.*.self_attn.{part}_proj" for part in "qkv")),
    "stacks.decoder.blocks.*.attn.norm_q": rows("layers.*.self_attn.q_norm"),
    "stacks.decoder.blocks.*.attn.norm_k": rows("layers.*.self_attn.k_norm"),
    "stacks.decoder.blocks.*.attn.out": rows("layers.*.self_attn.o_proj"),
    "stacks.decoder.blocks.*.norm_mlp": rows("layers.*.post_attention_layernorm"),
    "stacks.decoder.blocks.*.mlp.up": rows("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"),
    "stacks.decoder.blocks.*.mlp.down": rows("layers.*.mlp.down_proj"),
    "stacks.decoder.norm": rows("norm"),
    "output": rows("lm_head"),
}
FREQUENCIES = r".*rotary_emb\.inv_freq"


def family(
    name: str,
    architecture: str,
    config: Callable[[Fields], TransformerConfig],
    raw: Callable[[TransformerConfig], dict[str, Any]],
    weights: Mapping[str, Theirs] = WEIGHTS,
    harmless: str = "",
) -> Family:
    """A family that stores its weights as Llama does."""
    return Family(name, architecture, config, raw, weights, prefix="model.", ignored=FREQUENCIES, harmless=harmless)


FAMILY = family("llama", "LlamaForCausalLM", config, raw, harmless="is_llama_config pretraining_tp")
