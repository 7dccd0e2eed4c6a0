"""OLMo 2 (2025): Llama whose layers' outputs are normalised, not what they read; queries and keys too, as a whole."""

from interp.config import TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.llama import common, stack


def _config(fields: Fields) -> TransformerConfig:
    bias = fields.flag("attention_bias", False)
    return with_output(fields, stack(fields, eps=1e-5, wiring="after", attention_bias=bias, qk_norm="all"))


FAMILY = named_family("olmo2", _config, common)
