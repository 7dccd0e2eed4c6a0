"""RoBERTa (Liu 2019): BERT whose position table begins after the row of the padding token, and one token type."""

from typing import Any

from interp.config import Learned, TransformerConfig
from models.families import bert
from models.families.family import Fields, named_family


def _config(fields: Fields) -> TransformerConfig:
    padding = fields.size("pad_token_id", 1, least=0)
    return bert.masked_words(fields, bert.encoder(fields, first_position=padding + 1), "gelu")


def _raw(config: TransformerConfig) -> dict[str, Any]:
    positions = config.last.positions
    return bert.raw(config) | {"pad_token_id": positions.first - 1 if isinstance(positions, Learned) else None}


FAMILY = named_family("roberta", _config, _raw)
