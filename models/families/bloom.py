"""Bloom (Le Scao 2022): heads lower their scores with distance (ALiBi), a norm after the embedding, q, k, v by head."""

from dataclasses import replace

from interp.config import Alibi, TransformerConfig
from models.families.family import Fields, named_family, with_output
from models.families.sizes import Sizes

SIZES = Sizes.named("bloom")
OLDER = {"n_layers": "num_hidden_layers", "d_model": "n_embed", "n_heads": "num_attention_heads"}  # fields' other names
TRAINED = 2048  # the context that it was trained with; nothing in the model ends there


def _config(fields: Fields) -> TransformerConfig:
    fields.only(apply_residual_connection_post_layernorm=False, slow_but_exact=False)
    names = replace(SIZES, **{ours: older for ours, older in OLDER.items() if fields.get(getattr(SIZES, ours)) is None})
    sizes = names.read(fields, d_mlp=4 * fields.size(names.d_model), n_ctx=TRAINED)
    parts = {"positions": Alibi(), "embedding_norm": True}
    return with_output(fields, SIZES.stack(fields, sizes, activation="gelu_new", eps=1e-5, **parts), tied=True)


FAMILY = named_family("bloom", _config, SIZES.decoder)
