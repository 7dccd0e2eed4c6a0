"""GPT-2 and decoders that differ from it in a part or two: layer norms, and feed-forwards without a gate."""

from dataclasses import replace
from typing import Any

from interp.config import Alibi, Learned, Local, Plain, Rotary, TransformerConfig
from interp.errors import InputError
from models.families.family import named_family
from models.families.fields import Fields, Sizes, with_output
from models.families.local_attention import layers_called
from models.families.rotation import rope_fields, rotary

GPT2, GPT_NEO, GPT_NEOX, OPT, BLOOM, PHI = map(Sizes.named, ("gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "phi"))
OLDER_BLOOM = {"n_layers": "num_hidden_layers", "d_model": "n_embed", "n_heads": "num_attention_heads"}


def _gpt2(fields: Fields) -> TransformerConfig:
    """Radford 2019: learned positions, norms before each layer, one stored matrix for q, k and v."""
    sizes = GPT2.read(fields, d_mlp=4 * fields.size("n_embd"))
    scale = None if fields.flag("scale_attn_weights", True) else 1.0
    return with_output(fields, GPT2.stack(fields, sizes, activation="gelu_new", scale=scale), tied=True)


def _gpt2_raw(config: TransformerConfig) -> dict[str, Any]:
    return GPT2.decoder(config, scale_attn_weights=config.last.scale is None)


def _gptj(fields: Fields) -> TransformerConfig:
    """Wang 2021: attention and feed-forward read one norm and add at once; neighbouring dimensions rotate."""
    sizes, dims = GPT2.read(fields, d_mlp=4 * fields.size("n_embd")), fields.size("rotary_dim", 64)
    if dims > sizes["d_head"]:
        raise InputError(f"config.json: rotary_dim {dims} is more than the {sizes['d_head']} dimensions of a head")
    parts = {"wiring": "parallel_one_norm", "positions": Rotary(10_000.0, dims=dims, pairing="adjacent")}
    decoder = GPT2.stack(fields, sizes, activation="gelu_new", attention_bias=False, **parts)
    return with_output(fields, decoder, output_bias=True)


def _gptj_raw(config: TransformerConfig) -> dict[str, Any]:
    positions = config.last.positions
    return GPT2.decoder(config, rotary_dim=positions.dims if isinstance(positions, Rotary) else None)


def _gpt_neo(fields: Fields) -> TransformerConfig:
    """Black 2021: GPT-2 with q·k unscaled, no biases on q, k and v, and local layers between the others."""
    sizes = GPT_NEO.read(fields, d_mlp=4 * fields.size("hidden_size"))
    types, reach = fields.get("attention_types"), fields.size("window_size", 256) - 1
    types = [[["global", "local"], 12]] if types is None else types  # both, 12 times
    try:
        kinds = [kind for pattern, times in types for _ in range(times) for kind in pattern]
    except (TypeError, ValueError):
        kinds = []
    layers = layers_called("attention_types", kinds, sizes["n_layers"], ("global", "local"), types)
    parts = {"attention_bias": False, "out_bias": True, "scale": 1.0, "local": Local(layers, reach) if layers else None}
    return with_output(fields, GPT_NEO.stack(fields, sizes, activation="gelu_new", **parts), tied=True)


def _gpt_neo_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    local, reach = (stack.local.layers, stack.local.reach) if stack.local else ((), None)
    return GPT_NEO.decoder(
        config,
        attention_types=[[["local" if layer in local else "global"], 1] for layer in range(stack.n_layers)],
        window_size=256 if reach is None else reach + 1,
    )


def _gpt_neox(fields: Fields) -> TransformerConfig:
    """Black 2022, and Pythia (Biderman 2023): attention beside the feed-forward; part of each head rotates."""
    sizes = GPT_NEOX.read(fields)
    base, share = fields.number("rotary_emb_base", 10_000.0), fields.number("rotary_pct", 0.25)
    parts = {
        "wiring": "parallel" if fields.flag("use_parallel_residual", True) else "pre",
        "positions": rotary(fields, sizes["d_head"], base=base, share=share),
        "attention_bias": fields.flag("attention_bias", True),
    }
    return with_output(fields, GPT_NEOX.stack(fields, sizes, activation="gelu", **parts))


def _gpt_neox_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return GPT_NEOX.decoder(
        config,
        use_parallel_residual=stack.wiring == "parallel",
        attention_bias=stack.attention_bias,
        rope_parameters=rope_fields(stack.positions, stack.d_head),
    )


def _opt(fields: Fields) -> TransformerConfig:
    """Zhang 2022: GPT-2's blocks with relu; the first two rows of the position table are never read."""
    sizes, bias = OPT.read(fields), fields.flag("enable_bias", True)
    # only OPT-350m has embeddings narrower than the stream; it widens them after adding positions
    fields.only(word_embed_proj_dim=sizes["d_model"])
    parts = {
        "wiring": "pre" if fields.flag("do_layer_norm_before", True) else "post",
        "positions": Learned(first=2),
        "mlp": Plain(fields.activation("activation_function", "relu"), bias),
        "attention_bias": bias,
    }
    return with_output(fields, OPT.stack(fields, sizes, activation="relu", **parts), tied=True)


def _opt_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return OPT.decoder(
        config,
        word_embed_proj_dim=stack.d_model,
        do_layer_norm_before=stack.wiring == "pre",
        enable_bias=stack.attention_bias,
    )


def _bloom(fields: Fields) -> TransformerConfig:
    """Le Scao 2022: heads lower their scores with distance (ALiBi), a norm after the embedding, q, k, v by head."""
    older = {ours: name for ours, name in OLDER_BLOOM.items() if fields.get(getattr(BLOOM, ours)) is None}
    sizes_of = replace(BLOOM, **older)
    # trained with a context of 2048; the model itself has no limit
    sizes = sizes_of.read(fields, d_mlp=4 * fields.size(sizes_of.d_model), n_ctx=2048)
    decoder = BLOOM.stack(fields, sizes, activation="gelu_new", positions=Alibi(), embedding_norm=True)
    return with_output(fields, decoder, tied=True)


def _phi(fields: Fields) -> TransformerConfig:
    """Phi 1 to 2 (Gunasekar 2023): attention and feed-forward read one norm and add at once; biases everywhere."""
    sizes = PHI.read(fields)
    fields.only(head_dim=sizes["d_head"])
    parts = {
        "n_kv_heads": fields.size("num_key_value_heads", sizes["n_heads"]),
        "wiring": "parallel_one_norm",
        "positions": rotary(fields, sizes["d_head"], share=0.5),
        "qk_norm": "head" if fields.flag("qk_layernorm", False) else None,
    }
    return with_output(fields, PHI.stack(fields, sizes, activation="gelu_new", **parts), output_bias=True)


def _phi_raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return PHI.decoder(
        config,
        num_key_value_heads=stack.kv_heads,
        qk_layernorm=stack.qk_norm == "head",
        rope_parameters=rope_fields(stack.positions, stack.d_head),
    )


FAMILIES = [
    named_family("gpt2", _gpt2, _gpt2_raw),
    named_family("gptj", _gptj, _gptj_raw),
    named_family("gpt_neo", _gpt_neo, _gpt_neo_raw),
    named_family("gpt_neox", _gpt_neox, _gpt_neox_raw),
    named_family("opt", _opt, _opt_raw),
    named_family("bloom", _bloom, BLOOM.decoder),
    named_family("phi", _phi, _phi_raw),
]
