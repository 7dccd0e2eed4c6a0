"""Llama and decoders that differ from it in a part or two: RMS norms before each layer, a gated feed-forward."""

from collections.abc import Mapping
from typing import Any

from interp.config import Experts, Gated, LayerNorm, Local, NoPositions, RMSNorm, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import named_family
from models.families.fields import Fields, Sizes, with_output
from models.families.local_attention import layer_types, local_layers, shared_window, window
from models.families.rotation import rope_fields, rotary

SIZES = Sizes.named("llama")


def _llama(fields: Fields) -> TransformerConfig:
    """Touvron 2023: rotary positions, shared key/value heads."""
    fields.only(sliding_window=None, rope_interleaved=False)
    bias = fields.flag("attention_bias", False)
    return with_output(fields, stack(fields, attention_bias=bias, mlp=_gated(fields, bias="mlp_bias")))


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
    """A decoder of the usual fields, except for these `parts`.

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
        "mlp": _gated(fields) if "mlp" not in parts else None,
        "attention_bias": False,
        "n_kv_heads": fields.size("num_key_value_heads", sizes["n_heads"] if shared is None else shared),
    }
    return StackConfig(**sizes, causal=True, **(usual | parts))


def _gated(fields: Fields, *, bias: str | None = None) -> Gated:
    if bias is None:
        fields.only(mlp_bias=False)
    return Gated(fields.activation("hidden_act", "silu"), bias=bias is not None and fields.flag(bias, False))


def common(config: TransformerConfig) -> dict[str, Any]:
    """The usual fields."""
    stack = config.last
    return SIZES.decoder(
        config,
        num_key_value_heads=stack.kv_heads,
        head_dim=stack.d_head,
        rope_parameters=rope_fields(stack.positions, stack.d_head),
        attention_bias=stack.attention_bias,
    )


def leave_out(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The other fields: a family that has no such setting does not state it."""
    return {key: value for key, value in raw.items() if key not in names}


def _llama_raw(config: TransformerConfig) -> dict[str, Any]:
    return common(config) | {"mlp_bias": isinstance(config.last.mlp, Gated) and config.last.mlp.bias}


def _olmo2(fields: Fields) -> TransformerConfig:
    """2025: layers normalise what they write instead of what they read; queries and keys too, as a whole."""
    bias = fields.flag("attention_bias", False)
    return with_output(fields, stack(fields, eps=1e-5, wiring="after", attention_bias=bias, qk_norm="all"))


def _mistral(fields: Fields) -> TransformerConfig:
    """Jiang 2023: queries see a window of tokens."""
    return with_output(fields, stack(fields, kv_heads=8, local=shared_window(fields, 4096)))


def _mistral_raw(config: TransformerConfig) -> dict[str, Any]:
    return leave_out(common(config), "attention_bias") | {"sliding_window": window(config.last)}


def _mixtral(fields: Fields) -> TransformerConfig:
    """Jiang 2024: Mistral with experts."""
    mlp = Experts(fields.size("num_local_experts", 8), fields.size("num_experts_per_tok", 2), _gated(fields))
    return with_output(fields, stack(fields, base=1e6, eps=1e-5, kv_heads=8, local=shared_window(fields), mlp=mlp))


def _mixtral_raw(config: TransformerConfig) -> dict[str, Any]:
    mlp = config.last.mlp
    experts = (mlp.n_experts, mlp.n_chosen) if isinstance(mlp, Experts) else (None, None)
    return _mistral_raw(config) | {"num_local_experts": experts[0], "num_experts_per_tok": experts[1]}


def _phi3(fields: Fields) -> TransformerConfig:
    """Abdin 2024: q, k and v are stored as one matrix, and so are the gate and its partner."""
    decoder = stack(fields, share=1.0, eps=1e-5, local=shared_window(fields))
    if isinstance(decoder.positions, Rotary) and decoder.positions.scaling is not None:
        raise InputError("config.json: a rotation that depends on the text's length (longrope) is not supported")
    return with_output(fields, decoder)


def _phi3_raw(config: TransformerConfig) -> dict[str, Any]:
    padding = {"pad_token_id": None}  # theirs lies outside of most vocabularies
    return leave_out(common(config), "attention_bias", "head_dim") | {"sliding_window": window(config.last)} | padding


def _qwen2(fields: Fields) -> TransformerConfig:
    """Yang 2024: biases on q, k and v."""
    return with_output(fields, stack(fields, attention_bias=True, out_bias=False, local=_late_window(fields)))


def _qwen2_raw(config: TransformerConfig) -> dict[str, Any]:
    return leave_out(_qwen3_raw(config), "attention_bias")


def _qwen3(fields: Fields) -> TransformerConfig:
    """2025: queries and keys are normalised."""
    bias, local = fields.flag("attention_bias", False), _late_window(fields)
    return with_output(fields, stack(fields, head_dim=128, attention_bias=bias, qk_norm="head", local=local))


def _qwen3_raw(config: TransformerConfig) -> dict[str, Any]:
    slides = {"use_sliding_window": config.last.local is not None, "sliding_window": window(config.last)}
    return common(config) | slides | {"layer_types": layer_types(config.last)}


def _late_window(fields: Fields) -> Local | None:
    """Where windows are switched on, later layers see the tokens of a window alone."""
    n_layers, first = fields.size("num_hidden_layers"), fields.size("max_window_layers", 28, least=0)
    size = fields.size("sliding_window", 4096)
    on = fields.flag("use_sliding_window", False) and fields.raw.get("sliding_window", size) is not None
    layers = local_layers(fields, [on and layer >= first for layer in range(n_layers)])
    if layers and not on:
        raise InputError(
            "config.json: layer_types has windows, but use_sliding_window or sliding_window switches them off"
        )
    return Local(layers, size - 1) if layers else None


def _smollm3(fields: Fields) -> TransformerConfig:
    """2025: some layers do not rotate; SmolLM 1 and 2 are Llama itself."""
    bias, mlp = fields.flag("attention_bias", False), _gated(fields, bias="mlp_bias")
    decoder = stack(fields, base=2e6, kv_heads=4, attention_bias=bias, mlp=mlp, local=_unrotated(fields))
    return with_output(fields, decoder, tied=True)


def _unrotated(fields: Fields) -> Local | None:
    """The layers that do not rotate, and that may see a window alone."""
    n_layers, interval = fields.size("num_hidden_layers"), fields.size("no_rope_layer_interval", 4)
    rotate = fields.get("no_rope_layers") or [int((layer + 1) % interval > 0) for layer in range(n_layers)]
    if not isinstance(rotate, list) or len(rotate) < n_layers or not {*rotate} <= {0, 1}:
        raise InputError(f"config.json: no_rope_layers must be 1 (turns) or 0 for each layer, got {rotate!r}")
    unrotated = tuple(layer for layer in range(n_layers) if not rotate[layer])
    on, size = fields.flag("use_sliding_window", False), fields.get("sliding_window")
    # layer_types decides what each layer sees, even if windows are off
    layers = local_layers(fields, [on and size is not None and layer in unrotated for layer in range(n_layers)])
    if not layers:
        return Local(unrotated, None, NoPositions()) if unrotated else None
    if layers != unrotated:
        raise InputError(f"config.json: expected a window in the layers that do not rotate, {unrotated}; got {layers}")
    return Local(unrotated, fields.size("sliding_window") - 1, NoPositions())


def _smollm3_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    unrotated = stack.local.layers if stack.local else ()
    return _llama_raw(config) | {
        "no_rope_layers": [int(layer not in unrotated) for layer in range(stack.n_layers)],
        "use_sliding_window": window(stack) is not None,
        "sliding_window": window(stack),
        "layer_types": layer_types(stack),
        "pad_token_id": None,  # theirs lies outside of most vocabularies
    }


def _stablelm(fields: Fields) -> TransformerConfig:
    """StableLM 2 (Bellagente 2024): layer norms, and part of each head rotates."""
    norm, bias = LayerNorm(fields.number("layer_norm_eps", 1e-5)), fields.flag("use_qkv_bias", False)
    wiring = "parallel_one_norm" if fields.flag("use_parallel_residual", False) else "pre"
    parts = {"norm": norm, "wiring": wiring, "attention_bias": bias, "out_bias": False}
    return with_output(fields, stack(fields, share=0.25, kv_heads=32, **parts))


def _stablelm_raw(config: TransformerConfig) -> dict[str, Any]:
    usual = common(config)
    return leave_out(usual, "attention_bias", "rms_norm_eps", "head_dim") | {
        "layer_norm_eps": usual["rms_norm_eps"],
        "use_qkv_bias": config.last.attention_bias,
        "use_parallel_residual": config.last.parallel,
    }


FAMILIES = [
    named_family("llama", _llama, _llama_raw),
    named_family("olmo2", _olmo2, common),
    named_family("mistral", _mistral, _mistral_raw),
    named_family("mixtral", _mixtral, _mixtral_raw),
    named_family("phi3", _phi3, _phi3_raw),
    named_family("qwen2", _qwen2, _qwen2_raw),
    named_family("qwen3", _qwen3, _qwen3_raw),
    named_family("smollm3", _smollm3, _smollm3_raw),
    named_family("stablelm", _stablelm, _stablelm_raw),
]
