"""GPT-Neo (Black 2021): GPT-2 with q·k unscaled, no biases on q, k and v, and local layers between the others."""

from typing import Any

from interp.config import LayerNorm, Local, Plain, StackConfig, TransformerConfig
from interp.errors import InputError
from models.families.family import Family, Fields, rows, with_output
from models.families.gpt2 import SUMMARY, WEIGHTS
from models.families.sizes import Sizes

SIZES = Sizes("num_layers", n_heads="num_heads", activation="activation_function", eps="layer_norm_epsilon")


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    sizes = SIZES.read(fields, d_mlp=4 * fields.size("hidden_size"))
    local, window = local_layers(fields.get("attention_types"), sizes["n_layers"]), fields.size("window_size", 256)
    decoder = StackConfig(
        **sizes,
        causal=True,
        norm=LayerNorm(fields.number("layer_norm_epsilon", 1e-5)),
        mlp=Plain(fields.activation("activation_function", "gelu_new")),
        attention_bias=False,
        out_bias=True,
        scale=1.0,
        local=Local(local, window - 1) if local else None,
    )
    return with_output(fields, decoder, tied=True)


def local_layers(stated: Any, n_layers: int) -> tuple[int, ...]:
    """The layers that `attention_types` calls local: `[[["global", "local"], 12]]` is those two, 12 times."""
    stated = [[["global", "local"], 12]] if stated is None else stated
    try:
        kinds = [kind for pattern, times in stated for _ in range(times) for kind in pattern]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != n_layers or not {*kinds} <= {"global", "local"}:
        raise InputError(
            f'config.json: attention_types must call each of {n_layers} layers "global" or "local", got {stated!r}'
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "local")


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    stack = config.last
    local, reach = (stack.local.layers, stack.local.reach) if stack.local else ((), None)
    return SIZES.decoder(
        config,
        attention_types=[[["local" if layer in local else "global"], 1] for layer in range(stack.n_layers)],
        window_size=256 if reach is None else reach + 1,
    )


FAMILY = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    config,
    raw,
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.attention\.(masked_)?bias",
    harmless=f"attention_layers embed_dropout resid_dropout {SUMMARY}",
    weights={
        **WEIGHTS,
        "stacks.decoder.blocks.*.attn.qkv": rows(*(f"h.*.attn.attention.{part}_proj" for part in "qkv")),
        "stacks.decoder.blocks.*.attn.out": rows("h.*.attn.attention.out_proj"),
        "stacks.decoder.blocks.*.mlp.up": rows("h.*.mlp.c_fc"),
        "stacks.decoder.blocks.*.mlp.down": rows("h.*.mlp.c_proj"),
    },
)
