"""ELECTRA (Clark 2020): BERT whose embedding may be narrower than the stream; its generator fills masked words.

The discriminator's own output, whether each token was replaced, is no prediction of words and is left unread.
"""

from dataclasses import replace
from typing import Any

from interp.config import TransformerConfig
from models.families import bert
from models.families.family import Family, Fields, rows


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    stack = bert.encoder(fields)
    width = fields.size("embedding_size", 128)
    stack = replace(stack, d_embedding=None if width == stack.d_model else width)
    return bert.masked_words(fields, stack, "gelu")


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    return bert.raw(config) | {"embedding_size": config.last.d_embedding or config.d_model}


FAMILY = Family(
    "electra",
    "ElectraForMaskedLM",
    config,
    raw,
    prefix="electra.",
    ignored=r"embeddings\.position_ids|(discriminator_predictions|classifier|qa_outputs|sequence_summary)\..*",
    harmless="summary_activation summary_last_dropout summary_type summary_use_proj",
    masked="generator_predictions.dense.weight",
    weights={
        **bert.ENCODER,
        "stacks.encoder.embed.project": rows("embeddings_project"),
        "output": rows("generator_lm_head"),
        "output.transform.dense": rows("generator_predictions.dense"),
        "output.transform.norm": rows("generator_predictions.LayerNorm"),
    },
)
