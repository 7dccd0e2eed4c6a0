"""ELECTRA (Clark 2020): BERT whose embedding may be narrower than the stream; its generator fills masked words.

The discriminator's own output, whether each token was replaced, is no prediction of words and is left unread.
"""

from dataclasses import replace
from typing import Any

from interp.config import TransformerConfig
from models.families import bert
from models.families.family import Fields, named_family


def _config(fields: Fields) -> TransformerConfig:
    stack, width = bert.encoder(fields), fields.size("embedding_size", 128)
    stack = replace(stack, d_embedding=None if width == stack.d_model else width)
    return bert.masked_words(fields, stack, "gelu")


def _raw(config: TransformerConfig) -> dict[str, Any]:
    return bert.raw(config) | {"embedding_size": config.last.d_embedding or config.d_model}


FAMILY = named_family("electra", _config, _raw)
