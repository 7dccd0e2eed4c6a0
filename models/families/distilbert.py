"""DistilBERT (Sanh 2019): BERT's blocks under other names, without token types."""

from interp.config import TransformerConfig
from models.families import bert
from models.families.family import Fields, named_family
from models.families.sizes import Sizes

SIZES = Sizes.named("distilbert")
EPS = 1e-12  # of all norms; their configuration has no field for it


def _config(fields: Fields) -> TransformerConfig:
    fields.only(pruned_heads={})
    stack = SIZES.stack(fields, activation="gelu", eps=EPS, **bert.PARTS)
    return bert.masked_words(fields, stack, fields.activation("activation", "gelu"))


FAMILY = named_family("distilbert", _config, lambda config: SIZES.written(config.last))
