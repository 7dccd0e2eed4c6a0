"""GPT-NeoX and Pythia (Black 2022, Biderman 2023): attention beside the feed-forward; part of each head rotates."""

from typing import Any

from interp.config import TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.rotation import rotary, stated
from models.families.sizes import Sizes

SIZES = Sizes.named("gpt_neox")


def _config(fields: Fields) -> TransformerConfig:
    sizes = SIZES.read(fields)
    base, share = fields.number("rotary_emb_base", 10_000.0), fields.number("rotary_pct", 0.25)
    parts = {
        "wiring": "parallel" if fields.flag("use_parallel_residual", True) else "pre",
        "positions": rotary(fields, sizes["d_head"], base=base, share=share),
        "attention_bias": fields.flag("attention_bias", True),
    }
    return with_output(fields, SIZES.stack(fields, sizes, activation="gelu", eps=1e-5, **parts))


def _raw(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return SIZES.decoder(
        config,
        use_parallel_residual=stack.wiring == "parallel",
        attention_bias=stack.attention_bias,
        rope_parameters=stated(stack.positions, stack.d_head),
    )


FAMILY = named_family("gpt_neox", _config, _raw)
