"""GPT-J (Wang 2021): attention and feed-forward read one norm and add at once; neighbouring dimensions rotate."""

from typing import Any

from interp.config import Rotary, TransformerConfig
from interp.errors import InputError
from models.families.family import Fields, named_family, with_output
from models.families.gpt2 import SIZES


def _config(fields: Fields) -> TransformerConfig:
    sizes, dims = SIZES.read(fields, d_mlp=4 * fields.size("n_embd")), fields.size("rotary_dim", 64)
    if dims > sizes["d_head"]:
        raise InputError(f"config.json: rotary_dim {dims} is more than the {sizes['d_head']} dimensions of a head")
    parts = {"wiring": "parallel_one_norm", "positions": Rotary(10_000.0, dims=dims, pairing="adjacent")}
    decoder = SIZES.stack(fields, sizes, activation="gelu_new", eps=1e-5, attention_bias=False, **parts)
    return with_output(fields, decoder, output_bias=True)


def _raw(config: TransformerConfig) -> dict[str, Any]:
    positions = config.last.positions
    return SIZES.decoder(config, rotary_dim=positions.dims if isinstance(positions, Rotary) else None)


FAMILY = named_family("gptj", _config, _raw)
