"""RoBERTa (Liu 2019): BERT whose position table begins after the row of the padding token, and one token type."""

from typing import Any

from interp.config import Learned, TransformerConfig
from models.families import bert
from models.families.family import Family, Fields, rows


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    padding = fields.size("pad_token_id", 1, least=0)
    return bert.masked_words(fields, bert.encoder(fields, first_position=padding + 1), "gelu")


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    positions = config.last.positions
    return bert.raw(config) | {"pad_token_id": positions.first - 1 if isinstance(positions, Learned) else None}


FAMILY = Family(
    "roberta",
    "RobertaForMaskedLM",
    config,
    raw,
    prefix="roberta.",
    ignored=r"embeddings\.(position|token_type)_ids|pooler\..*|(classifier|qa_outputs)\..*",
    masked="lm_head.dense.weight",
    also={"lm_head.bias": ("lm_head.decoder.bias",)},
    weights={
        **bert.ENCODER,
        "output.transform.dense": rows("lm_head.dense"),
        "output.transform.norm": rows("lm_head.layer_norm"),
        "output.weight": rows("lm_head.decoder.weight"),
        "output.bias": rows("lm_head.bias"),
    },
)
