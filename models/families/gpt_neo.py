"""GPT-Neo (Black 2021): GPT-2 with q·k unscaled, no biases on q, k and v, and local layers between the others."""

from typing import Any

from interp.config import Local, TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.local_attention import layers_called
from models.families.sizes import Sizes

SIZES = Sizes.named("gpt_neo")


def _config(fields: Fields) -> TransformerConfig:
    sizes = SIZES.read(fields, d_mlp=4 * fields.size("hidden_size"))
    stated, reach = fields.get("attention_types"), fields.size("window_size", 256) - 1
    stated = [[["global", "local"], 12]] if stated is None else stated  # those two, 12 times
    try:
        kinds = [kind for pattern, times in stated for _ in range(times) for kind in pattern]
    except (TypeError, ValueError):
        kinds = []
    layers = layers_called("attention_types", kinds, sizes["n_layers"], ("global", "local"), stated)
    parts = {"attention_bias": False, "out_bias": True, "scale": 1.0, "local": Local(layers, reach) if layers else None}
    return with_output(fields, SIZES.stack(fields, sizes, activation="gelu_new", eps=1e-5, **parts), tied=True)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    local, reach = (stack.local.layers, stack.local.reach) if stack.local else ((), None)
    return SIZES.decoder(
        config,
        attention_types=[[["local" if layer in local else "global"], 1] for layer in range(stack.n_layers)],
        window_size=256 if reach is None else reach + 1,
    )


FAMILY = named_family("gpt_neo", _config, _raw)
